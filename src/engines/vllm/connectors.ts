// vLLM's KV connectors, as a table: what each saves, and which servers find it again; and how a server is started with one.
// docs/KV.md names the source of each row. A running server's connector is read from its /server_info.

export interface ConnectorRow {
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
  /** This project has tested it. */
  readonly wasRun: boolean;
}

/** Arguments of a `vllm serve` that has Mooncake's connector. `port`: only this server listens there. */
export function mooncakeArgs(port: number): readonly string[] {
  const config = {
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
  };
  return ["--kv-transfer-config", JSON.stringify(config)];
}

/** Properties that most connectors share. */
const USUAL = {
  reach: "pool",
  savesOutput: false,
  outputSetting: null,
  sharedBy: null,
  hasSalt: null,
  wasRun: false,
} as const satisfies Partial<ConnectorRow>;

const CONNECTORS: readonly ConnectorRow[] = [
  {
    ...USUAL,
    classes: ["MooncakeStoreConnector"],
    outputSetting: ["save_decode_cache", true],
    hasSalt: true,
    wasRun: true,
  },
  {
    ...USUAL,
    classes: ["OffloadingConnector"],
    // Its `fs`, `obj` and `p2p` tiers are shared; its memory alone is not.
    sharedBy: "secondary_tiers",
    outputSetting: ["offload_prompt_only", false],
    hasSalt: true,
  },
  { ...USUAL, classes: ["LMCacheMPConnector"], savesOutput: true, hasSalt: true },
  { ...USUAL, classes: ["LMCacheConnectorV1"], outputSetting: ["save_decode_cache", true] },
  {
    ...USUAL,
    // A folder, for debugging: its keys are the prompt's tokens and nothing else.
    classes: ["ExampleConnector", "SharedStorageConnector"],
    hasSalt: false,
  },
  { ...USUAL, classes: ["SimpleCPUOffloadConnector"], reach: "none", hasSalt: true },
  {
    ...USUAL,
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
