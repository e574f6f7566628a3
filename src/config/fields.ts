// The one table of options: flag, default, range, help. `--help`, the checks, the environment variables, the
// keys of a configuration file and the parsed settings all come from it; a command names the fields it takes.

import { AppError } from "../core/base/errors.ts";
import { DRAFT_DEFAULT, POLICY_HELP, POLICY_NAMES } from "../core/schedule/policies.ts";

interface FieldBase {
  readonly flag: string;
  readonly help: string;
  /** What happens where no value is given and the table has no default; for people. */
  readonly otherwise?: string;
}

export interface NumberField extends FieldBase {
  readonly kind: "integer" | "number";
  readonly metavar: string;
  readonly min: number;
  readonly max: number;
  readonly default: number | null;
}

export interface ChoiceField extends FieldBase {
  readonly kind: "choice";
  readonly choices: readonly string[];
  readonly default: string | null;
}

export interface TextField extends FieldBase {
  readonly kind: "text";
  readonly metavar: string;
  /** What the flag means without a value. Default: it needs one. */
  readonly bare?: string;
  readonly default: string | null;
}

export interface SwitchField extends FieldBase {
  readonly kind: "switch";
}

/** May be given several times; in the environment its values stand between commas. */
export interface ListField extends FieldBase {
  readonly kind: "list";
  readonly metavar: string;
  readonly default: readonly string[];
}

export type Field = NumberField | ChoiceField | TextField | SwitchField | ListField;

const integer = <D extends number | null>(
  flag: string,
  options: {
    metavar: string;
    min: number;
    max: number;
    default: D;
    help: string;
    otherwise?: string;
  },
) => ({ kind: "integer" as const, flag, ...options });

