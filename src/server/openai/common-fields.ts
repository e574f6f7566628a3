// Fields that the OpenAI-shaped endpoints share besides sampling parameters.

import * as v from "valibot";
import { TOKENS_MAX } from "../../core/request/sampling-bounds.ts";
import {
  fieldsOfAnyKind,
  flag,
  ignored,
  integer,
  name,
  oneOf,
  text,
  unsupported,
} from "./fields.ts";
import { VERSION_FIELD } from "./origin.ts";
import { invalid, MAX_TOKENS_FIELD, refusedTransfer } from "./sampling-fields.ts";

const streamOptions = v.strictObject({ include_usage: flag, continuous_usage_stats: flag });

export const COMMON_ENTRIES = {
  model: v.nullish(text),
  stream: flag,
  stream_options: v.nullish(streamOptions),
  /** Lower is served earlier. */
  priority: integer(-(2 ** 31), 2 ** 31 - 1),
  request_id: name,
  cache_salt: name,
  group_id: name,
  kv_transfer_params: refusedTransfer,
  ec_transfer_params: refusedTransfer,
  /** Chunks carry what has come by the time that the client takes them. */
  stream_interval: ignored,
  /** The conversation that the prompt is a turn of. */
  session_id: name,
  /** Of the weights that the client expects. */
  policy_version: VERSION_FIELD,
  weight_version: VERSION_FIELD,
} as const;

export const OPENAI_ENTRIES = {
  return_token_ids: flag,
  return_tokens_as_token_ids: flag,
  add_special_tokens: flag,
  /** -1: as many as leave room for max_tokens; the last ones stay, unless `truncation_side` is "right". */
  truncate_prompt_tokens: integer(-1, TOKENS_MAX),
  truncation_side: oneOf("left", "right"),
  response_format: v.nullish(fieldsOfAnyKind),
  vllm_xargs: v.nullish(fieldsOfAnyKind),
  max_tokens: MAX_TOKENS_FIELD,
  // Change nothing in the answer.
  user: ignored,
  metadata: ignored,
  store: ignored,
  service_tier: ignored,
  safety_identifier: ignored,
  prompt_cache_key: ignored,
  return_token_offsets: ignored,
  return_mm_kwargs: ignored,
  mm_payload: unsupported("prompts are text"),
  watermarking: unsupported("no worker marks its samples", false),
} as const;

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

/** With both set, one of them would be dropped. */
export function withFormat<
  T extends {
    readonly structured_outputs?: Record<string, unknown> | null | undefined;
    readonly response_format?: Record<string, unknown> | null | undefined;
  },
>(fields: T): T {
  const structure = structureOf(fields.response_format);
  if (structure === null) return fields;
  if (fields.structured_outputs !== null && fields.structured_outputs !== undefined) {
    throw invalid("response_format", "and structured_outputs are both set");
  }
  return { ...fields, structured_outputs: structure };
}

export function truncated(
  tokens: readonly number[] | Int32Array,
  about: {
    readonly keep: number | null | undefined;
    readonly side: "left" | "right" | null | undefined;
    /** The value of -1. */
    readonly room: number;
  },
): readonly number[] | Int32Array {
  const { keep, side, room } = about;
  if (keep === null || keep === undefined) return tokens;
  const most = keep === -1 ? Math.max(0, room) : keep;
  if (tokens.length <= most) return tokens;
  return side === "right" ? tokens.slice(0, most) : tokens.slice(tokens.length - most);
}

export interface Usage {
  readonly atEnd: boolean;
  readonly always: boolean;
}

/** @throws InvalidFieldError: stream_options belongs to streams. */
export function usageWanted(fields: {
  readonly stream?: boolean | null | undefined;
  readonly stream_options?:
    | {
        readonly include_usage?: boolean | null | undefined;
        readonly continuous_usage_stats?: boolean | null | undefined;
      }
    | null
    | undefined;
}): Usage {
  const options = fields.stream_options ?? null;
  if (options !== null && fields.stream !== true) {
    throw invalid("stream_options", "is set, but stream is not true");
  }
  const atEnd = options?.include_usage ?? false;
  return { atEnd, always: atEnd && (options?.continuous_usage_stats ?? false) };
}
