// The fields that requests share, under vLLM's names: sampling parameters, and what they become; and what the OpenAI-shaped
// endpoints have besides. Each is honoured here, given to the engine, or refused by name.

import * as v from "valibot";
import { fold32 } from "../../core/base/hash.ts";
import {
  type LogitShaping,
  NO_SHAPING,
  PROMPT_FIELDS,
  type SamplingParams,
} from "../../core/request/request.ts";
import * as bounds from "../../core/request/sampling-bounds.ts";
import { TOKENS_MAX } from "../../core/request/sampling-bounds.ts";
import { PRIORITY_MAX } from "../../core/schedule/policy.ts";
import { invalid } from "../route.ts";
import * as f from "./fields.ts";
import { VERSION_FIELD } from "./origin.ts";

// A request's seed: vLLM takes 64 bits (torch.iinfo(torch.long)), and TRL's asynchronous loop draws 63.
const SEED_MIN = -(2n ** 63n);
const SEED_MAX = 2n ** 63n - 1n;

/** A number, or its digits: those of a number that a double cannot hold arrive as text (proto/json.ts). */
function seedOf(value: number | string): bigint | null {
  const isWhole = typeof value === "string" ? /^-?\d{1,19}$/.test(value) : Number.isInteger(value);
  if (!isWhole) return null;
  const seed = BigInt(value);
  return seed >= SEED_MIN && seed <= SEED_MAX ? seed : null;
}

/** A seed within 53 bits stays as it is; of a larger one all 64 bits are hashed into 53. */
function folded(seed: bigint): number {
  if (BigInt.asIntN(53, seed) === seed) return Number(seed);
  const low = Number(BigInt.asIntN(32, seed));
  const high = Number(BigInt.asIntN(32, seed >> 32n));
  const hash = (salt: number) => fold32(fold32(salt, low), high);
  return hash(1) * 2 ** 21 + (hash(2) >>> 11);
}

const seedMessage = f.isNot(`a whole number in ${SEED_MIN}..${SEED_MAX}`);

export const SEED_FIELD = v.nullish(
  v.pipe(
    v.union([v.number(), v.string()], seedMessage),
    v.check((value) => seedOf(value) !== null, seedMessage),
    v.transform((value) => folded(seedOf(value) ?? 0n)),
  ),
);

/** The answer, with a header if its seed may draw other tokens next time. */
export function noted(answer: Response, varies: boolean): Response {
  if (varies) answer.headers.set("x-foretoken-seed", "varies");
  return answer;
}

const STOP_STRINGS_MAX = 64;

export const STOPS = f.listOf(
  v.pipe(f.text, v.minLength(1, "holds an empty text")),
  STOP_STRINGS_MAX,
);

const GUIDED = "structured_outputs takes its place";

const whole = ({ min, max }: bounds.Range) => f.integer(min, max);
const real = ({ min, max }: bounds.Range) => f.number(min, max);

/** Limit of a response's tokens, under whichever name the endpoint has for it. */
export const MAX_TOKENS_FIELD = whole(bounds.MAX_TOKENS);
/** Alternatives that a response can hold per token (SamplingParams.topLogprobs). */
export const TOP_LOGPROBS_FIELD = whole(bounds.TOP_LOGPROBS);

const notToken = (biases: object) => Object.keys(biases).find((name) => !/^\d+$/.test(name));
const biasMessage = f.isNot(`a number in ±${bounds.LOGIT_BIAS.max}`);
/** Schema of biases by token. The core checks the ids and the number of biases. */
const logitBias = v.pipe(
  f.fieldsOfAnyKind,
  // Here, since `record` drops __proto__ unseen.
  v.check(
    (biases) => notToken(biases) === undefined,
    ({ input }) => `holds ${f.show(notToken(input))}, not a token id`,
  ),
  v.record(
    v.string(),
    v.pipe(
      v.number(biasMessage),
      v.minValue(bounds.LOGIT_BIAS.min, biasMessage),
      v.maxValue(bounds.LOGIT_BIAS.max, biasMessage),
    ),
  ),
);

