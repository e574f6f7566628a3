// Frames of the draft protocol as this host writes them, with what they say. `canonical` is the same frame without fields
// that hold their default, as another protobuf runtime writes it; it and `body` are the file's, of which the plugin's tests
// know what Python's runtime makes. A new frame has neither at first: those tests print them.

import { readFileSync } from "node:fs";
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

const FILE = new URL("frames.json", import.meta.url);

export function draftVectors(): GoldenFrame[] {
  const known = new Map(
    (JSON.parse(readFileSync(FILE, "utf8")) as GoldenFrame[]).map((one) => [one.name, one]),
  );
  const vector = (name: string, side: GoldenFrame["side"], bytes: Uint8Array): GoldenFrame => {
    const frame = Buffer.from(bytes).toString("hex");
    const { canonical = frame, body = null } = known.get(name) ?? {};
    return { name, side, frame, canonical, body };
  };
  return [
    ...Object.entries(CLIENT).map(([name, one]) =>
      vector(name, "client", encodeClientMessage(one)),
    ),
    ...Object.entries(SERVER).map(([name, one]) =>
      vector(name, "server", encodeServerMessage(one)),
    ),
  ];
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
