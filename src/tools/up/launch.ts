// How a vLLM server is started so that a rollout over it is lossless: one table of flags and environment, by version
// and by what it computes on. It starts nothing.
//
// Facts about version 0.32 on CPU were measured on live servers; those about older versions are from vLLM's sources.

import { AppError } from "../../core/base/errors.ts";
import { mooncakeArgs } from "../../engines/vllm/connectors.ts";
import { sizeIn } from "./gpus.ts";

export interface VllmBuild {
  /** vLLM's version, such as "0.32.0". */
  readonly version: string;
  /** Whether it was built for CPUs: its version ends with "+cpu". */
  readonly isCpu: boolean;
}

export interface PluginLaunch {
  /** URL of the sidecar's draft service: "ws://host:port/v1/draft". */
  readonly draftUrl: string;
  /** Token for clients of the sidecar; null: none. */
  readonly token: string | null;
  /** File for the plugin's counters. */
  readonly statsFile: string;
  /** Number of vLLM's model runner that the plugin drafts under. */
  readonly runner: 1 | 2;
}

/**
 * The plugin drafts only what pays of 16 tokens; a larger number costs nothing but that vLLM drafts nothing while any
 * request is that close to the context's end.
 */
const FIRST_RUNNER = [
  "--speculative-config",
  '{"method":"custom_class","model":"foretoken_vllm.proposer.ForetokenProposer","num_speculative_tokens":16}',
] as const;
/**
 * Rows of a request in a step under the second runner, where all have as many: the token before, and 0, 1, 3 or 7
 * drafts. Steps of these fit into the same CUDA graphs. With 16, 256 requests would take 4,096 rows, and on an H100 a step
 * of 32 requests takes 28 % longer with 9 rows each, for 2.1 tokens of each.
 */
const ROWS = [1, 2, 4, 8] as const;
const ROWS_MAX = 8;
/** Methods of vLLM that draft by a model of their own: the plugin stands beside it. */
const HEADS: readonly unknown[] = ["mtp", "eagle", "eagle3", "draft_model", "dflash", "dspark"];
const SPECULATION = "--speculative-config";
/**
 * Default of --max-num-seqs. vLLM's own, up to 1,024 by GPU memory, would take four times the rows of logits, and more
 * graphs. The rows of 256 requests fit every GPU's default of --max-num-batched-tokens (2,048).
 */
const REQUESTS_MAX = 256;

export interface LaunchOptions {
  /** The `vllm` command. */
  readonly command: string;
  readonly build: VllmBuild;
  /** Hugging Face directory of the model. */
  readonly model: string;
  readonly host: string;
  readonly port: number;
  /** CUDA_VISIBLE_DEVICES of the server; null: it computes on the CPU. */
  readonly gpus: string | null;
  /** Limit of the context; null: the model's own. */
  readonly contextTokens: number | null;
  readonly servedName: string | null;
  /** API key for clients of the server; null: none. */
  readonly apiKey: string | null;
  /** Settings of native/foretoken_vllm as the drafter; null: the server drafts nothing. */
  readonly plugin: PluginLaunch | null;
  /** Variables of the KV pool that the server uses, Mooncake's; null: KV stays on its server. */
  readonly pool: Pick<Launch, "env" | "envDefaults"> | null;
  /** Further arguments, which come last so that they win. */
  readonly extraArgs: readonly string[];
}

export interface Launch {
  readonly command: readonly string[];
  /** Variables that override those of the process's environment. */
  readonly env: Readonly<Record<string, string>>;
  /** Variables that those of the process's environment override. */
  readonly envDefaults: Readonly<Record<string, string>>;
}

/** What one property of a server asks of its start. */
interface Part {
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly envDefaults?: Readonly<Record<string, string>>;
}

/** Minor version from which on token ids, priorities, cache salts and the RL routes are all supported. */
const VERSION_MIN = 22;

