// The engine's end of the draft protocol, as the plugin has it in Python: messages to frames, and the server's frames to
// messages. It checks nothing: what the server says is the tests' business.

import { readFileSync } from "node:fs";
import protobuf from "protobufjs";
import {
  type ClientMessage,
  REFUSAL_REASONS,
  type ServerMessage,
} from "../../src/core/draft/service/message.ts";

const SCHEMA = new URL("../../proto/draft.proto", import.meta.url);
const { root } = protobuf.parse(readFileSync(SCHEMA, "utf8"));
const clientFrame = root.lookupType("foretoken.draft.v1.ClientFrame");
const serverFrame = root.lookupType("foretoken.draft.v1.ServerFrame");
const STATUSES = ["ok", "stale_epoch", "conflict", "full"] as const;

const toBytes = (tokens: Int32Array) =>
  new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
const toTokens = (bytes: Uint8Array) => new Int32Array(new Uint8Array(bytes).buffer);

function fieldsOf(message: ClientMessage): object {
  switch (message.kind) {
    case "hello":
      return { hello: message };
    case "register_group":
      return { registerGroup: { ...message, prompt: toBytes(message.prompt) } };
    case "update": {
      const groups = message.groups.map(({ groupId, deltas }) => ({
        groupId,
        deltas: deltas.map((delta) => ({ ...delta, tokens: toBytes(delta.tokens) })),
      }));
      return { update: { epoch: message.epoch, groups } };
    }
    case "fetch":
      return { fetch: message };
    case "telemetry": {
      const { waiting, kvUsage } = message;
      return { telemetry: { ...message, waiting: waiting ?? -1, kvUsage: kvUsage ?? -1 } };
    }
    case "fetch_past":
      return { fetchPast: message };
  }
}

export function encodeClientMessage(message: ClientMessage): Uint8Array {
  return clientFrame.encode(fieldsOf(message) as protobuf.Message).finish();
}

interface Wire {
  readonly status: number;
  readonly groups: { deltas: { tokens: Uint8Array }[] }[];
  readonly refusals: { reason: number }[];
  readonly responses: Uint8Array[];
  readonly telemetryMs: number;
  readonly hasPast: boolean;
}

/** @throws where it is no frame of the server. */
export function decodeServerMessage(frame: Uint8Array): ServerMessage {
  const options = { defaults: true, arrays: true, longs: Number, oneofs: true };
  const plain = serverFrame.toObject(serverFrame.decode(frame), options);
  const kind = plain.body as ServerMessage["kind"];
  const { telemetryMs, hasPast, ...fields } = plain[kind] as Wire;
  const message = { kind, ...fields } as object;
  const status = { status: STATUSES[fields.status - 1] };
  switch (kind) {
    case "welcome":
      if (telemetryMs > 0) Object.assign(message, { telemetryMs });
      if (hasPast) Object.assign(message, { hasPast });
      break;
    case "registered":
      Object.assign(message, status);
      break;
    case "updated": {
      const refusals = fields.refusals.map((one) => ({
        ...one,
        reason: REFUSAL_REASONS[one.reason - 1],
      }));
      Object.assign(message, status, { refusals });
      break;
    }
    case "fetched": {
      const groups = fields.groups.map((group) => ({
        ...group,
        deltas: group.deltas.map((delta) => ({ ...delta, tokens: toTokens(delta.tokens) })),
      }));
      Object.assign(message, status, { groups });
      break;
    }
    case "past":
      Object.assign(message, status, { responses: fields.responses.map(toTokens) });
      break;
  }
  return message as ServerMessage;
}
