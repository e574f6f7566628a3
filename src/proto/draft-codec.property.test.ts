// Every message survives its frame; every frame cut short or altered gives a value, never a throw, and
// what is decoded lies within the bounds; frames are no larger than the service reckons.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { kind } from "../../test/suite/arbitraries.ts";
import { decodeServerMessage, encodeClientMessage } from "../../test/suite/draft-client.ts";
import { draftMessages } from "../../test/suite/draft-messages.ts";
import { groupId, weightEpoch } from "../core/base/ids.ts";
import {
  COUNT_BYTES,
  DELTA_OVERHEAD_BYTES,
  FRAME_OVERHEAD_BYTES,
  GROUP_OVERHEAD_BYTES,
  idBytes,
  LOG_TOKENS_MAX,
  SAMPLES_MAX,
  STEP_TOKENS_UNBOUNDED,
  TOKEN_BYTES,
  TTL_MS_MAX,
} from "../core/draft/service/limits.ts";
import {
  type ClientMessage,
  REFUSAL_REASONS,
  type SampleDelta,
  type ServerMessage,
} from "../core/draft/service/message.ts";
import { type Decoded, decodeClientMessage, encodeServerMessage } from "./draft-codec.ts";

const uint32 = fc.integer({ min: 0, max: 0xffffffff });
const positive = fc.integer({ min: 1, max: 0xffffffff });
const id = fc.string({ unit: "binary", minLength: 1, maxLength: 80 }).map(groupId);
const epoch = uint32.map(weightEpoch);
const count = fc.integer({ min: 0, max: LOG_TOKENS_MAX - 100 });
const counts = fc.array(count, { maxLength: 20 });
const sampleIndex = fc.integer({ min: 0, max: SAMPLES_MAX - 1 });
const tokens = (minLength: number) =>
  fc
    .array(fc.integer({ min: 0, max: 0x7fffffff }), { minLength, maxLength: 50 })
    .map((list) => Int32Array.from(list));
const delta: fc.Arbitrary<SampleDelta> = fc.record({
  sampleIndex,
  offset: count,
  tokens: tokens(1),
});
const deltas = fc.array(delta, { maxLength: 4 });
const status = fc.constantFrom("ok" as const, "stale_epoch" as const);

const clientMessage: fc.Arbitrary<ClientMessage> = fc.oneof(
  fc.record({ kind: kind("hello"), protocolVersion: uint32 }),
  fc.record({ kind: kind("hello"), protocolVersion: uint32, engine: id }),
  draftMessages({ epoch, groupId: id, sampleIndex, have: count, tokens }),
);

const serverMessage: fc.Arbitrary<ServerMessage> = fc.oneof(
  fc.record(
    {
      kind: kind("welcome"),
      protocolVersion: uint32,
      instanceId: uint32,
      epoch,
      frameBytesMax: positive,
      telemetryMs: positive,
      hasPast: fc.constant(true as const),
    },
    { requiredKeys: ["kind", "protocolVersion", "instanceId", "epoch", "frameBytesMax"] },
  ),
  fc.record({
    kind: kind("budget"),
    epoch,
    stepTokens: fc.integer({ min: 0, max: STEP_TOKENS_UNBOUNDED }),
    ttlMs: fc.integer({ min: 1, max: TTL_MS_MAX }),
  }),
  fc.record({
    kind: kind("past"),
    epoch,
    status,
    groupId: id,
    have: fc.nat(SAMPLES_MAX),
    responses: fc.array(tokens(1), { maxLength: 4 }),
    more: fc.boolean(),
  }),
  fc.record({
    kind: kind("registered"),
    epoch,
    status: fc.oneof(status, fc.constantFrom("conflict" as const, "full" as const)),
    groupId: id,
    version: uint32,
    have: counts,
  }),
  fc.record({
    kind: kind("updated"),
    epoch,
    status,
    refusals: fc.array(
      fc.record({
        groupId: id,
        sampleIndex,
        reason: fc.constantFrom(...REFUSAL_REASONS),
        have: count,
      }),
      { maxLength: 4 },
    ),
  }),
  fc.record({
    kind: kind("fetched"),
    epoch,
    status,
    groups: fc.array(
      fc.record({
        groupId: id,
        version: uint32,
        deltas,
        behind: fc.array(fc.record({ sampleIndex, have: count }), { maxLength: 4 }),
      }),
      { maxLength: 4 },
    ),
    unknown: fc.array(id, { maxLength: 4 }),
    more: fc.boolean(),
  }),
);