export const SAMPLING_ENTRIES = {
  n: f.integer(1, 16_384),
  temperature: v.nullish(
    v.pipe(
      v.number(f.isNot(bounds.TEMPERATURE_BOUND)),
      v.minValue(0, f.isNot(bounds.TEMPERATURE_BOUND)),
      v.maxValue(bounds.TEMPERATURE.max, f.isNot(bounds.TEMPERATURE_BOUND)),
      v.check(bounds.isTemperature, f.isNot(bounds.TEMPERATURE_BOUND)),
    ),
  ),
  top_p: f.numberAbove(bounds.TOP_P.min, bounds.TOP_P.max),
  /** 0 and -1 turn it off. */
  top_k: f.integer(-1, bounds.TOP_K.max),
  min_p: real(bounds.MIN_P),
  repetition_penalty: real(bounds.REPETITION_PENALTY),
  presence_penalty: real(bounds.PRESENCE_PENALTY),
  frequency_penalty: real(bounds.FREQUENCY_PENALTY),
  logit_bias: v.nullish(logitBias),
  seed: SEED_FIELD,
  stop: v.nullish(v.union([f.text, STOPS], f.isNot("a text or a list of texts"))),
  stop_token_ids: v.nullish(f.tokenListOf(bounds.STOP_TOKENS_MAX)),
  include_stop_str_in_output: f.flag,
  ignore_eos: f.flag,
  min_tokens: whole(bounds.MIN_TOKENS),
  skip_special_tokens: f.flag,
  // Detokenizers here never put spaces between tokens, so both values mean the same.
  spaces_between_special_tokens: f.flag,
  /** -1: logprobs of every token of the vocabulary. */
  prompt_logprobs: f.integer(-1, bounds.TOKENS_MAX),
  // The engine's own business: Worker.supports decides.
  allowed_token_ids: v.nullish(f.tokenList),
  bad_words: v.nullish(f.listOf(f.text, 1024)),
  logprob_token_ids: v.nullish(f.tokenList),
  repetition_detection: v.nullish(f.fieldsOfAnyKind),
  structured_outputs: v.nullish(f.fieldsOfAnyKind),
  thinking_token_budget: f.integer(-1, bounds.TOKENS_MAX),
  // Refused.
  best_of: f.unsupported("only n responses are drawn", 1),
  use_beam_search: f.unsupported("responses are sampled", false),
  watermarking: f.unsupported("no worker marks its samples", false),
  logits_processors: f.unsupported("no code is run for clients"),
  ...f.refusing(GUIDED, "guided_json", "guided_regex", "guided_choice"),
  ...f.refusing(GUIDED, "guided_grammar", "guided_decoding"),
  // Of use with a field that is refused only.
  ...f.ignoring("length_penalty"),
  /** Default: as the engines are set, which report the experts of all requests or of none. */
  return_routed_experts: f.flag,
  /** Experts of earlier positions are not reported. Only with return_routed_experts. */
  routed_experts_prompt_start: f.integer(0, bounds.TOKENS_MAX),
} as const;

const samplingObject = v.object(SAMPLING_ENTRIES);
export type SamplingFields = v.InferOutput<typeof samplingObject>;

export interface SamplingContext {
  readonly vocabularySize: number;
  /** Tokens that end a response; the first is the model's EOS. */
  readonly eosTokenIds: readonly number[];
  /** Whether every engine reports the experts of every request. */
  readonly reportsExperts: boolean;
  /** Number of tokens of a word, without special ones. Absent: not known. */
  readonly tokensIn?: (word: string) => number;
  readonly at: string;
}

/** Settings that are the same for all prompts of a request. */
export interface Drawing {
  readonly sampling: Omit<SamplingParams, "tokensMax">;
  readonly seeded: boolean;
  readonly n: number;
  readonly stops: StopRules;
}

