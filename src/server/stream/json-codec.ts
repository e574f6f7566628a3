// Frames of a token stream as JSON text, and the one check of what clients send. Decides nothing.

import * as v from "valibot";
import { parseJson } from "../../core/base/json.ts";
import type { Decoded } from "../../proto/checked.ts";
import { unknownField } from "../openai/unknown-field.ts";
import { type ClientMessage, type Filter, type Frame, GROUP_NAME_MAX } from "./frame.ts";

const uint32 = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(0xffffffff));
const filterFields = {
  request: v.optional(uint32),
  group: v.optional(v.pipe(v.string(), v.minLength(1), v.maxLength(GROUP_NAME_MAX))),
  all: v.optional(v.literal(true)),
  progress: v.optional(v.literal(true)),
};

const ClientMessageSchema = v.strictObject({
  subscribe: v.optional(
    v.strictObject({
      ...filterFields,
      offset: v.optional(uint32),
      attempt: v.optional(uint32),
      text: v.optional(v.boolean()),
    }),
  ),
  unsubscribe: v.optional(v.strictObject(filterFields)),
});

/** Never throws on what a client sent. */
export function decodeJson(text: string): Decoded<ClientMessage> {
  let value: unknown;
  try {
    value = parseJson(text);
  } catch {
    return { kind: "undecodable", problem: "not JSON" };
  }
  return checkedMessage(value);
}

/** A message as JSON has it, whatever the format that it came in. */
export function checkedMessage(value: unknown): Decoded<ClientMessage> {
  const result = v.safeParse(ClientMessageSchema, value, { abortEarly: true });
  if (!result.success) {
    const [issue] = result.issues;
    const isUnknown = issue.type === "strict_object" && issue.expected === "never";
    const problem = isUnknown ? unknownField(ClientMessageSchema, issue.path) : issue.message;
    return invalid(`${v.getDotPath(issue) ?? "frame"}: ${problem}`);
  }
  const { subscribe, unsubscribe } = result.output;
  const fields = subscribe ?? unsubscribe;
  if (fields === undefined || (subscribe !== undefined && unsubscribe !== undefined)) {
    return invalid("a frame holds one of subscribe and unsubscribe");
  }
  const filter = filterOf(fields);
  if (filter === null) return invalid("name one of request, group, all and progress");
  if (subscribe === undefined) return { kind: "ok", message: { kind: "unsubscribe", filter } };
  const { offset = 0, attempt = null, text = false } = subscribe;
  if (filter.kind !== "request" && (offset > 0 || attempt !== null || text)) {
    return invalid("offset, attempt and text are for a request");
  }
  return { kind: "ok", message: { kind: "subscribe", filter, offset, attempt, text } };
}

export function encodeJson(frame: Frame): string {
  const parts = [`{"subscription":${JSON.stringify(frame.subscription)}`];
  const add = (name: string, value: unknown) => parts.push(`"${name}":${JSON.stringify(value)}`);
  if (frame.state !== null) add("state", frame.state);
  if (frame.refused !== null) add("refused", frame.refused);
  if (frame.joined.length > 0) add("joined", frame.joined);
  if (frame.restarted.length > 0) add("restarted", frame.restarted);
  if (frame.requests.length > 0) parts.push(`"tokens":[${tokensJson(frame)}]`);
  if (frame.lengths.length > 0) parts.push(`"lengths":[${lengthsJson(frame)}]`);
  if (frame.finished.length > 0) add("finished", frame.finished);
  if (frame.groupsFinished.length > 0) add("groups_finished", frame.groupsFinished);
  if (frame.weightEpoch !== null) add("weight_epoch", frame.weightEpoch);
  if (frame.progress !== null) add("progress", frame.progress);
  return `${parts.join(",")}}`;
}

function invalid(problem: string): { kind: "invalid_message"; problem: string } {
  return { kind: "invalid_message", problem };
}

function filterOf(fields: {
  request?: number | undefined;
  group?: string | undefined;
  all?: true | undefined;
  progress?: true | undefined;
}): Filter | null {
  const { request, group, all, progress } = fields;
  const named: Filter[] = [];
  if (request !== undefined) named.push({ kind: "request", request });
  if (group !== undefined) named.push({ kind: "group", group });
  if (all !== undefined) named.push({ kind: "all" });
  if (progress !== undefined) named.push({ kind: "progress" });
  return named.length === 1 ? (named[0] ?? null) : null;
}

/** JSON of tokens, written by hand: it is most of the traffic, and JSON.stringify would need an object per response. */
function tokensJson(frame: Frame): string {
  const requests = frame.requests.view();
  const offsets = frame.offsets.view();
  const counts = frame.counts.view();
  const ids = frame.tokenIds.view();
  const hasTexts = frame.texts.length > 0;
  let json = "";
  let at = 0;
  for (let i = 0; i < requests.length; i += 1) {
    const end = at + (counts[i] ?? 0);
    json += `${i === 0 ? "" : ","}{"request":${requests[i]},"offset":${offsets[i]},"token_ids":[`;
    for (let k = at; k < end; k += 1) json += k === at ? `${ids[k]}` : `,${ids[k]}`;
    json += hasTexts ? `],"text":${JSON.stringify(frame.texts[i])}}` : "]}";
    at = end;
  }
  return json;
}

function lengthsJson(frame: Frame): string {
  const requests = frame.lengthRequests.view();
  const lengths = frame.lengths.view();
  let json = "";
  for (let i = 0; i < requests.length; i += 1) {
    json += `${i === 0 ? "" : ","}{"request":${requests[i]},"length":${lengths[i]}}`;
  }
  return json;
}