export const FIELDS = {
  model: {
    kind: "text",
    flag: "--model",
    metavar: "FILE.gguf",
    default: null,
    help: "the model, a GGUF file",
    otherwise: "the bundled foretoken-3m, q8_0",
  },
  workers: integer("--workers", {
    metavar: "N",
    min: 1,
    max: 64,
    default: 2,
    help: "engines to run, one thread each",
  }),
  slots: integer("--slots", {
    metavar: "N",
    min: 1,
    max: 128,
    default: 16,
    help: "requests that one worker runs at the same time",
  }),
  groupSize: integer("--group-size", {
    metavar: "G",
    min: 1,
    max: 256,
    default: 8,
    help: "responses to each prompt without its own `n`",
  }),
  limit: integer("--limit", {
    metavar: "N",
    min: 1,
    max: 16_384,
    default: null,
    help: "take only the first N prompts",
    otherwise: "all",
  }),
  maxTokens: integer("--max-tokens", {
    metavar: "N",
    min: 1,
    max: 1_048_576,
    default: 2048,
    help: "maximum number of output tokens of one response",
  }),
  temperature: {
    kind: "number",
    flag: "--temperature",
    metavar: "T",
    min: 0,
    max: 100,
    default: 1,
    help: "0 is greedy",
  },
  seed: integer("--seed", {
    metavar: "N",
    min: 0,
    max: Number.MAX_SAFE_INTEGER,
    default: 42,
    help: "the same seed draws the same responses, however they are scheduled",
  }),
  chunkTokens: integer("--chunk-tokens", {
    metavar: "N",
    min: 1,
    max: 1_048_576,
    default: null,
    otherwise: "64 to 2048, by the KV of a worker and by what the end of a chunk costs there",
    help: "output tokens of one chunk, after which a request may move to another worker",
  }),
  kvTokens: integer("--kv-tokens", {
    metavar: "N",
    min: 16,
    max: 16_777_216,
    default: 4096,
    help: "KV budget of one worker, in tokens",
  }),
  poolMemoryMb: integer("--pool-memory-mb", {
    metavar: "MB",
    min: 0,
    max: 1_048_576,
    default: 256,
    help: "DRAM of the KV pool",
  }),
  poolDiskMb: integer("--pool-disk-mb", {
    metavar: "MB",
    min: 0,
    max: 16_777_216,
    default: 1024,
    help: "SSD of the KV pool, used when the DRAM is full; 0: none",
  }),
  poolDir: {
    kind: "text",
    flag: "--pool-dir",
    metavar: "DIR",
    default: null,
    help: "directory of the pool's SSD tier",
    otherwise: "a new one in the system's temporary directory",
  },
  journal: {
    kind: "text",
    flag: "--journal",
    metavar: "DIR",
    default: null,
    help: "directory that keeps what is generated (serve: of /v1/rollouts, and of requests with an id): after a crash the same command continues from there",
    otherwise: "none",
  },
  policy: {
    kind: "choice",
    flag: "--policy",
    choices: POLICY_NAMES,
    default: "seer",
    help: POLICY_HELP,
  },
  draft: {
    kind: "choice",
    flag: "--draft",
    choices: ["grouped", "off"],
    default: null,
    help: "speculative decoding from the group's responses",
    otherwise: DRAFT_DEFAULT,
  },
  draftBudget: {
    kind: "choice",
    flag: "--draft-budget",
    choices: ["adaptive", "always"],
    default: "adaptive",
    help: "adaptive: draft if it is faster at the measured step times. always: draft in every step",
  },
  rounds: integer("--rounds", {
    metavar: "N",
    min: 1,
    max: 100,
    default: 1,
    help: "repeat all runs N times, in turn, and report medians and ranges",
  }),
  compare: {
    kind: "text",
    flag: "--compare",
    metavar: "POLICY,...",
    default: null,
    help: "run each policy in turn on the same seeds and print the table; POLICY:DRAFT sets a policy's drafting",
  },
  deterministic: {
    kind: "switch",
    flag: "--deterministic",
    help: "portable kernels: logits do not depend on the batch, so every run is bit-identical (about 5 times slower)",
  },
  drafter: {
    kind: "text",
    flag: "--drafter",
    metavar: "NAME,...",
    default: "self,grouped,tree",
    help: "self: a path from the response's own prompt and text. grouped: a path, from its siblings too. tree: a tree, from its siblings too",
  },
  siblings: {
    kind: "text",
    flag: "--siblings",
    metavar: "N,...",
    default: null,
    help: "siblings that a response drafts from: concurrent: groups are cut to N + 1 responses; complete: the first N others",
    otherwise: "all",
  },
  mode: {
    kind: "text",
    flag: "--mode",
    metavar: "NAME,...",
    default: "concurrent",
    help: "concurrent: all responses of a group are generated at the same time. complete: the siblings are finished before",
  },
  budget: integer("--budget", {
    metavar: "N",
    min: 1,
    max: 32,
    default: 16,
    help: "maximum number of draft tokens per verification step",
  }),
  live: integer("--live", {
    metavar: "N",
    min: 1,
    max: 1024,
    default: 8,
    help: "groups generated at the same time (complete: responses)",
  }),
  probabilityMin: {
    kind: "number",
    flag: "--probability-min",
    metavar: "P",
    min: 0,
    max: 1,
    default: null,
    help: "draft only tokens with at least this acceptance probability",
    otherwise: "0.1",
  },
  draftedPerStep: {
    kind: "number",
    flag: "--drafted-per-step",
    metavar: "X",
    min: 0.01,
    max: 32,
    default: null,
    help: "find the probability at which each drafter drafts X tokens per step, to compare drafters at equal cost",
  },
  stepMs: {
    kind: "number",
    flag: "--step-ms",
    metavar: "MS",
    min: 0.001,
    max: 60_000,
    default: null,
    help: "time of one decode step of your engine at --batch, without drafts: its inter-token latency; with --row-us it gives the speed-up",
  },
  rowUs: {
    kind: "number",
    flag: "--row-us",
    metavar: "US",
    min: 0,
    max: 1_000_000,
    default: null,
    help: "time that each further token to verify adds to such a step, in microseconds",
  },
  batch: integer("--batch", {
    metavar: "N",
    min: 1,
    max: 65_536,
    default: 32,
    help: "requests that your engine decodes in one step, for --step-ms",
  }),
  limitGroups: integer("--limit-groups", {
    metavar: "N",
    min: 1,
    max: 1_048_576,
    default: null,
    help: "take only the first N groups of each file",
    otherwise: "all",
  }),
  out: {
    kind: "text",
    flag: "--out",
    metavar: "RESPONSES.jsonl",
    default: null,
    help: "output file: a line for every response, written when its group finishes (required)",
  },
  traceOut: {
    kind: "text",
    flag: "--out",
    metavar: "TRACE.json",
    default: null,
    help: "file for the trace",
    otherwise: "standard output",
  },
  host: {
    kind: "text",
    flag: "--host",
    metavar: "HOST",
    default: "127.0.0.1",
    help: "the address to listen on; beyond loopback a token is required",
  },
  insecure: {
    kind: "switch",
    flag: "--insecure",
    help: "listen beyond loopback without a token: any client that reaches the port can use it, and replace weights where it has any",
  },
  allowHost: {
    kind: "list",
    flag: "--allow-host",
    metavar: "NAME",
    default: [],
    help: "a further host name of a server without a token; * allows any; may be repeated",
    otherwise: "loopback, addresses, this machine's name",
  },
  allowOrigin: {
    kind: "list",
    flag: "--allow-origin",
    metavar: "ORIGIN",
    default: [],
    help: "a site like https://board.example whose pages may use the server; * allows any; may be repeated",
    otherwise: "the server's own page",
  },
  port: integer("--port", {
    metavar: "N",
    min: 0,
    max: 65_535,
    default: 7447,
    help: "the port to listen on; 0: any free one",
  }),
  listen: {
    kind: "text",
    flag: "--listen",
    metavar: "HOST:PORT",
    default: "127.0.0.1:7448",
    help: "where a worker listens for its sidecar; port 0: any free one; beyond loopback a token is required",
  },
  workerToken: {
    kind: "text",
    flag: "--worker-token",
    metavar: "TOKEN",
    default: null,
    help: "token that a worker requires and its sidecar sends; better set in the environment",
    otherwise: "none",
  },
  draftGroups: integer("--max-groups", {
    metavar: "N",
    min: 1,
    max: 1_048_576,
    default: 4096,
    help: "maximum number of groups; beyond it the least recently used one is dropped",
  }),
  draftMemoryMb: integer("--memory-mb", {
    metavar: "MB",
    min: 1,
    max: 1_048_576,
    default: 1024,
    help: "memory of all groups; beyond it the least recently used one is dropped",
  }),
  draftGroupMemoryMb: integer("--group-memory-mb", {
    metavar: "MB",
    min: 1,
    max: 65_536,
    default: 64,
    help: "memory of one group; further tokens are refused",
  }),
  draftWindowTokens: integer("--window-tokens", {
    metavar: "N",
    min: 0,
    max: 1_048_576,
    default: 4096,
    help: "tokens of a response that may be buffered before the tokens between arrive",
  }),
  draftFrameKb: integer("--max-frame-kb", {
    metavar: "KB",
    min: 64,
    max: 16_384,
    default: 1024,
    help: "maximum size of a frame, either way; a group's prompt must fit in one, at 4 bytes per token",
  }),
  draftConnections: integer("--max-connections", {
    metavar: "N",
    min: 1,
    max: 65_536,
    default: 1024,
    help: "maximum number of engines connected at the same time",
  }),
  workload: {
    kind: "text",
    flag: "--workload",
    metavar: "NAME,...",
    default: "qwen2-vl-72b",
    help: "requests and engines: moonlight, qwen2-vl-72b, kimi-k2 (the Seer paper's), all, or a FILE.json with your model and GPU (docs/SIMULATOR.md)",
  },
  systems: {
    kind: "text",
    flag: "--systems",
    metavar: "NAME,...",
    default: "all",
    help: "the schedulers to simulate: verl, streamrl-oracle, partial-rollout, oracle, policies that divide, or all; speed-ups are over verl without drafting",
  },
  simulatedDraft: {
    kind: "choice",
    flag: "--draft",
    choices: ["off", "grouped", "own"],
    default: "off",
    help: "grouped: drafts from the group's responses (baselines: as in the paper). own: as grouped, but foretoken with its own drafter, as measured. off: no speculative decoding",
  },
  seeds: integer("--seeds", {
    metavar: "N",
    min: 1,
    max: 1000,
    default: 5,
    help: "iterations with different response lengths, for means and 95 % intervals",
  }),
  lengths: {
    kind: "text",
    flag: "--lengths",
    metavar: "RESPONSES",
    default: null,
    help: "take the response lengths from recorded responses, as `foretoken replay` reads them",
  },
  published: {
    kind: "switch",
    flag: "--published",
    help: "simulate every figure of the Seer paper, and print predicted, published and error",
  },
  html: {
    kind: "text",
    flag: "--html",
    metavar: "REPORT.html",
    default: null,
    help: "write charts of the first seed as one self-contained page",
  },
  demo: {
    kind: "switch",
    flag: "--demo",
    help: "answer 8 bundled prompts under two policies and compare them: needs no further option (--compare adds others)",
  },
  report: {
    kind: "text",
    flag: "--report",
    metavar: "REPORT.json",
    default: null,
    help: "write the closing table as JSON",
  },
  worker: {
    kind: "list",
    flag: "--worker",
    metavar: "URL",
    default: [],
    help: "an engine: http://HOST:PORT of a vLLM or SGLang server (sglang://HOST:PORT for SGLang alone), or ws://HOST:PORT of `foretoken worker`; may be repeated",
  },
  llama: integer("--llama", {
    metavar: "N",
    min: 0,
    max: 64,
    default: 0,
    help: "embedded engines to run, with or without --worker",
  }),
  contextTokens: integer("--max-model-len", {
    metavar: "N",
    min: 16,
    max: 16_777_216,
    default: null,
    help: "maximum of prompt + output tokens of a request, on an embedded engine or a vLLM server that is started",
    otherwise: "what model and KV budget allow",
  }),
  tokenizer: {
    kind: "text",
    flag: "--tokenizer",
    metavar: "DIR",
    default: null,
    help: "a model's Hugging Face directory, for its tokenizer",
    otherwise: "that of the embedded model or of the vLLM server's model",
  },
  servedModelName: {
    kind: "text",
    flag: "--served-model-name",
    metavar: "NAME",
    default: null,
    help: "name of the model for clients",
    otherwise: "the engines' name of it",
  },
  apiToken: {
    kind: "text",
    flag: "--api-token",
    metavar: "TOKEN",
    default: null,
    help: "token that clients must send as `Authorization: Bearer TOKEN`; better set in the environment",
    otherwise: "none",
  },
  tlsCert: {
    kind: "text",
    flag: "--tls-cert",
    metavar: "FILE.pem",
    default: null,
    help: "certificate chain: serve HTTPS and wss instead of HTTP and ws; with --tls-key",
    otherwise: "plain HTTP",
  },
  tlsKey: {
    kind: "text",
    flag: "--tls-key",
    metavar: "FILE.pem",
    default: null,
    help: "private key of --tls-cert",
    otherwise: "none",
  },
  weightsRoot: {
    kind: "list",
    flag: "--weights-root",
    metavar: "DIR",
    default: [],
    help: "a folder from which weights and adapters may be loaded, with symbolic links resolved; other paths in control calls are refused; may be repeated",
    otherwise: "any on loopback, none beyond",
  },
  historyMb: integer("--history-mb", {
    metavar: "MB",
    min: 0,
    max: 65_536,
    default: 64,
    help: "responses of earlier weight epochs to draft from and to estimate lengths by when their prompts come again, in the sidecar and in each embedded engine; 0: none",
  }),
  iterations: {
    kind: "text",
    flag: "--iterations",
    metavar: "FILE",
    default: null,
    otherwise: "in memory",
    help: "keep the figures and curves of the last 50 iterations, which the page shows, in this SQLite file",
  },
  completedMb: integer("--completed-mb", {
    metavar: "MB",
    min: 0,
    max: 65_536,
    default: 64,
    help: "responses of complete groups that the page can show: their tokens, chunks and logprobs; the oldest groups are dropped first; 0: none",
  }),
  historyFile: {
    kind: "text",
    flag: "--history-file",
    metavar: "FILE",
    default: null,
    help: "file that keeps the sidecar's responses of earlier weight epochs over a restart",
    otherwise: "in memory",
  },
  minWorkers: integer("--min-workers", {
    metavar: "N",
    min: 1,
    max: 4096,
    default: 1,
    help: "/health answers 503 until this many workers are ready; for a trainer that counts its engines, set it to their number",
  }),
  requestsMax: integer("--max-requests", {
    metavar: "N",
    min: 1,
    max: 131_072,
    default: 65_536,
    help: "maximum number of requests in flight; more are refused with 429",
  }),
  bodyMb: integer("--max-body-mb", {
    metavar: "MB",
    min: 1,
    max: 1024,
    default: 32,
    help: "maximum size of a request's body, uncompressed",
  }),
  bodiesMb: integer("--max-bodies-mb", {
    metavar: "MB",
    min: 1,
    max: 65_536,
    default: null,
    help: "total size of the bodies being read; a further one waits, and is refused with 429 after 5 s",
    otherwise: "4 times --max-body-mb",
  }),
  bodyTimeoutS: integer("--body-timeout-s", {
    metavar: "S",
    min: 1,
    max: 3600,
    default: 60,
    help: "time to receive a request's body, plus 10 s for every 64 KiB; a slower one is refused with 408",
  }),
  promptCharacters: integer("--max-prompt-characters", {
    metavar: "N",
    min: 1,
    max: 268_435_456,
    default: 4_194_304,
    help: "maximum length of a text to tokenize; a longer one is refused with 400",
  }),
  encodeTimeoutS: integer("--encode-timeout-s", {
    metavar: "S",
    min: 1,
    max: 3600,
    default: 30,
    help: "time to tokenize a text, after which the request fails with 504",
  }),
  retryGraceS: integer("--retry-grace-s", {
    metavar: "S",
    min: 0,
    max: 3600,
    default: 30,
    help: "time to keep generating after a client disconnects, so that an identical retry can take over the result",
  }),
  sessionS: integer("--session-s", {
    metavar: "S",
    min: 0,
    max: 86_400,
    default: 600,
    help: "time after a turn of a session for which its KV and text are kept for the next turn",
  }),
  sessionMb: integer("--session-mb", {
    metavar: "MB",
    min: 0,
    max: 65_536,
    default: 256,
    help: "total size of the texts kept for next turns; beyond it the session used least recently is forgotten",
  }),
  weightsTimeoutS: integer("--weights-timeout-s", {
    metavar: "S",
    min: 1,
    max: 86_400,
    default: 600,
    help: "time for an engine to answer a control request, after which it is opened again; time between calls of an open weight update, after which it is aborted",
  }),
  harmlessRpc: {
    kind: "list",
    flag: "--harmless-rpc",
    metavar: "METHOD",
    default: [],
    help: "a further method of /collective_rpc that does not change the weights; may be repeated",
  },
  statelessArgs: {
    kind: "list",
    flag: "--stateless-arg",
    metavar: "NAME",
    default: [],
    help: "an extra argument (vllm_xargs, extra_args) that has no state between tokens: requests with it are divided; may be repeated",
  },
  drainS: integer("--drain-s", {
    metavar: "S",
    min: 0,
    max: 86_400,
    default: 600,
    help: "time for requests in flight to finish after the first SIGTERM or SIGINT",
  }),
  parent: integer("--parent", {
    metavar: "PID",
    min: 1,
    max: 4_194_304,
    default: null,
    help: "process id: end at once when that process ends, also if it is killed",
    otherwise: "none",
  }),
  log: {
    kind: "choice",
    flag: "--log",
    choices: ["text", "json", "off"],
    default: "text",
    help: "format of the log on stderr",
  },
  logLevel: {
    kind: "choice",
    flag: "--log-level",
    choices: ["debug", "info", "warn", "error"],
    default: "info",
    help: "minimum level of log lines; debug: every answer",
  },
  hfModel: {
    kind: "text",
    flag: "--model",
    metavar: "DIR",
    default: null,
    help: "the model's Hugging Face directory",
    otherwise: "the bundled foretoken-3m",
  },
  servers: integer("--workers", {
    metavar: "N",
    min: 1,
    max: 64,
    default: 2,
    help: "vLLM servers to run; on GPUs, each gets the number that its --tensor-parallel-size and similar flags need",
  }),
  vllm: {
    kind: "text",
    flag: "--vllm",
    metavar: "PATH",
    default: null,
    help: "the vllm command",
    otherwise: "that of `npm run vllm:install`, else the one on PATH",
  },
  plugin: {
    kind: "switch",
    flag: "--plugin",
    help: "draft inside vLLM's engine step from siblings on all servers (installs native/foretoken_vllm beside vLLM)",
  },
  kvConnector: {
    kind: "text",
    flag: "--kv-connector",
    metavar: "NAME",
    default: null,
    help: "transfers KV of requests that move between servers: mooncake (docs/KV.md)",
    otherwise: "none, KV is recomputed",
  },
  kvSegmentMb: {
    kind: "integer",
    flag: "--kv-segment-mb",
    metavar: "MB",
    min: 16,
    max: 16_777_216,
    default: null,
    help: "memory of each server's engine for the mooncake pool",
    otherwise: "1024 or less: all together a quarter of the free memory",
  },
  logs: {
    kind: "text",
    flag: "--logs",
    metavar: "DIR",
    default: "out/up",
    help: "directory of the servers' logs",
  },
  startS: integer("--start-s", {
    metavar: "S",
    min: 1,
    max: 86_400,
    default: 600,
    help: "time for a server to become healthy",
  }),
  samples: integer("--samples", {
    metavar: "N",
    min: 1_000,
    max: 10_000_000,
    default: 12_288,
    help: "maximum number of tokens in the sampling test; it ends early when it finds a fault",
  }),
  config: {
    kind: "text",
    flag: "--config",
    metavar: "FILE",
    default: null,
    help: "settings from a TOML or JSON file: keys are the flags' names with _ for -; flags and environment override it",
  },
  json: { kind: "switch", flag: "--json", help: "print the report as JSON instead of the table" },
  quiet: { kind: "switch", flag: "--quiet", help: "no progress and no table" },
} as const satisfies Record<string, Field>;

