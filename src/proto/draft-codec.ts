// Frames of the draft service, by proto/draft.proto: decodes the engines' messages, and encodes the answers. Every decoded
// field is checked here, once: an empty frame, or a frame of another schema, can be valid protobuf. It never throws,
// whatever a peer sent.

import protobuf from "protobufjs";
import schema from "../../proto/draft.proto" with { type: "text" };
import { assert } from "../core/base/assert.ts";
import { type GroupId, groupId, type WeightEpoch, weightEpoch } from "../core/base/ids.ts";
import {
  ENGINE_NAME_BYTES_MAX,
  GROUP_ID_BYTES_MAX,
  idBytes,
  LOG_TOKENS_MAX,
  SAMPLES_MAX,
  TOKEN_BYTES,
  TTL_MS_MAX,
} from "../core/draft/service/limits.ts";
import {
  type CacheState,
  type ClientMessage,
  type GroupDelta,
  REFUSAL_REASONS,
  type RegisterStatus,
  type SampleDelta,
  type ServerMessage,
  type Telemetry,
} from "../core/draft/service/message.ts";

const { root } = protobuf.parse(schema);
const clientFrame = root.lookupType("foretoken.draft.v1.ClientFrame");
const serverFrame = root.lookupType("foretoken.draft.v1.ServerFrame");

/** Statuses in the order of the schema's enum, from 1. */
const STATUSES = ["ok", "stale_epoch", "conflict", "full"] as const;

/** Tokens are sent in their memory layout; every host of Bun is little-endian. */
assert(new Uint8Array(Int32Array.of(1).buffer)[0] === 1, "the host is little-endian");

const encoded = (fields: object): Uint8Array =>
  serverFrame.encode(fields as protobuf.Message).finish();

export function encodeServerMessage(message: ServerMessage): Uint8Array {
  switch (message.kind) {
    case "welcome":
      return encoded({ welcome: message });
    case "registered":
      return encoded({ registered: { ...message, status: statusNumber(message) } });
    case "updated": {
      const refusals = message.refusals.map((refusal) => ({
        ...refusal,
        reason: REFUSAL_REASONS.indexOf(refusal.reason) + 1,
      }));
      return encoded({ updated: { ...message, status: statusNumber(message), refusals } });
    }
    case "fetched": {
      const groups = message.groups.map((group) => ({
        ...group,
        deltas: group.deltas.map((delta) => ({ ...delta, tokens: toBytes(delta.tokens) })),
      }));
      return encoded({ fetched: { ...message, status: statusNumber(message), groups } });
    }
    case "budget":
      return encoded({ budget: message });
    case "past": {
      const responses = message.responses.map(toBytes);
      return encoded({ past: { ...message, status: statusNumber(message), responses } });
    }
  }
}

export function decodeClientMessage(frame: Uint8Array): Decoded<ClientMessage> {
  let fields: RawFields;
  try {
    fields = clientFrame.decode(frame) as unknown as RawFields;
  } catch (error) {
    return { kind: "undecodable", problem: error instanceof Error ? error.message : "unreadable" };
  }
  try {
    return { kind: "ok", message: clientMessage(fields) };
  } catch (error) {
    if (!(error instanceof InvalidMessage)) throw error;
    return { kind: "invalid_message", problem: error.message };
  }
}

function clientMessage(frame: RawFields): ClientMessage {
  const kind = frame.body;
  const body = (typeof kind === "string" ? (frame[kind] as RawFields) : null) ?? {};
  switch (kind) {
    case "hello":
      return {
        kind,
        protocolVersion: count(body, "protocolVersion"),
        ...nameOf(body, "engine"),
        ...nameOf(body, "release"),
      };
    case "registerGroup": {
      const ttlMs = count(body, "ttlMs", { min: 1, max: TTL_MS_MAX });
      const prompt = tokensOf(body, "prompt");
      return { kind: "register_group", epoch: epochOf(body), groupId: idOf(body), ttlMs, prompt };
    }
    case "update":
      return { kind, epoch: epochOf(body), groups: listOf(body, "groups").map(groupDelta) };
    case "fetch":
      return { kind, epoch: epochOf(body), states: listOf(body, "states").map(cacheState) };
    case "telemetry":
      return telemetryOf(body);
    case "fetchPast": {
      const have = count(body, "have", { max: SAMPLES_MAX });
      return { kind: "fetch_past", epoch: epochOf(body), groupId: idOf(body), have };
    }
    default:
      throw new InvalidMessage("the frame has no body");
  }
}

function groupDelta(fields: RawFields): GroupDelta {
  return { groupId: idOf(fields), deltas: listOf(fields, "deltas").map(sampleDelta) };
}

