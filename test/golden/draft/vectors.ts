// Frames of the draft protocol as this host writes them, with what they say. `canonical` is the same frame without
// fields that hold their default, which is what another protobuf runtime writes.

import protobuf from "protobufjs";
import { groupId, weightEpoch } from "../../../src/core/base/ids.ts";
import type { ClientMessage, ServerMessage } from "../../../src/core/draft/service/message.ts";
import { decodeClientMessage, encodeServerMessage } from "../../../src/proto/draft-codec.ts";
import { decodeServerMessage, encodeClientMessage } from "../../suite/draft-client.ts";
import { NO_TELEMETRY } from "../../suite/no-figures.ts";

export interface GoldenFrame {
  readonly name: string;
  readonly side: "client" | "server";
  readonly frame: string;
  readonly canonical: string;
  /** The one field that is set, as protobuf's own JSON has it (snake_case, bytes as base64, enums by name). */
  readonly body: unknown;
}

const EPOCH = weightEpoch(3);
const A = groupId("g7:naïve-π");

const CLIENT: Readonly<Record<string, ClientMessage>> = {
  hello: { kind: "hello", protocolVersion: 1 },
  hello_of_a_release: { kind: "hello", protocolVersion: 1, release: "0.1.0" },
  hello_named: { kind: "hello", protocolVersion: 1, engine: "http://127.0.0.1:8001" },
  register: {
    kind: "register_group",
    epoch: EPOCH,
    groupId: A,
    ttlMs: 900_000,
    prompt: Int32Array.of(0, 1, 70_000, 2_147_483_647),
  },
  register_empty: {
    kind: "register_group",
    epoch: weightEpoch(0),
    groupId: groupId("g"),
    ttlMs: 1,
    prompt: Int32Array.of(),
  },
  update: {
    kind: "update",
    epoch: EPOCH,
    groups: [
      { groupId: A, deltas: [{ sampleIndex: 0, offset: 0, tokens: Int32Array.of(0) }] },
      {
        groupId: groupId("b"),
        deltas: [
          { sampleIndex: 4095, offset: 16_777_000, tokens: Int32Array.of(5, 6, 7) },
          { sampleIndex: 1, offset: 12, tokens: Int32Array.of(8) },
        ],
      },
    ],
  },
  fetch: {
    kind: "fetch",
    epoch: EPOCH,
    states: [
      { groupId: A, have: [0, 300, 16_777_215] },
      { groupId: groupId("b"), have: [] },
    ],
  },
  telemetry: {
    kind: "telemetry",
    epoch: EPOCH,
    running: 32,
    waiting: 0,
    kvUsage: 0.5,
    isLossless: true,
    steps: 9_007_199_254_740_991,
    stepUs: 12.5,
    proposeUs: 0.25,
    drafted: 1_000,
    accepted: 400,
    traced: 60,
    tracedElsewhere: 7,
    faults: 1,
    stepError: 0.125,
    repeatsSeeds: true,
  },
  telemetry_unknown: { ...NO_TELEMETRY, isLossless: false },
  fetch_past: { kind: "fetch_past", epoch: EPOCH, groupId: A, have: 2 },
};

const WELCOME = {
  ...({ kind: "welcome", protocolVersion: 1 } as const),
  ...{ epoch: EPOCH, frameBytesMax: 1_048_576 },
};
const REGISTERED = { kind: "registered", epoch: EPOCH, groupId: A } as const;

