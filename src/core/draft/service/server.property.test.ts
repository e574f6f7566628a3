// The server's bounds hold after every message, whatever is sent, and every answer fits in a frame.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { registerOf } from "../../../../test/suite/draft-client.ts";
import { draftMessages } from "../../../../test/suite/draft-messages.ts";
import { ManualClock } from "../../../../test/suite/manual-clock.ts";
import { encodeServerMessage } from "../../../proto/draft-codec.ts";
import { groupId, weightEpoch } from "../../base/ids.ts";
import { TokenColumn } from "../../request/columns.ts";
import type { ClientMessage } from "./message.ts";
import { DraftServer } from "./server.ts";
import type { ResponseSource } from "./server-groups.ts";

const LIMITS = {
  groupsMax: 3,
  samplesMax: 4,
  groupBytesMax: 6000,
  bytesMax: 12_000,
  windowTokens: 100,
  frameBytesMax: 1024,
};

const id = fc.constantFrom("a", "b", "c", "d", "e", "long-".repeat(12)).map(groupId);
const epoch = fc.nat({ max: 1 }).map(weightEpoch);
const count = fc.nat({ max: 500 });
/** Prompts (from 0 on) are longer: a group's room is soon full. */
const tokens = (min: number) =>
  fc.integer({ min, max: min === 0 ? 1600 : 300 }).map((length) => new Int32Array(length));
const sampleIndex = fc.nat({ max: 5 });
const message = draftMessages({ epoch, groupId: id, sampleIndex, have: count, tokens })
  .filter(({ kind }) => kind !== "telemetry")
  .map((drawn) => ("ttlMs" in drawn ? { ...drawn, ttlMs: 1 + (drawn.ttlMs % 3000) } : drawn));

/** Two of them do not fit in a frame together; the first alone does not either. */
const PAST = [400, 100, 150, 5].map((length) => new Int32Array(length));
const past = () => PAST;

/** A server and a session of it, whose answers all fit in a frame. */
function opened(source: ResponseSource = { responses: () => [], past }) {
  const clock = new ManualClock();
  const server = new DraftServer({ clock, instanceId: 1, limits: LIMITS, source });
  const peer = { engine: null };
  server.receive(peer, { kind: "hello", protocolVersion: 1 });
  const asked = (request: ClientMessage) => {
    const answer = server.receive(peer, request);
    if (answer.kind === "refuse") throw new Error(answer.problem);
    const frame = encodeServerMessage(answer);
    expect(frame.length).toBeLessThanOrEqual(LIMITS.frameBytesMax);
    return answer;
  };
  /** Everything left has had its time by then. */
  const emptied = () => {
    clock.advance(3001);
    server.sweep();
    expect(server.stats()).toMatchObject({ bytes: 0, groups: 0 });
  };
  return { clock, server, asked, emptied };
}

test("server: limits hold after every message, and every answer fits in a frame", () => {
  const steps = fc.array(fc.tuple(message, fc.nat({ max: 900 })), { maxLength: 40 });
  fc.assert(
    fc.property(steps, (list) => {
      const { clock, server, asked, emptied } = opened();
      for (const [request, ms] of list) {
        asked(request);
        const { bytes, groups } = server.stats();
        expect(bytes).toBeLessThanOrEqual(LIMITS.bytesMax);
        expect(groups).toBeLessThanOrEqual(LIMITS.groupsMax);
        clock.advance(ms);
      }
      emptied();
    }),
    { numRuns: 500 },
  );
});

