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
  /** Stands for many choices. */
  readonly metavar?: string;
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

/** Formats of the log, each alone or with a level. */
const LOG_CHOICES = [
  ...["text", "json", "off"],
  ...["text:debug", "text:warn", "text:error", "json:debug", "json:warn", "json:error"],
] as const;

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
    help: "take only the first N prompts, or groups of each file",
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
    help: "DRAM of the KV pool; its SSD tier, used when the DRAM is full, takes 4 times as much",
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
    help: "directory that keeps what is generated (serve: of /v1/rollouts and of requests with an id, the responses of --history-mb, and the figures of the last 50 iterations): after a crash the same command continues from there",
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
  siblings: integer("--siblings", {
    metavar: "N",
    min: 0,
    max: 4095,
    default: null,
    help: "siblings that a response drafts from: concurrent: groups are cut to N + 1 responses; complete: the first N others",
    otherwise: "all",
  }),
  mode: {
    kind: "choice",
    flag: "--mode",
    choices: ["concurrent", "complete"],
    default: "concurrent",
    help: "concurrent: all responses of a group are generated at the same time. complete: the siblings are finished before",
  },
  live: integer("--live", {
    metavar: "N",
    min: 1,
    max: 1024,
    default: 8,
    help: "groups generated at the same time (complete: responses)",
  }),
  engineSteps: {
    kind: "text",
    flag: "--engine-steps",
    metavar: "REQUESTS,MS,US",
    default: null,
    help: "your engine, for the speed-up: requests decoded in one step, time of that step without drafts in ms (its inter-token latency), and time that each further token to verify adds, in us",
    otherwise: "none",
  },
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
  allowOrigin: {
    kind: "list",
    flag: "--allow-origin",
    metavar: "ORIGIN",
    default: [],
    help: "a site like https://board.example under whose name the server is reached, or whose pages may use it; * allows any; may be repeated",
    otherwise: "loopback, addresses and this machine's name; the server's own page",
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
  strict: {
    kind: "switch",
    flag: "--strict",
    help: "end with an error where drafts that were asked for would change what is sampled, in place of serving without them",
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
    help: "write the closing table and the engines over time as JSON, and as a page beside it (.html)",
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
    help: "maximum of prompt + output tokens of a request, on the worker's engine or a vLLM server that is started",
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
  minWorkers: integer("--min-workers", {
    metavar: "N",
    min: 1,
    max: 4096,
    default: 1,
    help: "/health answers 503 until this many workers are ready; for a trainer that counts its engines, set it to their number",
  }),
  weightsTimeoutS: integer("--weights-timeout-s", {
    metavar: "S",
    min: 1,
    max: 86_400,
    default: 600,
    help: "time for an engine to answer a control request, after which it is opened again; time between calls of an open weight update, after which it is aborted",
  }),
  drainS: integer("--drain-s", {
    metavar: "S",
    min: 0,
    max: 86_400,
    default: 600,
    help: "time for requests in flight to finish after the first SIGTERM or SIGINT",
  }),
  log: {
    kind: "choice",
    flag: "--log",
    choices: LOG_CHOICES,
    metavar: "FORMAT[:LEVEL]",
    default: "text",
    help: "the log on stderr: text, json or off; :debug, :warn or :error is the minimum level of its lines, otherwise info",
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
