// Fields that the OpenAI-shaped endpoints share besides sampling parameters.

import * as v from "valibot";
import { TOKENS_MAX } from "../../core/request/sampling-bounds.ts";
import { PRIORITY_MAX } from "../../core/schedule/policy.ts";
import { invalid } from "../route.ts";
import * as f from "./fields.ts";
import { VERSION_FIELD } from "./origin.ts";
import { MAX_TOKENS_FIELD, type SamplingFields } from "./sampling-fields.ts";

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