function messageOf<M>(decoded: Decoded<M>): M {
  if (decoded.kind !== "ok") throw new Error(`${decoded.kind}: ${decoded.problem}`);
  return decoded.message;
}

/** Unpaired surrogates have no UTF-8. */
const isText = (message: unknown) => JSON.stringify(message).isWellFormed();

test("codec: every client message survives its frame", () => {
  fc.assert(
    fc.property(clientMessage.filter(isText), (message) => {
      expect(messageOf(decodeClientMessage(encodeClientMessage(message)))).toEqual(message);
    }),
    { numRuns: 500 },
  );
});

test("codec: every server message survives its frame", () => {
  fc.assert(
    fc.property(serverMessage.filter(isText), (message) => {
      expect(decodeServerMessage(encodeServerMessage(message))).toEqual(message);
    }),
    { numRuns: 500 },
  );
});

test("codec: a frame cut or altered anywhere gives a value within the bounds, never a throw", () => {
  const damage = fc.array(fc.record({ at: fc.nat(), byte: fc.nat({ max: 255 }) }), {
    maxLength: 3,
  });
  fc.assert(
    fc.property(clientMessage, fc.nat(), damage, (message, cut, bytes) => {
      const frame = encodeClientMessage(message).slice();
      const part = frame.subarray(0, cut % (frame.length + 1));
      for (const { at, byte } of bytes) if (part.length > 0) part[at % part.length] = byte;
      const decoded = decodeClientMessage(part);
      if (decoded.kind !== "ok") expect(decoded.problem).not.toBe("");
      else if (decoded.message.kind === "update") {
        for (const group of decoded.message.groups) {
          for (const { sampleIndex: index, offset, tokens: ids } of group.deltas) {
            expect(index).toBeLessThan(SAMPLES_MAX);
            expect(offset + ids.length).toBeLessThanOrEqual(LOG_TOKENS_MAX);
            expect(Math.min(...ids)).toBeGreaterThanOrEqual(0);
          }
        }
      }
    }),
    { numRuns: 2000 },
  );
});

test("codec: frames are no larger than the service reckons", () => {
  fc.assert(
    fc.property(serverMessage, clientMessage, (answer, message) => {
      if (answer.kind === "fetched") {
        let bytes = FRAME_OVERHEAD_BYTES;
        for (const unknown of answer.unknown) bytes += idBytes(unknown) + COUNT_BYTES;
        for (const group of answer.groups) bytes += groupBytes(group) + behindBytes(group.behind);
        expect(encodeServerMessage(answer).length).toBeLessThanOrEqual(bytes);
      }
      if (message.kind === "update") {
        let bytes = FRAME_OVERHEAD_BYTES;
        for (const group of message.groups) bytes += groupBytes(group);
        expect(encodeClientMessage(message).length).toBeLessThanOrEqual(bytes);
      }
      if (message.kind === "fetch") {
        let bytes = FRAME_OVERHEAD_BYTES;
        for (const { groupId: name, have } of message.states) {
          bytes += idBytes(name) + GROUP_OVERHEAD_BYTES + have.length * COUNT_BYTES;
        }
        expect(encodeClientMessage(message).length).toBeLessThanOrEqual(bytes);
      }
    }),
    { numRuns: 500 },
  );
});

const behindBytes = (behind: readonly unknown[]) => behind.length * DELTA_OVERHEAD_BYTES;

function groupBytes(group: { groupId: string; deltas: readonly SampleDelta[] }): number {
  const base = idBytes(group.groupId) + GROUP_OVERHEAD_BYTES;
  return group.deltas.reduce(
    (sum, { tokens: ids }) => sum + DELTA_OVERHEAD_BYTES + ids.length * TOKEN_BYTES,
    base,
  );
}
