// The one table of options: flag, default, range, help. `--help`, the checks, the environment variables, the
// keys of a configuration file and the parsed settings all come from it; a command names the fields it takes.
// To add one: an entry here and its name in the list of the command (`fields` or SERVING_FIELDS in cli/*-command.ts).

import { AppError } from "../core/base/errors.ts";
import { DRAFTING, POLICY_HELP, POLICY_NAMES, RUNS } from "../core/schedule/policies.ts";

export interface Field<V = unknown> {
  /** switch: its flag takes no value. list: may be given several times; in the environment, values between commas. */
  readonly kind: "integer" | "number" | "choice" | "text" | "list" | "switch";
  readonly flag: string;
  readonly metavar: string;
  readonly help: string;
  /** Value where none is given; null: the option has no default. */
  readonly default: V;
  /** Description of what happens without a value, where the table has no default. */
  readonly otherwise?: string;
  /** Bounds of a number. */
  readonly range: readonly [min: number, max: number];
  readonly choices: readonly string[];
}

interface Options<V> {
  readonly help: string;
  readonly default?: V;
  readonly otherwise?: string;
  readonly range?: readonly [min: number, max: number];
  readonly choices?: readonly string[];
}

/** One of the choices, where there are some. */
type Chosen<O, V> = O extends { readonly choices: readonly (infer C)[] } ? C : V;
type Value<O, V> = O extends { readonly default: V } ? Chosen<O, V> : Chosen<O, V> | null;

/** A row of the table. `spelling`: the flag and the name of its value, as in the help. */
function field<V>(kind: Field["kind"], spelling: string, options: Options<unknown>): Field<V> {
  const [flag = "", metavar = options.choices?.join("|") ?? ""] = spelling.split(" ");
  const base = { kind, flag, metavar, range: [0, 0], choices: [], default: null } as const;
  return { ...base, ...options } as Field<V>;
}

const fieldOf =
  <V>(kind: Field["kind"]) =>
  <const O extends Options<V>>(spelling: string, options: O) =>
    field<Value<O, V>>(kind, spelling, options);
const integer = fieldOf<number>("integer");
const number = fieldOf<number>("number");
const text = fieldOf<string>("text");
const choice = fieldOf<string>("choice");
const list = <const O extends Options<never>>(spelling: string, options: O) =>
  field<readonly Chosen<O, string>[]>("list", spelling, { ...options, default: [] });
const toggle = (flag: string, help: string) =>
  field<boolean>("switch", flag, { help, default: false });

/** Values of --log: formats, each alone or with a level. */
const LOG_CHOICES = [
  ...["text", "json", "off"],
  ...["text:debug", "text:warn", "text:error", "json:debug", "json:warn", "json:error"],
] as const;