function sampleDelta(fields: RawFields): SampleDelta {
  const tokens = tokensOf(fields, "tokens");
  if (tokens.length === 0) throw new InvalidMessage("tokens is empty");
  const sampleIndex = count(fields, "sampleIndex", { max: SAMPLES_MAX - 1 });
  const offset = count(fields, "offset", { max: LOG_TOKENS_MAX - tokens.length });
  return { sampleIndex, offset, tokens };
}

function cacheState(fields: RawFields): CacheState {
  const have = fields.have as readonly number[];
  if (have.length > SAMPLES_MAX) throw new InvalidMessage(`have names ${have.length} samples`);
  for (const tokens of have) count({ have: tokens }, "have", { max: LOG_TOKENS_MAX });
  return { groupId: idOf(fields), have };
}

function nameOf<F extends "engine" | "release">(raw: RawFields, field: F): { [K in F]?: string } {
  const name = raw[field] as string;
  if (name === "") return {};
  if (idBytes(name) <= ENGINE_NAME_BYTES_MAX) return { [field]: name } as { [K in F]: string };
  throw new InvalidMessage(`${field} takes more than ${ENGINE_NAME_BYTES_MAX} bytes`);
}

function telemetryOf(fields: RawFields): Telemetry {
  const waiting = fields.waiting as number;
  const kvUsage = fields.kvUsage as number;
  return {
    kind: "telemetry",
    epoch: epochOf(fields),
    running: count(fields, "running"),
    waiting: waiting < 0 ? null : waiting,
    kvUsage: kvUsage < 0 ? null : count(fields, "kvUsage", { max: 1 }),
    isLossless: fields.isLossless === true,
    steps: total(fields, "steps"),
    stepUs: total(fields, "stepUs"),
    proposeUs: total(fields, "proposeUs"),
    drafted: total(fields, "drafted"),
    accepted: total(fields, "accepted"),
    traced: total(fields, "traced"),
    tracedElsewhere: total(fields, "tracedElsewhere"),
    faults: total(fields, "faults"),
    stepError: total(fields, "stepError"),
    repeatsSeeds: fields.repeatsSeeds === true,
  };
}

/** A total since the engine's start. NaN and negative totals are refused. */
function total(fields: RawFields, name: string): number {
  return count(fields, name, { max: Number.MAX_SAFE_INTEGER });
}

function listOf(fields: RawFields, name: string): readonly RawFields[] {
  return fields[name] as readonly RawFields[];
}

function count(raw: RawFields, name: string, range: { min?: number; max?: number } = {}): number {
  const value = raw[name] as number;
  const { min = 0, max = 0xffffffff } = range;
  if (value >= min && value <= max) return value;
  throw new InvalidMessage(`${name} is ${value}, not in [${min}, ${max}]`);
}

function epochOf(fields: RawFields): WeightEpoch {
  return weightEpoch(count(fields, "epoch"));
}

function idOf(fields: RawFields): GroupId {
  const id = fields.groupId as string;
  if (id === "" || idBytes(id) > GROUP_ID_BYTES_MAX) {
    throw new InvalidMessage(`group_id is empty or takes more than ${GROUP_ID_BYTES_MAX} bytes`);
  }
  return groupId(id);
}

function statusNumber(message: { status: RegisterStatus }): number {
  return STATUSES.indexOf(message.status) + 1;
}

function toBytes(tokens: Int32Array): Uint8Array {
  return new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
}

/** Copies the tokens: the frame's bytes may not be aligned, and belong to the socket. */
function tokensOf(fields: RawFields, name: string): Int32Array {
  const bytes = fields[name] as Uint8Array;
  if (bytes.length % TOKEN_BYTES !== 0) throw new InvalidMessage(`${name} ends within a token`);
  const tokens = new Int32Array(bytes.length / TOKEN_BYTES);
  new Uint8Array(tokens.buffer).set(bytes);
  const wrong = tokens.findIndex((token) => token < 0);
  if (wrong < 0) return tokens;
  throw new InvalidMessage(`${name}[${wrong}] is ${tokens[wrong]}, below 0`);
}

export type Decoded<M> =
  | { readonly kind: "ok"; readonly message: M }
  /** The bytes are not protobuf of this schema. */
  | { readonly kind: "undecodable"; readonly problem: string }
  /** A field is missing or out of its range. */
  | { readonly kind: "invalid_message"; readonly problem: string };

/** A message as protobufjs decodes it: fields in camel case, defaults for absent ones. */
type RawFields = Readonly<Record<string, unknown>>;

/** Thrown by the checks below and caught in `decodeClientMessage`, nowhere else. */
class InvalidMessage extends Error {}