/** Conditions that end a response besides its length, and the part of it that becomes text. */
export interface StopRules {
  readonly strings: readonly string[];
  readonly keepStop: boolean;
  /** Stop strings and stop tokens take effect only behind this number of output tokens. */
  readonly tokensMin: number;
  readonly tokens: ReadonlySet<number>;
  /** The EOS token, which ends a response but is not named as its stop_reason; -1: none. */
  readonly eos: number;
  readonly skipSpecial: boolean;
}

/** The sampling parameters of fields. `topLogprobs`: 0..20. `extraArgs`: further fields for the engine. @throws InvalidFieldError. */
export function drawingOf(
  fields: SamplingFields,
  own: {
    topLogprobs: number;
    tokensMax: number | null;
    extraArgs: Record<string, unknown>;
    /** Further fields of the engine's own endpoint. */
    beside?: Readonly<Record<string, unknown>>;
  },
  context: SamplingContext,
): Drawing {
  const { eosTokenIds, at, vocabularySize } = context;
  const eos = fields.ignore_eos === true ? [] : eosTokenIds;
  for (const token of fields.stop_token_ids ?? []) {
    if (token >= vocabularySize) {
      const problem = `holds token ${token}, not in 0..${vocabularySize - 1}`;
      throw invalid(`${at}stop_token_ids`, problem);
    }
  }
  const stopTokenIds = [...new Set([...eos, ...(fields.stop_token_ids ?? [])])];
  const tokensMin = fields.min_tokens ?? 0;
  if (own.tokensMax !== null && tokensMin > own.tokensMax) {
    throw invalid(`${at}min_tokens`, `is ${tokensMin}, beyond max_tokens, ${own.tokensMax}`);
  }
  const temperature = fields.temperature ?? 1;
  const engineFields = engineFieldsOf(fields, own, context);
  const seed = fields.seed === -1 ? null : (fields.seed ?? null);
  return {
    sampling: {
      temperature,
      seed: seed ?? 0,
      stopTokenIds,
      shaping: shapingOf(fields, { temperature, stops: stopTokenIds.length }),
      topLogprobs: own.topLogprobs,
      engineFields,
      ...(hasStatelessWords(fields, context) ? { statelessFields: ["bad_words"] } : {}),
    },
    seeded: seed !== null,
    n: fields.n ?? 1,
    stops: {
      strings: stopStringsOf(fields.stop, at),
      keepStop: fields.include_stop_str_in_output ?? false,
      tokensMin,
      tokens: new Set(stopTokenIds),
      eos: eos[0] ?? -1,
      skipSpecial: fields.skip_special_tokens ?? true,
    },
  };
}

function stopStringsOf(stop: SamplingFields["stop"], at: string): readonly string[] {
  if (stop === null || stop === undefined) return [];
  if (stop === "") throw invalid(`${at}stop`, "is an empty text");
  return typeof stop === "string" ? [stop] : stop;
}

/** The shaping of logits; null where every value is neutral, so that engines need not look. */
function shapingOf(
  fields: SamplingFields,
  about: { temperature: number; stops: number },
): LogitShaping | null {
  // The likeliest token is in every selection of likely ones, so that greedy drawing needs none (as in vLLM).
  const isGreedy = about.temperature === 0;
  const shaping: LogitShaping = {
    tokensMin: about.stops === 0 ? 0 : (fields.min_tokens ?? 0),
    topK: isGreedy ? 0 : Math.max(0, fields.top_k ?? 0),
    topP: isGreedy ? 1 : (fields.top_p ?? 1),
    minP: isGreedy ? 0 : (fields.min_p ?? 0),
    repetitionPenalty: fields.repetition_penalty ?? 1,
    presencePenalty: fields.presence_penalty ?? 0,
    frequencyPenalty: fields.frequency_penalty ?? 0,
    logitBias: Object.entries(fields.logit_bias ?? {}).flatMap(([token, bias]) =>
      bias === 0 ? [] : { token: Number(token), bias },
    ),
  };
  const { logitBias, ...filters } = shaping;
  const names = Object.keys(filters) as (keyof typeof filters)[];
  const isNeutral = names.every((name) => filters[name] === NO_SHAPING[name]);
  return isNeutral && logitBias.length === 0 ? null : shaping;
}