const SERVER: Readonly<Record<string, ServerMessage>> = {
  welcome: { ...WELCOME, instanceId: 4_294_967_295 },
  welcome_past: { ...WELCOME, instanceId: 5, hasPast: true },
  past: {
    kind: "past",
    epoch: EPOCH,
    status: "ok",
    groupId: A,
    have: 2,
    responses: [Int32Array.of(1, 2, 0x7fffffff), Int32Array.of(4)],
    more: true,
  },
  welcome_telemetry: { ...WELCOME, instanceId: 0, epoch: weightEpoch(0), telemetryMs: 1_000 },
  registered: { ...REGISTERED, status: "ok", version: 9, have: [0, 0, 7] },
  conflict: { ...REGISTERED, status: "conflict", version: 0, have: [] },
  updated: {
    kind: "updated",
    epoch: EPOCH,
    status: "ok",
    refusals: [
      { groupId: A, sampleIndex: 2, reason: "gap", have: 40 },
      { groupId: groupId("b"), sampleIndex: 0, reason: "unknown", have: 0 },
    ],
  },
  stale: { kind: "updated", epoch: EPOCH, status: "stale_epoch", refusals: [] },
  fetched: {
    kind: "fetched",
    epoch: EPOCH,
    status: "ok",
    groups: [
      {
        groupId: A,
        version: 12,
        deltas: [{ sampleIndex: 3, offset: 1, tokens: Int32Array.of(1, 2) }],
        behind: [{ sampleIndex: 0, have: 4 }],
      },
    ],
    unknown: [groupId("gone")],
    more: true,
  },
  budget: { kind: "budget", epoch: EPOCH, stepTokens: 0, ttlMs: 10_000 },
  budget_unbounded: { kind: "budget", epoch: EPOCH, stepTokens: 2_147_483_647, ttlMs: 1 },
};

const schema = protobuf.loadSync(new URL("../../../proto/draft.proto", import.meta.url).pathname);
schema.resolveAll();

export function draftVectors(): GoldenFrame[] {
  const client = Object.entries(CLIENT).map(([name, message]) =>
    vector(name, "client", encodeClientMessage(message)),
  );
  const server = Object.entries(SERVER).map(([name, message]) =>
    vector(name, "server", encodeServerMessage(message)),
  );
  return [...client, ...server];
}

/** The message that this implementation decodes a canonical frame to. */
export function understood({ side, canonical }: GoldenFrame): unknown {
  const bytes = Buffer.from(canonical, "hex");
  return side === "client"
    ? decodeClientMessage(bytes)
    : { kind: "ok", message: decodeServerMessage(bytes) };
}

export function said({ side, name }: GoldenFrame): unknown {
  return side === "client" ? CLIENT[name] : SERVER[name];
}

function vector(name: string, side: "client" | "server", frame: Uint8Array): GoldenFrame {
  const type = schema.lookupType(
    side === "client" ? "foretoken.draft.v1.ClientFrame" : "foretoken.draft.v1.ServerFrame",
  );
  const plain = without(type, type.decode(frame) as unknown as Record<string, unknown>);
  return {
    name,
    side,
    frame: Buffer.from(frame).toString("hex"),
    canonical: Buffer.from(type.encode(plain as unknown as protobuf.Message).finish()).toString(
      "hex",
    ),
    body: snake(
      type.toObject(plain as unknown as protobuf.Message, { bytes: String, enums: String }),
    ),
  };
}

/** The message without fields that hold their default; a field of a oneof counts whatever it holds. */
function without(type: protobuf.Type, message: Record<string, unknown>): Record<string, unknown> {
  const kept: Record<string, unknown> = {};
  for (const field of type.fieldsArray) {
    const value = message[field.name];
    if (value === undefined || value === null || !Object.hasOwn(message, field.name)) continue;
    const inner = field.resolvedType instanceof protobuf.Type ? field.resolvedType : null;
    if (Array.isArray(value)) {
      if (value.length === 0) continue;
      kept[field.name] = inner === null ? value : value.map((one) => without(inner, one));
    } else if (inner !== null) kept[field.name] = without(inner, value as Record<string, unknown>);
    else if (value instanceof Uint8Array ? value.length > 0 : Boolean(value)) {
      kept[field.name] = value;
    }
  }
  return kept;
}

function snake(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(snake);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, inner]) => [
      key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      snake(inner),
    ]),
  );
}
