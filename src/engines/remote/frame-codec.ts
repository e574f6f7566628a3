// Frames of a worker link to bytes and back, by proto/link.proto. Never throws on what a peer sent.

import type { SamplingSupport, WorkerCapacity } from "../../core/rollout/worker.ts";
import {
  type Decoded,
  decodeAs,
  encodeAs,
  type Fields,
  InvalidMessage,
} from "../../proto/checked.ts";
import {
  bodyOf,
  count,
  epochOf,
  listOf,
  messageOf,
  textOf,
  typeOf,
  viewOf,
  weightsOf,
} from "./fields.ts";
import { ID_BYTES_MAX, NAME_CHARS_MAX, SIDECAR_CHARS_MAX } from "./limits.ts";
import type { Frame, FrameBody, HostLimits, Welcome } from "./message.ts";
import type { SupportTable } from "./support.ts";

const frameType = typeOf("Frame");

/** In the order of the schema's enum, from 1. */
const SUPPORT_KINDS = ["divided", "whole", "refused"] as const;
const SUPPORTS_MAX = 256;
const UINT_MAX = 0xffffffff;

export function encodeFrame({ ack, body }: Frame): Uint8Array {
  switch (body.kind) {
    case "hello":
      return encodeAs(frameType, { ack, hello: body });
    case "welcome":
      return encodeAs(frameType, { ack, welcome: welcomeFields(body) });
    case "data":
      return encodeAs(frameType, { ack, data: body });
    case "heartbeat":
      return encodeAs(frameType, { ack, heartbeat: {} });
    case "bye":
      return encodeAs(frameType, { ack, bye: {} });
  }
}

/** The payload of a data frame is a view of `bytes`. */
export function decodeFrame(bytes: Uint8Array): Decoded<Frame> {
  return decodeAs(frameType, bytes, (fields) => {
    const ack = count(fields, "ack", { max: Number.MAX_SAFE_INTEGER });
    return { ack, body: frameBody(fields) };
  });
}

function frameBody(fields: Fields): FrameBody {
  const { name, body } = bodyOf(fields);
  switch (name) {
    case "hello":
      return {
        kind: name,
        protocolVersion: count(body, "protocolVersion", { max: UINT_MAX }),
        token: textOf(body, "token", NAME_CHARS_MAX),
        sessionId: sessionIdOf(body),
        isNew: body.isNew === true,
        messageBytesMax: count(body, "messageBytesMax", { max: UINT_MAX }),
        kvBytesMax: count(body, "kvBytesMax", { max: Number.MAX_SAFE_INTEGER }),
        sidecarId: textOf(body, "sidecarId", ID_BYTES_MAX),
        sidecarName: textOf(body, "sidecarName", SIDECAR_CHARS_MAX),
      };
    case "welcome":
      return welcomeOf(body);
    case "data":
      return {
        kind: name,
        seq: count(body, "seq", { min: 1, max: Number.MAX_SAFE_INTEGER }),
        more: body.more === true,
        payload: viewOf(body, "payload"),
      };
    case "heartbeat":
    case "bye":
      return { kind: name };
    default:
      throw new InvalidMessage("there is no body");
  }
}

function sessionIdOf(body: Fields): string {
  const sessionId = textOf(body, "sessionId", ID_BYTES_MAX);
  if (sessionId === "") throw new InvalidMessage("sessionId is empty");
  return sessionId;
}

function welcomeFields(welcome: Welcome): object {
  const supports = [...welcome.supports].map(([feature, support]) => ({
    feature,
    ...support,
    kind: SUPPORT_KINDS.indexOf(support.kind) + 1,
  }));
  return { ...welcome, supports, weights: welcome.weights ?? "" };
}

function welcomeOf(body: Fields): Welcome {
  return {
    kind: "welcome",
    protocolVersion: count(body, "protocolVersion", { max: UINT_MAX }),
    epoch: epochOf(body),
    modelId: textOf(body, "modelId", NAME_CHARS_MAX),
    vocabularySize: count(body, "vocabularySize", { min: 1 }),
    workerName: textOf(body, "workerName", NAME_CHARS_MAX),
    capacity: capacityOf(messageOf(body, "capacity")),
    supports: supportsOf(body),
    limits: limitsOf(messageOf(body, "limits")),
    weights: weightsOf(body),
  };
}

function capacityOf(fields: Fields): WorkerCapacity {
  return {
    slots: count(fields, "slots", { min: 1 }),
    kvTokens: count(fields, "kvTokens", { min: 1, max: Number.MAX_SAFE_INTEGER }),
    contextTokens: count(fields, "contextTokens", { min: 1 }),
    kvBytesPerToken: count(fields, "kvBytesPerToken", { max: UINT_MAX }),
  };
}

function supportsOf(body: Fields): SupportTable {
  const table = new Map<string, SamplingSupport>();
  for (const fields of listOf(body, "supports", SUPPORTS_MAX)) {
    const kind = SUPPORT_KINDS[count(fields, "kind") - 1];
    if (kind === undefined) throw new InvalidMessage(`kind is ${fields.kind}`);
    const field = textOf(fields, "field", NAME_CHARS_MAX);
    const reason = textOf(fields, "reason", NAME_CHARS_MAX);
    const support = kind === "refused" ? { kind, field, reason } : { kind };
    table.set(textOf(fields, "feature", NAME_CHARS_MAX), support);
  }
  return table;
}

function limitsOf(fields: Fields): HostLimits {
  return {
    messageBytesMax: count(fields, "messageBytesMax", { max: UINT_MAX }),
    kvBytesMax: count(fields, "kvBytesMax", { max: Number.MAX_SAFE_INTEGER }),
    promptTokensMax: count(fields, "promptTokensMax", { max: UINT_MAX }),
    outputTokensMax: count(fields, "outputTokensMax", { max: UINT_MAX }),
    requestsMax: count(fields, "requestsMax", { min: 1, max: UINT_MAX }),
  };
}