test("server: responses that it follows are answered as they are, and count for its bytes", () => {
  const RESPONSE_TOKENS = 600;
  const TRUTH = Int32Array.from({ length: RESPONSE_TOKENS }, (_, i) => i);
  const grown = fc.record({ groupId: id, sampleIndex: fc.nat({ max: 3 }), count });
  const steps = fc.array(fc.oneof(message, grown), { maxLength: 60, size: "max" });
  fc.assert(
    fc.property(steps, (list) => {
      const columns = new Map<string, TokenColumn[]>();
      const columnsOf = (name: string) => {
        const known = columns.get(name) ?? [0, 1, 2, 3].map(() => new TokenColumn(RESPONSE_TOKENS));
        columns.set(name, known);
        return known;
      };
      const source: ResponseSource = {
        responses: (name) => columnsOf(name).entries(),
        past,
      };
      const { clock, server, asked, emptied } = opened(source);
      for (const one of list) {
        clock.advance(1);
        if ("count" in one) {
          const column = columnsOf(one.groupId)[one.sampleIndex];
          const end = Math.min((column?.length ?? 0) + one.count, RESPONSE_TOKENS);
          column?.append(TRUTH.subarray(0, end), column.length);
          continue;
        }
        const answer = asked(one);
        if (answer.kind === "fetched") {
          for (const { groupId: name, deltas, behind } of answer.groups) {
            // A response that has not begun has no log.
            const begun = behind.filter(({ sampleIndex }) => columnsOf(name)[sampleIndex]?.length);
            expect(begun).toEqual([]);
            for (const { sampleIndex, offset, tokens } of deltas) {
              const made = columnsOf(name)[sampleIndex]?.view(offset, offset + tokens.length);
              expect(tokens.subarray(0, made?.length)).toEqual(made ?? TRUTH);
            }
          }
        }
        // A group that is used just now stays, however large its responses have become meanwhile.
        const { bytes, groups } = server.stats();
        const largest = LIMITS.groupBytesMax + 4 * 4 * RESPONSE_TOKENS;
        expect(bytes).toBeLessThanOrEqual(LIMITS.bytesMax + largest);
        expect(groups).toBeLessThanOrEqual(LIMITS.groupsMax);
      }
      emptied();
    }),
    { numRuns: 300 },
  );
});

test("server: fetching again and again until there is no more gets everything", () => {
  const clock = new ManualClock();
  const server = new DraftServer({ clock, instanceId: 1, limits: { frameBytesMax: 1024 } });
  const zero = weightEpoch(0);
  const groups = ["a", "b", "c"].map((name) => {
    const deltas = [0, 3].map((sampleIndex) => ({
      sampleIndex,
      offset: 0,
      tokens: Int32Array.from({ length: 700 }, (_, i) => i + sampleIndex),
    }));
    return { groupId: groupId(name), deltas };
  });
  for (const { groupId: name } of groups) server.register(registerOf(name, new Int32Array(0)));
  server.update({ kind: "update", epoch: zero, groups });
  const have = new Map(groups.map((group) => [group.groupId, [0, 0, 0, 0]]));
  let frames = 0;
  for (let more = true; more; frames += 1) {
    const states = [...have].map(([name, counts]) => ({ groupId: name, have: counts }));
    const answer = server.fetchDeltas({ kind: "fetch", epoch: zero, states });
    for (const group of answer.groups) {
      for (const { sampleIndex, offset, tokens } of group.deltas) {
        const counts = have.get(group.groupId) ?? [];
        expect(offset).toBe(counts[sampleIndex] ?? -1);
        expect(tokens[0]).toBe(offset + sampleIndex);
        counts[sampleIndex] = offset + tokens.length;
      }
    }
    more = answer.more;
  }
  expect([...have.values()]).toEqual(groups.map(() => [700, 0, 0, 700]));
  // 16,800 bytes of tokens in frames of 1,024.
  expect(frames).toBeLessThan(25);
});

test("server: fetching the past again and again gets every response, what fits in no frame cut", () => {
  const { server } = opened();
  const a = groupId("a");
  const b = groupId("b");
  server.register(registerOf(a, new Int32Array(0)));
  const ask = { kind: "fetch_past", epoch: weightEpoch(0), have: 0 } as const;
  const lengths: number[] = [];
  for (let more = true; more; ) {
    const answer = server.fetchPast({ ...ask, groupId: a, have: lengths.length });
    expect(encodeServerMessage(answer).length).toBeLessThanOrEqual(LIMITS.frameBytesMax);
    lengths.push(...answer.responses.map(({ length }) => length));
    more = answer.more;
  }
  expect(lengths.slice(1)).toEqual([100, 150, 5]);
  expect(lengths[0]).toBeGreaterThan(200);
  expect(server.fetchPast({ ...ask, groupId: b })).toMatchObject({ responses: [], more: false });
  server.advance(weightEpoch(1));
  expect(server.fetchPast({ ...ask, groupId: a })).toMatchObject({ status: "stale_epoch" });
});