export type FieldName = keyof typeof FIELDS;

type ValueOf<F extends Field> = F extends { kind: "switch" }
  ? boolean
  : F extends { kind: "list" }
    ? readonly string[]
    : F extends { kind: "integer" | "number" }
      ? F["default"] extends number
        ? number
        : number | null
      : F extends { kind: "choice"; choices: readonly (infer C)[] }
        ? F["default"] extends string
          ? C
          : C | null
        : F extends { kind: "text"; default: string }
          ? string
          : string | null;

export type Settings<N extends FieldName> = { [K in N]: ValueOf<(typeof FIELDS)[K]> };

/** The default as people read it; null: there is none. `own`: a command's default in place of the table's. */
export function defaultText(field: Field, own?: number | string): string | null {
  if (own !== undefined) return String(own);
  if (field.kind === "switch") return null;
  const { otherwise = null } = field;
  if (field.default === null || field.kind === "list") return otherwise;
  return String(field.default);
}

/** `--kv-tokens` is KV_TOKENS with the prefix FORETOKEN_ in the environment. */
export function envName(field: Field): string {
  return `FORETOKEN_${field.flag.slice(2).replaceAll("-", "_").toUpperCase()}`;
}

/** `--kv-tokens` is `kv_tokens` in a configuration file. */
export function fileKey(field: Field): string {
  return field.flag.slice(2).replaceAll("-", "_");
}

/** Turns a flag's text into its value. Throws `usage` naming flag, value and bound. */
export function parseField(field: Field, text: string): string | number {
  switch (field.kind) {
    case "text":
    case "list":
      if (text === "") throw new AppError("usage", `${field.flag} is empty`);
      return text;
    case "choice":
      if (field.choices.includes(text)) return text;
      throw new AppError(
        "usage",
        `${field.flag} is "${text}"; it is one of ${field.choices.join(", ")}`,
      );
    case "switch":
      throw new AppError("usage", `${field.flag} takes no value`);
    default: {
      const value = text.trim() === "" ? Number.NaN : Number(text);
      const isFit = field.kind === "integer" ? Number.isSafeInteger(value) : Number.isFinite(value);
      const what = field.kind === "integer" ? "a whole number" : "a number";
      if (!isFit) throw new AppError("usage", `${field.flag} is "${text}"; it is ${what}`);
      if (value < field.min || value > field.max) {
        throw new AppError(
          "usage",
          `${field.flag} is ${text}; it must be between ${field.min} and ${field.max}`,
        );
      }
      return value;
    }
  }
}
