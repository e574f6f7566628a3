// vLLM's KV connectors, as a table: what each saves, which servers find it again, and how a server is started with it.
// docs/KV.md names the source of each row. A running server's connector is read from its /server_info.

import { AppError } from "../../core/base/errors.ts";

export interface ConnectorRow {
  /** Name in `--kv-connector`. */
  readonly name: string;
  /** Values of `kv_connector`: the present name, and names of older versions. */
  readonly classes: readonly string[];
  /** pool: every server finds KV in a shared store by a request's tokens. none: no other server does. */
  readonly reach: "pool" | "none";
  /** KV of output tokens is saved by default. */
  readonly savesOutput: boolean;
  /** The setting in `kv_connector_extra_config` that makes it save KV of output; null: there is none. */
  readonly outputSetting: readonly [key: string, value: boolean] | null;
  /** The key in `kv_connector_extra_config` without which only the same server finds KV; null: none is needed. */
  readonly sharedBy: string | null;
  /** `cache_salt` is part of the keys, so KV of other weights is not found. null: not known. */
  readonly hasSalt: boolean | null;
  /**
   * The connector's settings, with which `foretoken up` starts a server; null: it needs a service of its own first
   * (docs/KV.md). `port`: only this server listens there.
   */
  readonly launch: ((port: number) => Readonly<Record<string, unknown>>) | null;
  /** This project has tested it. */
  readonly wasRun: boolean;
}

/** Value of `--kv-transfer-config`. */
const mooncakeLaunch = (port: number) => ({
  kv_connector: "MooncakeStoreConnector",
  // The stock connector, with what a CPU, a dead store and finished responses need (native/foretoken_vllm).
  kv_connector_module_path: "foretoken_vllm.mooncake",
  kv_role: "kv_both",
  kv_load_failure_policy: "recompute",
  kv_connector_extra_config: {
    save_decode_cache: true,
    load_async: true,
    lookup_async: true,
    // Names a socket in the machine's temporary folder: two servers with one name would answer for each other.
    lookup_rpc_port: port,
  },
});

/** Properties that most connectors share. */
const USUAL = {
  reach: "pool",
  savesOutput: false,
  outputSetting: null,
  sharedBy: null,
  hasSalt: null,
  launch: null,
  wasRun: false,
} as const satisfies Partial<ConnectorRow>;

export const CONNECTORS: readonly ConnectorRow[] = [
  {
    ...USUAL,
    name: "mooncake",
    classes: ["MooncakeStoreConnector"],
    outputSetting: ["save_decode_cache", true],
    hasSalt: true,
    launch: mooncakeLaunch,
    wasRun: true,
  },
  {
    ...USUAL,
    name: "offloading",
    classes: ["OffloadingConnector"],
    // Its `fs`, `obj` and `p2p` tiers are shared; its memory alone is not.
    sharedBy: "secondary_tiers",
    outputSetting: ["offload_prompt_only", false],
    hasSalt: true,
  },
  {
    ...USUAL,
    name: "lmcache-mp",
    classes: ["LMCacheMPConnector"],
    savesOutput: true,
    hasSalt: true,
  },
  {
    ...USUAL,
    name: "lmcache",
    classes: ["LMCacheConnectorV1"],
    outputSetting: ["save_decode_cache", true],
  },
  {
    ...USUAL,
    name: "example",
    // A folder, for debugging: its keys are the prompt's tokens and nothing else.
    classes: ["ExampleConnector", "SharedStorageConnector"],
    hasSalt: false,
  },
  {
    ...USUAL,
    name: "simple-offload",
    classes: ["SimpleCPUOffloadConnector"],
    reach: "none",
    hasSalt: true,
  },
  {
    ...USUAL,
    name: "nixl",
    // They hand KV from one server to one other, on that server's word, and keep nothing to be found.
    classes: ["NixlConnector", "MooncakeConnector", "P2pNcclConnector", "MoRIIOConnector"],
    reach: "none",
  },
];

/** The connector of a running server, and how it can be used. */
export interface FoundConnector {
  /** `kv_connector`. */
  readonly className: string;
  /** null: not in the table. */
  readonly row: ConnectorRow | null;
  readonly savesOutput: boolean;
  /** Why no KV moves through the connector; null: no reason is visible from outside. */
  readonly problem: string | null;
  /** The connector may find KV of older weights, so that a rollout over the server would be wrong. */
  readonly mixesWeights: boolean;
  /** What to change; null: nothing helps. */
  readonly fix: string | null;
}

/** The connector in `vllm_config` of /server_info; null: none, or not reported. */
export function connectorOf(config: unknown): FoundConnector | null {
  const { kv_connector: className, kv_connector_extra_config: extra } = Object(
    Object(config).kv_transfer_config,
  );
  if (typeof className !== "string") return null;
  const row = CONNECTORS.find(({ classes }) => classes.includes(className)) ?? null;
  return {
    className,
    row,
    savesOutput: row !== null && savesOutput(row, extra),
    mixesWeights: row === null || (row.reach === "pool" && row.hasSalt !== true),
    ...problemOf(row, extra),
  };
}

function savesOutput(row: ConnectorRow, extra: unknown): boolean {
  if (row.savesOutput || row.outputSetting === null) return row.savesOutput;
  const [key, value] = row.outputSetting;
  return Object(extra)[key] === value;
}

function problemOf(
  row: ConnectorRow | null,
  extra: unknown,
): Pick<FoundConnector, "problem" | "fix"> {
  const names = CONNECTORS.filter(({ reach, hasSalt }) => reach === "pool" && hasSalt === true);
  const fix = `use one of ${names.map(({ classes }) => classes[0]).join(", ")}`;
  const unknown = "whether its keys tell weights apart is not known";
  if (row?.reach === "none") {
    return { problem: "no other server finds what it saves by a request's tokens", fix };
  }
  if (row?.hasSalt === false) return { problem: "its keys do not tell weights apart", fix };
  if (row === null || row.hasSalt === null) return { problem: unknown, fix };
  if (row.sharedBy !== null && Object(extra)[row.sharedBy] === undefined) {
    const setting = `kv_connector_extra_config {"${row.sharedBy}": [...]}`;
    return { problem: "no other server finds what it saves", fix: setting };
  }
  return { problem: null, fix: null };
}

/** Arguments of `vllm serve`. @throws AppError invalid_config: the connector is unknown, or needs a service of its own. */
export function connectorLaunch(name: string, port: number): readonly string[] {
  const row = CONNECTORS.find((connector) => connector.name === name);
  const startable = CONNECTORS.flatMap((known) => (known.launch === null ? [] : [known.name]));
  if (row === undefined || row.launch === null) {
    const what =
      row === undefined ? "is not known" : "needs settings of its own: give them after --";
    const refusal = `--kv-connector ${name} ${what}; it is one of ${startable.join(", ")}`;
    throw new AppError("invalid_config", refusal);
  }
  return ["--kv-transfer-config", JSON.stringify(row.launch(port))];
}