const ANY: Part = {
  args: [
    // Lower runs first; without it, priorities are refused (older) or ignored (newer).
    ...["--scheduling-policy", "priority"],
    // Logprobs of the distribution that was sampled from: a trainer computes with these.
    ...["--logprobs-mode", "processed_logprobs"],
    // Otherwise the model's generation_config.json changes what a client did not set.
    ...["--generation-config", "vllm"],
    // Cached-token counts of each request.
    "--enable-prompt-tokens-details",
    "--disable-uvicorn-access-log",
  ],
  env: {
    // Pause, sleep, weight updates, /server_info. They have no password: the servers listen on loopback.
    VLLM_SERVER_DEV_MODE: "1",
    // Older versions name KV blocks by Python's hash, which must be the same on all servers.
    PYTHONHASHSEED: "0",
  },
  envDefaults: { HF_HUB_OFFLINE: "1", VLLM_NO_USAGE_STATS: "1" },
};

/** /inference/v1/generate: always there, then behind a variable, then behind a flag (without it: 403). */
const SCALE_OUT_BEFORE_32: Part = { env: { VLLM_ENABLE_SCALE_OUT_ENDPOINTS: "1" } };
const SCALE_OUT: Part = { args: ["--enable-scale-out"] };

const CPU: Part = {
  args: [
    // bfloat16 on a CPU with AMX ends silently (SIGILL) if the very first prompt is very short.
    ...["--dtype", "float32"],
    "--enforce-eager",
    // With "mp" the engine spins on every core, and the API process starves: events come seconds late.
    ...["--distributed-executor-backend", "uni"],
    // The smallest size that the CPU kernels support. A continued chunk recomputes its last partial block: with the
    // default of 128 that is most of a short chunk, and steps are no slower with this.
    ...["--block-size", "32"],
    // A prompt split over two steps ends the server if its request has a seed: vLLM takes back the random number of
    // the first step, and "CPU Generator does not use offset" (seen in 0.32).
    "--no-enable-chunked-prefill",
  ],
  env: {
    // "uni" silently becomes "mp" without the first, and a step takes 148 ms without the second.
    VLLM_ENABLE_V1_MULTIPROCESSING: "0",
    OMP_NUM_THREADS: "1",
    VLLM_USE_V2_MODEL_RUNNER: "0",
  },
  // GiB of KV.
  envDefaults: { VLLM_CPU_KVCACHE_SPACE: "1" },
};

const GPU: Part = {
  args: ["--enable-sleep-mode", "--weight-transfer-config", '{"backend":"nccl"}'],
};

/** Command and environment of a server. @throws AppError invalid_config: its vLLM is too old. */
export function launchOf(options: LaunchOptions): Launch {
  const { build, model, host, port, contextTokens, servedName, apiKey, gpus, pool } = options;
  const release = releaseOf(build.version);
  if (release < VERSION_MIN) {
    const problem = `vLLM ${build.version} is too old: it takes 0.${VERSION_MIN}`;
    throw new AppError("invalid_config", problem);
  }
  const parts: Part[] = [
    ANY,
    release < 32 ? SCALE_OUT_BEFORE_32 : SCALE_OUT,
    build.isCpu ? CPU : GPU,
    contextTokens === null ? {} : { args: ["--max-model-len", String(contextTokens)] },
    servedName === null ? {} : { args: ["--served-model-name", servedName] },
    pool === null ? {} : { ...pool, args: mooncakeArgs(port) },
    pluginPart(options),
    // Not among the arguments, which every user of the machine can see.
    apiKey === null ? {} : { env: { VLLM_API_KEY: apiKey } },
    gpus === null ? {} : { env: { CUDA_VISIBLE_DEVICES: gpus } },
  ];
  const serve = [options.command, "serve", model, "--host", host, "--port", String(port)];
  return {
    command: [...serve, ...parts.flatMap(({ args = [] }) => args)],
    env: Object.assign({}, ...parts.map(({ env }) => env)),
    envDefaults: Object.assign({}, ...parts.map(({ envDefaults }) => envDefaults)),
  };
}

/**
 * Only vLLM's first model runner supports a custom proposer. Under the second one the plugin replaces the speculator of a
 * method that runs with asynchronous scheduling, and knows its servers by the name of the model (docs/PLUGIN.md).
 */
