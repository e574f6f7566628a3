// The fields that requests share, under vLLM's names: sampling parameters, and what they become; and what the OpenAI-shaped
// endpoints have besides. Each is honoured here, given to the engine, or refused by name.

import * as v from "valibot";
import { fold32 } from "../../core/base/hash.ts";
import { type LogitShaping, NO_SHAPING, type SamplingParams } from "../../core/request/request.ts";
import * as bounds from "../../core/request/sampling-bounds.ts";
import { TOKENS_MAX } from "../../core/request/sampling-bounds.ts";
import { PRIORITY_MAX } from "../../core/schedule/policy.ts";
import { fieldOf, invalid } from "../route.ts";
import * as f from "./fields.ts";
import { VERSION_FIELD } from "./origin.ts";

/**
 * vLLM takes seeds of 64 bits (torch.iinfo(torch.long)), and TRL's asynchronous loop draws 63. A number, or its digits: those of
 * a number that a double cannot hold arrive as text (proto/json.ts).
 */
function isSeed(value: number | string): boolean {
  const isWhole = typeof value === "string" ? /^-?\d{1,19}$/.test(value) : Number.isInteger(value);
  return isWhole && BigInt.asIntN(64, BigInt(value)) === BigInt(value);
}

/** A seed within 53 bits stays as it is; of a larger one all 64 bits are hashed into 53. */
function folded(value: number | string): number {
  const seed = BigInt(value);
  if (BigInt.asIntN(53, seed) === seed) return Number(seed);
  const low = Number(BigInt.asIntN(32, seed));
  const high = Number(BigInt.asIntN(32, seed >> 32n));
  const hash = (salt: number) => fold32(fold32(salt, low), high);
  return hash(1) * 2 ** 21 + (hash(2) >>> 11);
}

const seedMessage = f.isNot(`a whole number in ${-(2n ** 63n)}..${2n ** 63n - 1n}`);

export const SEED_FIELD = v.nullish(
  v.pipe(
    v.union([v.number(), v.string()], seedMessage),
    v.check(isSeed, seedMessage),
    v.transform(folded),
  ),
);

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

const temperatureMessage = f.isNot(bounds.TEMPERATURE_BOUND);
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
  v.record(v.string(), f.within(bounds.LOGIT_BIAS.min, bounds.LOGIT_BIAS.max, biasMessage)),
);

/** Fields that the engine gets under the same names: Worker.supports decides. */
const ENGINE_ENTRIES = {
  /** -1: logprobs of every token of the vocabulary. */
  prompt_logprobs: f.integer(-1, TOKENS_MAX),
  allowed_token_ids: v.nullish(f.tokenList),
  bad_words: v.nullish(f.listOf(f.text, 1024)),
  logprob_token_ids: v.nullish(f.tokenList),
  repetition_detection: v.nullish(f.fieldsOfAnyKind),
  structured_outputs: v.nullish(f.fieldsOfAnyKind),
  thinking_token_budget: f.integer(-1, TOKENS_MAX),
} as const;
const ENGINE_FIELDS = Object.keys(ENGINE_ENTRIES) as (keyof typeof ENGINE_ENTRIES)[];