function engineFieldsOf(
  fields: SamplingFields,
  { extraArgs, beside }: { extraArgs: object; beside?: Readonly<Record<string, unknown>> },
  context: SamplingContext,
): Readonly<Record<string, unknown>> | null {
  const budget = fields.thinking_token_budget ?? -1;
  const passed: Record<string, unknown> = {
    ...beside,
    // Where only the engine knows what ends a text, it ends the response.
    ignore_eos: context.eosTokenIds.length === 0 && fields.ignore_eos !== true ? false : null,
    prompt_logprobs: fields.prompt_logprobs,
    ...expertFields(fields, context),
    allowed_token_ids: fields.allowed_token_ids,
    bad_words: fields.bad_words?.length === 0 ? null : fields.bad_words,
    logprob_token_ids: fields.logprob_token_ids,
    repetition_detection: fields.repetition_detection,
    structured_outputs: fields.structured_outputs,
    thinking_token_budget: budget === -1 ? null : budget,
    extra_args: Object.keys(extraArgs).length === 0 ? null : extraArgs,
  };
  const present = Object.entries(passed).filter(
    ([, value]) => value !== null && value !== undefined,
  );
  return present.length === 0 ? null : Object.fromEntries(present);
}

/** A longer word is no single token; it is not encoded to find that out. */
const WORD_CHARACTERS_MAX = 64;

/** Whether all bad words are single tokens: longer ones are matched against the tokens of one chunk alone. */
function hasStatelessWords(
  { bad_words: words }: SamplingFields,
  { tokensIn }: SamplingContext,
): boolean {
  const isToken = (word: string) =>
    word.length <= WORD_CHARACTERS_MAX && !/^\s/.test(word) && tokensIn?.(word) === 1;
  return (words?.length ?? 0) > 0 && words?.every(isToken) === true;
}

/** Fields that ask for experts. An engine reports these with its own last token, so it must apply the stop strings itself. */
function expertFields(
  fields: SamplingFields,
  { reportsExperts, at }: SamplingContext,
): Record<string, unknown> {
  if (!(fields.return_routed_experts ?? reportsExperts)) return {};
  const strings = stopStringsOf(fields.stop, at);
  return {
    return_routed_experts: true,
    routed_experts_prompt_start: fields.routed_experts_prompt_start,
    ...(strings.length === 0
      ? {}
      : { stop: strings, include_stop_str_in_output: fields.include_stop_str_in_output ?? false }),
  };
}

/** Refuses reports on the prompt in a stream, as vLLM does. @throws InvalidFieldError. */
export function checkPromptReport(
  stream: boolean | null | undefined,
  fields: Readonly<Record<string, unknown>>,
  at = "",
): void {
  const field = PROMPT_FIELDS.find((name) => (fields[name] ?? null) !== null);
  if (field === undefined || stream !== true) return;
  throw invalid(`${at}${field}`, "is set, but a stream does not report on its prompt");
}

const streamOptions = v.strictObject({ include_usage: f.flag, continuous_usage_stats: f.flag });

const TRANSFER = "the sidecar moves KV between workers itself";

const DEADLINE_S_MAX = 1e6;
const DEADLINE_TOKENS_MAX = 2 ** 40;