function pluginPart(options: LaunchOptions): Part {
  const { plugin, host, port, extraArgs } = options;
  if (plugin === null) return { args: extraArgs };
  const head = plugin.runner === 1 ? null : headOf(extraArgs);
  const args = plugin.runner === 1 ? FIRST_RUNNER : secondRunner(options, head);
  return {
    // The last one wins, and a head's has the user's own in it.
    args: head === null ? [...args, ...extraArgs] : [...extraArgs, ...args],
    env: {
      ...(head === null ? {} : { FORETOKEN_BESIDE: "1" }),
      VLLM_USE_V2_MODEL_RUNNER: plugin.runner === 1 ? "0" : "1",
      FORETOKEN_DRAFT_URL: plugin.draftUrl,
      FORETOKEN_ENGINE: `http://${host}:${port}`,
      FORETOKEN_STATS_FILE: plugin.statsFile,
      ...(plugin.token === null ? {} : { FORETOKEN_TOKEN: plugin.token }),
    },
  };
}

interface Speculation {
  readonly method?: unknown;
  readonly num_speculative_tokens?: number;
}

/** The user's speculative configuration where a head drafts by it. null: there is none. */
function headOf(extraArgs: readonly string[]): Speculation | null {
  const at = extraArgs.findLastIndex(
    (arg) => arg.split("=", 1)[0]?.replaceAll("_", "-") === SPECULATION,
  );
  const text = extraArgs[at]?.split("=").slice(1).join("=") || extraArgs[at + 1];
  if (at < 0 || text === undefined) return null;
  try {
    const given: Speculation | null = JSON.parse(text);
    return HEADS.includes(given?.method) ? given : null;
  } catch {
    // vLLM says what is wrong with it.
    return null;
  }
}

/**
 * Arguments for the second runner, beside a head or without one. A CPU has no CUDA graphs. vLLM exits if capture sizes are
 * given twice.
 */
function secondRunner({ build, extraArgs }: LaunchOptions, head: Speculation | null): string[] {
  const requests = sizeIn(extraArgs, ["--max-num-seqs"]) ?? REQUESTS_MAX;
  const speculation = {
    method: "ngram_gpu",
    model: "foretoken_vllm.speculator",
    num_speculative_tokens: ROWS_MAX - 1,
    ...head,
  };
  const rows = ROWS.filter((count) => count <= speculation.num_speculative_tokens + 1);
  const rowsMax = rows.at(-1) ?? 1;
  // Other numbers of drafts have rows that do not divide each other: the plugin says what has no graph.
  const fits = rowsMax === speculation.num_speculative_tokens + 1;
  const named =
    build.isCpu || !fits
      ? {}
      : { num_speculative_tokens_per_batch_size: lengthsNamed(requests, rows) };
  const args = [SPECULATION, JSON.stringify({ ...named, ...speculation })];
  if (build.isCpu) return head === null ? args : [];
  args.push("--max-num-seqs", String(requests));
  if (!fits || extraArgs.some((arg) => /cudagraph.capture.sizes/.test(arg))) return args;
  return [...args, "--cudagraph-capture-sizes", ...captureSizes(requests, rows).map(String)];
}

/**
 * vLLM captures graphs of the lengths in its table by the size of the batch. The plugin takes the table away in the
 * scheduler; without it, no size has fewer drafts but the three below the largest.
 */
function lengthsNamed(requests: number, all: readonly number[]): number[][] {
  const rows = all.slice(-requests);
  const from = requests - rows.length + 1;
  const named = rows.map((count, index) => [from + index, from + index, count - 1]);
  return from > 1 ? [[1, from - 1, (all.at(-1) ?? 1) - 1], ...named] : named;
}

/**
 * Rows of the batches of 1 to `requests` requests with the most drafts, ever wider apart. Every length has its largest
 * batch too; where that is no multiple of the most rows, the sizes around it have graphs of some lengths only, so that all
 * are needed.
 */
function captureSizes(requests: number, rows: readonly number[]): number[] {
  const most = rows.at(-1) ?? 1;
  const sizes = new Set<number>();
  for (let count = 1; count < requests; count += count < 16 ? 1 : count < 64 ? 4 : 8) {
    sizes.add(count * most);
  }
  for (const each of rows) {
    const largest = (requests * each) / most;
    const end = Math.ceil(largest) * most;
    for (let n = Math.floor(largest) * most || each; n <= end; n += each) sizes.add(n);
  }
  return [...sizes].sort((a, b) => a - b);
}

function releaseOf(version: string): number {
  const [, major, minor] = /^(\d+)\.(\d+)/.exec(version) ?? [];
  if (major !== undefined) return Number(major) * 1000 + Number(minor);
  throw new AppError("invalid_config", `vLLM reports version "${version}"`);
}
