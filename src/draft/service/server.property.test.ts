// The server's bounds hold after every message, whatever is sent, and every answer fits in a frame.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { groupId, weightEpoch } from "../../base/ids.ts";
import { encodeServerMessage } from "../../proto/draft-codec.ts";
import type { ClientMessage } from "./message.ts";
import { DraftServer } from "./server.ts";
import { DraftSession } from "./session.ts";

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
const delta = fc.record({
  sampleIndex: fc.nat({ max: 5 }),
  offset: count,
  tokens: fc.integer({ min: 1, max: 300 }).map((length) => new Int32Array(length)),
});
const message: fc.Arbitrary<ClientMessage> = fc.oneof(
  fc.record({
    kind: fc.constant("register_group" as const),
    epoch,
    groupId: id,
    ttlMs: fc.integer({ min: 1, max: 3000 }),
    prompt: fc.nat({ max: 1600 }).map((length) => new Int32Array(length)),
  }),
  fc.record({
    kind: fc.constant("update" as const),
    epoch,
    groups: fc.array(fc.record({ groupId: id, deltas: fc.array(delta, { maxLength: 20 }) }), {
      maxLength: 6,
    }),
  }),
  fc.record({
    kind: fc.constant("fetch" as const),
    epoch,
    states: fc.array(fc.record({ groupId: id, have: fc.array(count, { maxLength: 40 }) }), {
      maxLength: 30,
    }),
  }),
);

test("server: limits hold after every message, and every answer fits in a frame", () => {
  const steps = fc.array(fc.tuple(message, fc.nat({ max: 900 })), { maxLength: 40 });
  fc.assert(
    fc.property(steps, (list) => {
      const clock = new ManualClock();
      const server = new DraftServer({ clock, instanceId: 1, limits: LIMITS });
      const session = new DraftSession(server);
      session.receive({ kind: "hello", protocolVersion: 1 });
      for (const [request, ms] of list) {
        const answer = session.receive(request);
        if (answer.kind !== "reply") throw new Error(answer.problem);
        const frame = encodeServerMessage(answer.message);
        expect(frame.length).toBeLessThanOrEqual(LIMITS.frameBytesMax);
        const { bytes, groups } = server.stats();
        expect(bytes).toBeLessThanOrEqual(LIMITS.bytesMax);
        expect(groups).toBeLessThanOrEqual(LIMITS.groupsMax);
        clock.advance(ms);
      }
      // Whatever is left has had its time by then.
      clock.advance(3001);
      server.sweep();
      expect(server.stats()).toMatchObject({ bytes: 0, groups: 0 });
    }),
    { numRuns: 500 },
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
  for (const { groupId: name } of groups) {
    const prompt = new Int32Array(0);
    server.register({ kind: "register_group", epoch: zero, groupId: name, ttlMs: 1000, prompt });
  }
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
