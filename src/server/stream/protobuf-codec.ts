// Frames of a token stream as protobuf, by proto/stream.proto. Columns of numbers are `repeated fixed32`,
// whose layout on the wire is that in memory: encoding them is a copy. Never throws on a client's input.

import protobuf from "protobufjs";
import schema from "../../../proto/stream.proto" with { type: "text" };
import { assert } from "../../core/base/assert.ts";
import type { Decoded } from "../../proto/checked.ts";
import {
  type ClientMessage,
  type Column,
  type Filter,
  type Frame,
  GROUP_NAME_MAX,
} from "./frame.ts";
import { subscribeMessage } from "./json-codec.ts";

const { root } = protobuf.parse(schema);
const clientFrame = root.lookupType("foretoken.stream.v1.ClientFrame");
const streamFrame = root.lookupType("foretoken.stream.v1.StreamFrame");

/** In the order of the schema's enum, from 1. */
const STATES = ["subscribed", "unsubscribed", "ended"] as const;

/** Wire type 2 of protobuf: a length, then that many bytes. */
const LENGTH_DELIMITED = 2;
const tagOf = (type: string, field: string): number => {
  const { id } = root.lookupType(`foretoken.stream.v1.${type}`).fields[field] ?? {};
  assert(id !== undefined, `the schema has ${type}.${field}`);
  return (id << 3) | LENGTH_DELIMITED;
};
const TAG = {
  tokens: tagOf("StreamFrame", "tokens"),
  requests: tagOf("Tokens", "requests"),
  offsets: tagOf("Tokens", "offsets"),
  counts: tagOf("Tokens", "counts"),
  tokenIds: tagOf("Tokens", "tokenIds"),
  texts: tagOf("Tokens", "texts"),
  lengths: tagOf("StreamFrame", "lengths"),
  lengthRequests: tagOf("Lengths", "requests"),
  lengthLengths: tagOf("Lengths", "lengths"),
};

assert(new Uint8Array(Uint32Array.of(1).buffer)[0] === 1, "the host is little-endian");

interface FilterFields {
  readonly of?: string;
  readonly request: number;
  readonly group: string;
  readonly all: boolean;
  readonly progress: boolean;
}

interface ClientFields {
  readonly subscribe: {
    readonly filter: FilterFields | null;
    readonly offset: number;
    readonly attempt: number;
    readonly _attempt?: string;
    readonly text: boolean;
  } | null;
  readonly unsubscribe: FilterFields | null;
}

export function decodeProtobuf(bytes: Uint8Array): Decoded<ClientMessage> {
  let fields: ClientFields;
  try {
    fields = clientFrame.decode(bytes) as unknown as ClientFields;
  } catch (error) {
    return { kind: "undecodable", problem: error instanceof Error ? error.message : "unreadable" };
  }
  const { subscribe, unsubscribe } = fields;
  const filter = filterOf(subscribe === null ? unsubscribe : subscribe.filter);
  if (filter === null) {
    return { kind: "invalid_message", problem: "name one of request, group, all and progress" };
  }
  if (subscribe === null) return { kind: "ok", message: { kind: "unsubscribe", filter } };
  // protobufjs names an optional field that is there under the name of its own oneof.
  const attempt = subscribe._attempt === undefined ? null : subscribe.attempt;
  const { offset, text } = subscribe;
  return subscribeMessage(filter, { offset, attempt, text });
}

export function encodeProtobuf(frame: Frame): Uint8Array {
  const { state, refused, joined, restarted, finished, groupsFinished } = frame;
  const writer = protobuf.Writer.create();
  const fields: Record<string, unknown> = { subscription: frame.subscription };
  if (state !== null) fields.state = STATES.indexOf(state) + 1;
  if (refused !== null) fields.refused = refused;
  if (joined.length > 0) {
    fields.joined = joined.map((one) => ({ ...one, promptTokens: one.prompt_tokens }));
  }
  if (restarted.length > 0) fields.restarted = restarted;
  if (finished.length > 0) {
    fields.finished = finished.map((one) => ({
      ...one,
      finishReason: one.finish_reason,
      weightEpoch: one.weight_epoch,
    }));
  }
  if (groupsFinished.length > 0) fields.groupsFinished = groupsFinished;
  if (frame.weightEpoch !== null) fields.weightEpoch = frame.weightEpoch;
  if (frame.progress !== null) fields.progress = progressFields(frame.progress);
  streamFrame.encode(fields as unknown as protobuf.Message, writer);
  if (frame.requests.length > 0) {
    writer.uint32(TAG.tokens).fork();
    writer.uint32(TAG.requests).bytes(bytesOf(frame.requests));
    writer.uint32(TAG.offsets).bytes(bytesOf(frame.offsets));
    writer.uint32(TAG.counts).bytes(bytesOf(frame.counts));
    writer.uint32(TAG.tokenIds).bytes(bytesOf(frame.tokenIds));
    for (const text of frame.texts) writer.uint32(TAG.texts).string(text);
    writer.ldelim();
  }
  if (frame.lengths.length > 0) {
    writer.uint32(TAG.lengths).fork();
    writer.uint32(TAG.lengthRequests).bytes(bytesOf(frame.lengthRequests));
    writer.uint32(TAG.lengthLengths).bytes(bytesOf(frame.lengths));
    writer.ldelim();
  }
  return writer.finish();
}

/** Names in camel case, as protobufjs has them. */
function progressFields(progress: NonNullable<Frame["progress"]>): object {
  const workers = progress.workers.map(camelCase);
  return { ...camelCase(progress), workers };
}

function camelCase(fields: object): Record<string, unknown> {
  const renamed: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields)) {
    renamed[name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase())] = value;
  }
  return renamed;
}

function bytesOf(column: Column): Uint8Array {
  const { buffer, byteOffset, byteLength } = column.view();
  return new Uint8Array(buffer, byteOffset, byteLength);
}

function filterOf(fields: FilterFields | null): Filter | null {
  switch (fields?.of) {
    case "request":
      return { kind: "request", request: fields.request };
    case "group": {
      const { group } = fields;
      if (group === "" || group.length > GROUP_NAME_MAX) return null;
      return { kind: "group", group };
    }
    case "all":
      return fields.all ? { kind: "all" } : null;
    case "progress":
      return fields.progress ? { kind: "progress" } : null;
    default:
      return null;
  }
}