export const DEADLINE_FIELD = v.nullish(
  v.strictObject({
    group_s: f.numberAbove(0, DEADLINE_S_MAX),
    group_tokens: f.integer(1, DEADLINE_TOKENS_MAX),
    iteration_s: f.numberAbove(0, DEADLINE_S_MAX),
    iteration_tokens: f.integer(1, DEADLINE_TOKENS_MAX),
  }),
);

export const COMMON_ENTRIES = {
  model: v.nullish(f.text),
  stream: f.flag,
  stream_options: v.nullish(streamOptions),
  /** Lower is served earlier. */
  priority: f.integer(-PRIORITY_MAX, PRIORITY_MAX),
  request_id: f.name,
  cache_salt: f.name,
  group_id: f.name,
  /** Ends the responses of a group or an iteration with the finish reason "deadline". */
  deadline: DEADLINE_FIELD,
  ...f.refusing(TRANSFER, "kv_transfer_params", "ec_transfer_params"),
  /** Ignored: each event contains all output that there is when the client reads it. */
  ...f.ignoring("stream_interval"),
  session_id: f.name,
  program_id: f.name,
  policy_version: VERSION_FIELD,
  weight_version: VERSION_FIELD,
} as const;

export const OPENAI_ENTRIES = {
  return_token_ids: f.flag,
  return_tokens_as_token_ids: f.flag,
  add_special_tokens: f.flag,
  /** -1: as many as leave room for max_tokens; the last ones stay, unless `truncation_side` is "right". */
  truncate_prompt_tokens: f.integer(-1, TOKENS_MAX),
  truncation_side: f.oneOf("left", "right"),
  response_format: v.nullish(f.fieldsOfAnyKind),
  vllm_xargs: v.nullish(f.fieldsOfAnyKind),
  max_tokens: MAX_TOKENS_FIELD,
  // Change nothing in the answer.
  ...f.ignoring("user", "metadata", "store", "service_tier", "safety_identifier"),
  ...f.ignoring("prompt_cache_key", "return_token_offsets", "return_mm_kwargs"),
  mm_payload: f.unsupported("prompts are text"),
} as const;

const commonObject = v.object(COMMON_ENTRIES);
export type CommonFields = v.InferOutput<typeof commonObject>;
const openAiObject = v.object(OPENAI_ENTRIES);
export type OpenAiFields = v.InferOutput<typeof openAiObject>;

/** OpenAI's response_format as vLLM's structured_outputs; null: free text. @throws InvalidFieldError. */
function structureOf(
  format: Readonly<Record<string, unknown>> | null | undefined,
): Record<string, unknown> | null {
  if (format === null || format === undefined || format.type === "text") return null;
  if (format.type === "json_object") return { json_object: true };
  if (format.type === "structural_tag") return { structural_tag: JSON.stringify(format) };
  if (format.type !== "json_schema") {
    const problem = `is ${JSON.stringify(format.type)}, not text, json_object, json_schema or structural_tag`;
    throw invalid("response_format.type", problem);
  }
  const holder = format.json_schema;
  const schema =
    typeof holder === "object" && holder !== null && "schema" in holder ? holder.schema : null;
  if (schema === null) throw invalid("response_format.json_schema", "holds no schema");
  return { json: schema };
}

/** Sets the structure that response_format asks for; refuses both fields at once, as one of them would be dropped. */
export function withFormat<T extends OpenAiFields & SamplingFields>(fields: T): T {
  const structure = structureOf(fields.response_format);
  if (structure === null) return fields;
  if (fields.structured_outputs !== null && fields.structured_outputs !== undefined) {
    throw invalid("response_format", "and structured_outputs are both set");
  }
  return { ...fields, structured_outputs: structure };
}

/** Whether a stream reports usage at its end, and in each event. */
export interface Usage {
  readonly atEnd: boolean;
  readonly always: boolean;
}

export function usageWanted({ stream_options: options }: CommonFields): Usage {
  const atEnd = options?.include_usage ?? false;
  return { atEnd, always: atEnd && (options?.continuous_usage_stats ?? false) };
}
