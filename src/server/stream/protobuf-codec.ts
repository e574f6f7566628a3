// Frames of a token stream as protobuf, by proto/stream.proto; fields have the names that they have in JSON. Columns of
// numbers are `repeated fixed32`, whose layout on the wire is that in memory: encoding them is a copy. Never throws on a
// client's input.

import protobuf from "protobufjs";
import schema from "../../../proto/stream.proto" with { type: "text" };
import { assert } from "../../core/base/assert.ts";
import type { Decoded } from "../../proto/checked.ts";
import type { ClientMessage, Column, Frame } from "./frame.ts";
import { checkedMessage } from "./json-codec.ts";

const { root } = protobuf.parse(schema, { keepCase: true });
const clientFrame = root.lookupType("foretoken.stream.v1.ClientFrame");
const streamFrame = root.lookupType("foretoken.stream.v1.StreamFrame");

/** States in the order of the schema's enum, from 1. */
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
  tokenIds: tagOf("Tokens", "token_ids"),
  texts: tagOf("Tokens", "texts"),
  lengths: tagOf("StreamFrame", "lengths"),
  lengthRequests: tagOf("Lengths", "requests"),
  lengthLengths: tagOf("Lengths", "lengths"),
};

assert(new Uint8Array(Uint32Array.of(1).buffer)[0] === 1, "the host is little-endian");

type Fields = Record<string, unknown>;

export function decodeProtobuf(bytes: Uint8Array): Decoded<ClientMessage> {
  let fields: Fields;
  try {
    fields = clientFrame.toObject(clientFrame.decode(bytes));
  } catch (error) {
    return { kind: "undecodable", problem: error instanceof Error ? error.message : "unreadable" };
  }
  if (fields.subscribe === undefined) return checkedMessage(fields);
  // JSON has the filter among the other fields.
  const { filter, ...rest } = fields.subscribe as Fields;
  return checkedMessage({ subscribe: { ...(filter as Fields | undefined), ...rest } });
}

export function encodeProtobuf(frame: Frame): Uint8Array {
  const { subscription, state, refused, joined, restarted, finished, weightEpoch } = frame;
  const writer = protobuf.Writer.create();
  const fields: Fields = { subscription, joined, restarted, finished };
  fields.groups_finished = frame.groupsFinished;
  if (state !== null) fields.state = STATES.indexOf(state) + 1;
  if (refused !== null) fields.refused = refused;
  if (weightEpoch !== null) fields.weight_epoch = weightEpoch;
  if (frame.progress !== null) fields.progress = frame.progress;
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

function bytesOf(column: Column): Uint8Array {
  const { buffer, byteOffset, byteLength } = column.view();
  return new Uint8Array(buffer, byteOffset, byteLength);
}