export const SAMPLING_ENTRIES = {
  n: f.integer(1, 16_384),
  temperature: v.nullish(
    v.pipe(
      f.within(0, bounds.TEMPERATURE.max, temperatureMessage),
      v.check(bounds.isTemperature, temperatureMessage),
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
  ...ENGINE_ENTRIES,
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
  routed_experts_prompt_start: f.integer(0, TOKENS_MAX),
} as const;

const samplingObject = v.object(SAMPLING_ENTRIES);
export type SamplingFields = v.InferOutput<typeof samplingObject>;

export interface SamplingContext {
  readonly vocabularySize: number;
  /** Tokens that end a response; the first is the model's EOS. */
  readonly eosTokenIds: readonly number[];
  /** Whether every engine reports the experts of every request. */
  readonly reportsExperts: boolean;
  /** Number of tokens of a word, without special ones. Default, and null: not known. */
  readonly tokensIn?: (word: string) => number | null;
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

/** What a part of a request asks for besides its sampling parameters. */
export interface DrawingPart {
  /** 0..20. */
  readonly topLogprobs: number;
  /** Limit of output tokens; null: as many as the context has room for. */
  readonly tokensMax: number | null;
  /** Further arguments for the engine (vLLM's extra_args). */
  readonly extraArgs?: Readonly<Record<string, unknown>>;
  /** Further fields of the engine's own endpoint. */
  readonly beside?: Readonly<Record<string, unknown>>;
}

/** The sampling parameters of fields. @throws InvalidFieldError. */
export function drawingOf(
  fields: SamplingFields,
  part: DrawingPart,
  context: SamplingContext,
): Drawing {
  const { eosTokenIds, at, vocabularySize } = context;
  const eos = fields.ignore_eos === true ? [] : eosTokenIds;
  const own = fields.stop_token_ids ?? [];
  const wrong = f.indexBeyond(own, vocabularySize);
  if (wrong >= 0) {
    const problem = `holds token ${own[wrong]}, not in 0..${vocabularySize - 1}`;
    throw invalid(`${at}stop_token_ids`, problem);
  }
  const tokensMin = fields.min_tokens ?? 0;
  if (part.tokensMax !== null && tokensMin > part.tokensMax) {
    throw invalid(`${at}min_tokens`, `is ${tokensMin}, beyond max_tokens, ${part.tokensMax}`);
  }
  if (fields.stop === "") throw invalid(`${at}stop`, "is an empty text");
  const stops = {
    strings: [fields.stop ?? []].flat(),
    keepStop: fields.include_stop_str_in_output ?? false,
    tokensMin,
    tokens: new Set([...eos, ...own]),
    eos: eos[0] ?? -1,
    skipSpecial: fields.skip_special_tokens ?? true,
  };
  const temperature = fields.temperature ?? 1;
  const words = fields.bad_words ?? [];
  const isStateless = words.length > 0 && areStateless(words, context);
  const seed = fields.seed === -1 ? null : (fields.seed ?? null);
  return {
    sampling: {
      temperature,
      seed: seed ?? 0,
      stopTokenIds: [...stops.tokens],
      shaping: shapingOf(fields, { temperature, stops: stops.tokens.size }),
      topLogprobs: part.topLogprobs,
      engineFields: engineFieldsOf(fields, part, { ...context, stops }),
      ...(isStateless && { statelessFields: ["bad_words"] }),
    },
    seeded: seed !== null,
    n: fields.n ?? 1,
    stops,
  };
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
  { extraArgs = {}, beside }: DrawingPart,
  { eosTokenIds, reportsExperts, stops }: SamplingContext & { readonly stops: StopRules },
): Readonly<Record<string, unknown>> | null {
  const passed: Record<string, unknown> = { ...beside };
  for (const name of ENGINE_FIELDS) passed[name] = fields[name];
  // Values that ask for nothing.
  if (fields.bad_words?.length === 0) passed.bad_words = null;
  if (fields.thinking_token_budget === -1) passed.thinking_token_budget = null;
  if (Object.keys(extraArgs).length > 0) passed.extra_args = extraArgs;
  // Where only the engine knows what ends a text, it ends the response.
  if (eosTokenIds.length === 0 && fields.ignore_eos !== true) passed.ignore_eos = false;
  if (fields.return_routed_experts ?? reportsExperts) {
    passed.return_routed_experts = true;
    passed.routed_experts_prompt_start = fields.routed_experts_prompt_start;
    // An engine reports them with its own last token, so it must apply the stop strings itself.
    if (stops.strings.length > 0) {
      passed.stop = stops.strings;
      passed.include_stop_str_in_output = stops.keepStop;
    }
  }
  const present = Object.entries(passed).filter(([, value]) => (value ?? null) !== null);
  return present.length === 0 ? null : Object.fromEntries(present);
}

/** A longer word is no single token; it is not encoded to find that out. */
const WORD_CHARACTERS_MAX = 64;

/** Whether all bad words are single tokens: longer ones are matched against the tokens of one chunk alone. */
function areStateless(words: readonly string[], { tokensIn }: SamplingContext): boolean {
  return words.every(
    (word) => word.length <= WORD_CHARACTERS_MAX && !/^\s/.test(word) && tokensIn?.(word) === 1,
  );
}

const streamOptions = v.strictObject({ include_usage: f.flag, continuous_usage_stats: f.flag });

const TRANSFER = "the sidecar moves KV between workers itself";

const ABORTS =
  "abort requests (POST /abort_requests) or groups (DELETE /v1/rollouts/:id/groups/:group)";

/** Fields of earlier releases, and what takes their place. */
export const GONE_ENTRIES = { deadline: f.unsupported(ABORTS) } as const;

export const COMMON_ENTRIES = {
  model: v.nullish(f.text),
  stream: f.flag,
  stream_options: v.nullish(streamOptions),
  /** Lower is served earlier. */
  priority: f.integer(-PRIORITY_MAX, PRIORITY_MAX),
  request_id: f.name,
  cache_salt: f.name,
  group_id: f.name,
  ...GONE_ENTRIES,
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

/** Sets the structure that response_format asks for; refuses both fields at once, as one of them would be dropped. */
export function withFormat<T extends OpenAiFields & SamplingFields>(fields: T): T {
  const structure = structureOf(fields.response_format ?? { type: "text" });
  if (structure === null) return fields;
  if ((fields.structured_outputs ?? null) !== null) {
    throw invalid("response_format", "and structured_outputs are both set");
  }
  return { ...fields, structured_outputs: structure };
}

/** OpenAI's response_format as vLLM's structured_outputs; null: free text. @throws InvalidFieldError. */
function structureOf(format: Readonly<Record<string, unknown>>): Record<string, unknown> | null {
  switch (format.type) {
    case "text":
      return null;
    case "json_object":
      return { json_object: true };
    case "structural_tag":
      return { structural_tag: JSON.stringify(format) };
    case "json_schema": {
      const schema = fieldOf(format.json_schema, "schema");
      if (schema === null) throw invalid("response_format.json_schema", "holds no schema");
      return { json: schema };
    }
    default: {
      const problem = `is ${JSON.stringify(format.type)}, not text, json_object, json_schema or structural_tag`;
      throw invalid("response_format.type", problem);
    }
  }
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
