// vLLM's KV connectors, as a table: what each saves, and which servers find it again; and how a server is started with one.
// docs/KV.md names the source of each row. A running server's connector is read from its /server_info.

export interface ConnectorRow {
  /** Values of `kv_connector`: the present name, and names of older versions. */
  readonly classes: readonly string[];
  /** Every server finds KV in a shared store by a request's tokens. Absent: no other server does. */
  readonly isPool?: true;
  /** KV of output tokens is saved by default. */
  readonly savesOutput?: true;
  /** The setting in `kv_connector_extra_config` that makes it save KV of output. */
  readonly outputSetting?: readonly [key: string, value: boolean];
  /** The key in `kv_connector_extra_config` without which only the same server finds KV. */
  readonly sharedBy?: string;
  /** `cache_salt` is part of the keys, so KV of other weights is not found. Absent: not known. */
  readonly hasSalt?: boolean;
  /** This project has tested it. */
  readonly wasRun?: true;
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

const CONNECTORS: readonly ConnectorRow[] = [
  {
    classes: ["MooncakeStoreConnector"],
    isPool: true,
    outputSetting: ["save_decode_cache", true],
    hasSalt: true,
    wasRun: true,
  },
  {
    classes: ["OffloadingConnector"],
    isPool: true,
    // Its `fs`, `obj` and `p2p` tiers are shared; its memory alone is not.
    sharedBy: "secondary_tiers",
    outputSetting: ["offload_prompt_only", false],
    hasSalt: true,
  },
  { classes: ["LMCacheMPConnector"], isPool: true, savesOutput: true, hasSalt: true },
  { classes: ["LMCacheConnectorV1"], isPool: true, outputSetting: ["save_decode_cache", true] },
  // A folder, for debugging: its keys are the prompt's tokens and nothing else.
  { classes: ["ExampleConnector", "SharedStorageConnector"], isPool: true, hasSalt: false },
  { classes: ["SimpleCPUOffloadConnector"], hasSalt: true },
  // They hand KV from one server to one other, on that server's word, and keep nothing to be found.
  { classes: ["NixlConnector", "MooncakeConnector", "P2pNcclConnector", "MoRIIOConnector"] },
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
  const [key, value] = row?.outputSetting ?? [];
  return {
    className,
    row,
    savesOutput: row?.savesOutput ?? (key !== undefined && Object(extra)[key] === value),
    mixesWeights: row === null || (row.isPool === true && row.hasSalt !== true),
    ...problemOf(row, extra),
  };
}

function problemOf(
  row: ConnectorRow | null,
  extra: unknown,
): Pick<FoundConnector, "problem" | "fix"> {
  const names = CONNECTORS.filter(({ isPool, hasSalt }) => isPool && hasSalt);
  const fix = `use one of ${names.map(({ classes }) => classes[0]).join(", ")}`;
  if (row !== null && row.isPool === undefined) {
    return { problem: "no other server finds what it saves by a request's tokens", fix };
  }
  if (row?.hasSalt === false) return { problem: "its keys do not tell weights apart", fix };
  if (row?.hasSalt === undefined) {
    return { problem: "whether its keys tell weights apart is not known", fix };
  }
  if (row.sharedBy === undefined || Object(extra)[row.sharedBy] !== undefined) {
    return { problem: null, fix: null };
  }
  const setting = `kv_connector_extra_config {"${row.sharedBy}": [...]}`;
  return { problem: "no other server finds what it saves", fix: setting };
}