export const FIELDS = {
  model: text("--model FILE.gguf", {
    help: "the model, a GGUF file",
    otherwise: "the bundled one",
  }),
  slots: integer("--slots N", {
    range: [1, 128],
    default: 16,
    help: "requests a worker runs at once",
  }),
  groupSize: integer("--group-size G", {
    range: [1, 256],
    default: 8,
    help: "responses to each prompt without its own `n`",
  }),
  limit: integer("--limit N", {
    range: [1, 16_384],
    help: "take only the first N prompts, or groups of each file",
    otherwise: "all",
  }),
  maxTokens: integer("--max-tokens N", {
    range: [1, 1_048_576],
    default: 2048,
    help: "maximum number of output tokens of one response",
  }),
  temperature: number("--temperature T", { range: [0, 100], default: 1, help: "0 is greedy" }),
  seed: integer("--seed N", {
    range: [0, Number.MAX_SAFE_INTEGER],
    default: 42,
    help: "the same seed draws the same responses, however they are scheduled",
  }),
  chunkTokens: integer("--chunk-tokens N", {
    range: [1, 1_048_576],
    help: "output tokens after which a request may move to another worker",
    otherwise: "64 to 2048, as KV allows",
  }),
  kvTokens: integer("--kv-tokens N", {
    range: [16, 16_777_216],
    default: 4096,
    help: "KV budget of a worker, tokens",
  }),
  poolMemoryMb: integer("--pool-memory-mb MB", {
    range: [0, 1_048_576],
    default: 256,
    help: "DRAM of the KV pool; its SSD tier, used when the DRAM is full, takes 4 times as much",
  }),
  poolDir: text("--pool-dir DIR", {
    help: "directory of the pool's SSD tier, a file that has no name while it is used",
    otherwise: "the system's temporary directory",
  }),
  journal: text("--journal DIR", {
    help: "folder to go on from after a crash: rollouts, requests with an id",
    otherwise: "none",
  }),
  policy: choice("--policy POLICY[:DRAFT]", {
    choices: RUNS,
    default: "seer",
    help: `${POLICY_HELP}. Behind it :grouped or :off, to speculate from siblings or not: by default ${DRAFTING.join(" and ")} do`,
  }),
  rounds: integer("--rounds N", {
    range: [1, 100],
    default: 1,
    help: "repeat all runs N times, in turn, and report medians and ranges",
  }),
  compare: list("--compare POLICY,...", {
    choices: RUNS,
    help: "run each, as in --policy, in turn on the same seeds and print the table",
  }),
  deterministic: toggle(
    "--deterministic",
    "the same bits in every run, whatever runs beside a request (5 times slower)",
  ),
  drafter: list("--drafter NAME", {
    choices: ["self", "grouped", "history"],
    help: "self, grouped or history; may be given several times",
    otherwise: "all",
  }),
  engineSteps: text("--engine-steps REQUESTS,MS,US", {
    help: "your engine without drafts, for a speed-up: a step of REQUESTS takes MS milliseconds, and US microseconds more for each further token",
    otherwise: "none",
  }),
  head: text("--head SHARE,...", {
    help: "a trained head (MTP, EAGLE) beside siblings: how often its first, second, ... token is right, from above 0 up to 1",
    otherwise: "none",
  }),
  out: text("--out RESPONSES.jsonl", {
    help: "output file: a line for every response (required); until the end it is FILE.PID.part, which a group is in when it has finished",
  }),
  traceOut: text("--out TRACE.json", { help: "file for the trace", otherwise: "standard output" }),
  host: text("--host HOST", { default: "127.0.0.1", help: "address to listen on" }),
  insecure: toggle(
    "--insecure",
    "listen beyond loopback without a token: whoever reaches the port can use it, and load weights",
  ),
  allowOrigin: list("--allow-origin ORIGIN", {
    help: "web site (https://HOST) whose pages may call the server, or as which it is reached; *: any; repeatable",
    otherwise: "its own",
  }),
  port: integer("--port N", {
    range: [0, 65_535],
    default: 7447,
    help: "port to listen on; 0: any free one",
  }),
  workerToken: text("--worker-token TOKEN", {
    help: "the engines' --api-key; better set in the environment",
    otherwise: "none",
  }),
  trace: text("--trace REPORT.json", {
    help: "the recorded iteration: a rollout's report (required)",
  }),
  policies: list("--policies NAME,...", {
    choices: POLICY_NAMES,
    help: "policies to simulate; speed-ups are over the first",
    otherwise: "all",
  }),
  demo: toggle(
    "--demo",
    "answer 4 bundled prompts under three policies and compare them, with the bundled model at a real model's price (`--model priced`)",
  ),
  report: text("--report REPORT.json", {
    help: "write the closing table and the engines over time as JSON, and as a page beside it (.html)",
  }),
  worker: list("--worker URL", {
    help: "engine: http://HOST:PORT of a vLLM or SGLang server; repeatable",
  }),
  llama: integer("--llama N", { range: [0, 64], default: 0, help: "embedded engines to run" }),
  contextTokens: integer("--max-model-len N", {
    range: [16, 16_777_216],
    help: "maximum of prompt + output tokens of a request, on an embedded engine or a vLLM server that is started",
    otherwise: "what model and KV budget allow",
  }),
  tokenizer: text("--tokenizer DIR", {
    help: "Hugging Face folder of a tokenizer",
    otherwise: "that of the engines' model",
  }),
  servedModelName: text("--served-model-name NAME", {
    help: "the model's name for clients",
    otherwise: "its own",
  }),
  apiToken: text("--api-token TOKEN", {
    help: "token that clients must send; better set in the environment",
    otherwise: "none",
  }),
  weightsRoot: list("--weights-root DIR", {
    help: "folder that weights are loaded from, none other; repeatable",
    otherwise: "any on loopback, none beyond",
  }),
  historyMb: integer("--history-mb MB", {
    range: [0, 65_536],
    default: 64,
    help: "memory for earlier responses, to draft from when a prompt comes again; 0: none",
  }),
  minWorkers: integer("--min-workers N", {
    range: [1, 4096],
    default: 1,
    help: "ready workers that /health waits for",
  }),
  weightsTimeoutS: integer("--weights-timeout-s S", {
    range: [1, 86_400],
    default: 600,
    help: "seconds for an engine's answer, and between calls of a weight update",
  }),
  drainS: integer("--drain-s S", {
    range: [0, 86_400],
    default: 600,
    help: "seconds to finish after SIGTERM",
  }),
  log: choice("--log FORMAT[:LEVEL]", {
    choices: LOG_CHOICES,
    default: "text",
    help: "log on stderr: text, json or off; :debug, :warn or :error behind it",
  }),
  hfModel: text("--model DIR", {
    help: "the model's Hugging Face directory",
    otherwise: "the bundled foretoken-3m",
  }),
  servers: integer("--workers N", {
    range: [1, 64],
    default: 2,
    help: "vLLM servers to run; on GPUs, each gets the number that its --tensor-parallel-size and similar flags need",
  }),
  vllm: text("--vllm PATH", {
    help: "the vllm command",
    otherwise: "that of `npm run vllm:install`, else the one on PATH",
  }),
  plugin: toggle(
    "--plugin",
    "draft inside vLLM's engine step from siblings on all servers, beside a head that --speculative-config names (installs native/foretoken_vllm)",
  ),
  kvConnector: choice("--kv-connector", {
    choices: ["mooncake"],
    help: "transfers KV of requests that move between servers (docs/KV.md)",
    otherwise: "none, KV is recomputed",
  }),
  kvSegmentMb: integer("--kv-segment-mb MB", {
    range: [16, 16_777_216],
    help: "memory that each server gives to the KV pool (mooncake)",
    otherwise: "1024, and at most a quarter of the free memory in all",
  }),
  logs: text("--logs DIR", { default: "out/up", help: "directory of the servers' logs" }),
  startS: integer("--start-s S", {
    range: [1, 86_400],
    default: 600,
    help: "time for a server to become healthy",
  }),
  samples: integer("--samples N", {
    range: [1000, 10_000_000],
    default: 12_288,
    help: "maximum number of tokens in the sampling test; it ends early when it finds a fault",
  }),
  config: text("--config FILE", {
    help: "TOML or JSON file of settings, named as the flags, with _ for -; flags and environment override it",
  }),
  json: toggle("--json", "print JSON for programs"),
  quiet: toggle("--quiet", "no progress and no table"),
} as const satisfies Record<string, Field>;

