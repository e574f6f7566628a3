// The one check of what clients of a token stream send. Decides nothing.

import * as v from "valibot";
import type { Decoded } from "../../proto/draft-codec.ts";
import { parseJson } from "../../proto/json.ts";
import { unknownField } from "../openai/fields.ts";

/** Subject of a client's subscription, in one of its fields. progress: lengths and counters some times a second, no tokens. */
export type Filter = Omit<v.InferOutput<typeof SubscribeSchema>, "snapshot" | "resumed">;

export interface Subscribe {
  readonly filter: Filter;
  /** Whether existing responses come with all tokens that the client lacks. Default: new tokens alone. */
  readonly isWhole: boolean;
  /** Output that the client got over earlier connections; null: none. With it complete groups are sent too, as far as kept. */
  readonly resumed: Resumed | null;
}

export interface Resumed {
  /** Number of the server that sent them; another server numbers its responses anew. */
  readonly server: number;
  /** The client has all responses with smaller numbers whole, except those in `have` and unfinished ones. */
  readonly requests: number;
  /** Number of tokens that the client has of a response, and their attempt, by the response's number. */
  readonly have: ReadonlyMap<number, { readonly offset: number; readonly attempt: number }>;
}

/** Limit of a group's name, which is the client's own; the same as in a line of prompts. */
const GROUP_NAME_MAX = 1024;

const uint32 = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(0xffffffff));
const ResumedSchema = v.strictObject({
  server: uint32,
  requests: uint32,
  have: v.pipe(
    v.array(v.tuple([uint32, uint32, uint32])),
    v.transform((all) => new Map(all.map(([id, offset, attempt]) => [id, { offset, attempt }]))),
  ),
});
const SubscribeSchema = v.strictObject({
  request: v.optional(uint32),
  group: v.optional(v.pipe(v.string(), v.minLength(1), v.maxLength(GROUP_NAME_MAX))),
  all: v.optional(v.literal(true)),
  progress: v.optional(v.literal(true)),
  snapshot: v.optional(v.boolean()),
  resumed: v.optional(ResumedSchema),
});

const ClientMessageSchema = v.strictObject({ subscribe: SubscribeSchema });

/** Decodes and checks a client's message; never throws. */
export function decodeClientMessage(text: string): Decoded<Subscribe> {
  let value: unknown;
  try {
    value = parseJson(text);
  } catch {
    return { kind: "undecodable", problem: "not JSON" };
  }
  const result = v.safeParse(ClientMessageSchema, value, { abortEarly: true });
  if (!result.success) {
    const [issue] = result.issues;
    const isUnknown = issue.type === "strict_object" && issue.expected === "never";
    const problem = isUnknown ? unknownField(ClientMessageSchema, issue.path) : issue.message;
    return invalid(`${v.getDotPath(issue) ?? "frame"}: ${problem}`);
  }
  const { snapshot = false, resumed = null, ...filter } = result.output.subscribe;
  if (Object.keys(filter).length !== 1) {
    return invalid("name one of request, group, all and progress");
  }
  return { kind: "ok", message: { filter, isWhole: snapshot || resumed !== null, resumed } };
}

function invalid(problem: string): { kind: "invalid_message"; problem: string } {
  return { kind: "invalid_message", problem };
}