export type FieldName = keyof typeof FIELDS;

/** Of every command that listens. */
export const LISTENING_FIELDS = ["host", "port", "apiToken", "insecure", "allowOrigin"] as const;
/** Those that apply to embedded engines only. */
export const EMBEDDED_FIELDS = ["slots", "kvTokens", "deterministic"] as const;
/** What is asked of every prompt without settings of its own, and of how many. */
export const PROMPT_FIELDS = ["groupSize", "limit", "maxTokens", "temperature", "seed"] as const;

export type Settings<N extends FieldName> = { [K in N]: (typeof FIELDS)[K]["default"] };

/** The default for people; null: there is none. `own`: a command's default in place of the table's. */
export function defaultText(field: Field, own?: number | string): string | null {
  if (own !== undefined) return String(own);
  if (field.kind === "switch") return null;
  const isNone = field.default === null || field.kind === "list";
  return isNone ? (field.otherwise ?? null) : String(field.default);
}

/** The option's environment variable: FORETOKEN_KV_TOKENS for `--kv-tokens`. */
export function envName(field: Pick<Field, "flag">): string {
  return `FORETOKEN_${fileKey(field).toUpperCase()}`;
}

/** The option's key in a configuration file: `kv_tokens` for `--kv-tokens`. */
export function fileKey(field: Pick<Field, "flag">): string {
  return field.flag.slice(2).replaceAll("-", "_");
}

/** Turns a flag's text into its value. @throws AppError usage, naming flag, value and bound. */
export function parseField(field: Field, text: string): string | number {
  const { kind, flag, range, choices } = field;
  const refused = (problem: string) => new AppError("usage", `${flag} ${problem}`);
  if (kind === "switch") throw refused("takes no value");
  if (choices.length > 0) {
    if (choices.includes(text)) return text;
    throw refused(`is "${text}"; it is one of ${choices.join(", ")}`);
  }
  if (kind === "text" || kind === "list") {
    if (text === "") throw refused("is empty");
    return text;
  }
  const value = text.trim() === "" ? Number.NaN : Number(text);
  const isFit = kind === "integer" ? Number.isSafeInteger(value) : Number.isFinite(value);
  if (!isFit)
    throw refused(`is "${text}"; it is a ${kind === "integer" ? "whole number" : "number"}`);
  const [min, max] = range;
  if (value < min || value > max) throw refused(`is ${text}; it must be between ${min} and ${max}`);
  return value;
}
