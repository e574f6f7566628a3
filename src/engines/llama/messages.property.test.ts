import { expect, test } from "bun:test";
import fc from "fast-check";
import { requestId } from "../../core/base/ids.ts";
import type { WorkerEvent } from "../../core/rollout/worker.ts";
import { packEvents, transfersOf, unpackEvents } from "./messages.ts";

const eventArbitrary: fc.Arbitrary<WorkerEvent> = fc.oneof(
  fc
    .tuple(
      fc.nat(999),
      fc.nat(5000),
      fc.array(fc.nat(151_000), { minLength: 1, maxLength: 8 }),
      fc.nat(3),
    )
    .map(([id, offset, tokens, count]) => ({
      kind: "tokens" as const,
      requestId: requestId(id),
      offset,
      tokens: Int32Array.from(tokens),
      logprobs: Float32Array.from(tokens, (token) => -token / 7),
      top:
        count === 0
          ? null
          : {
              count,
              tokens: Int32Array.from({ length: tokens.length * count }, (_, i) => i - 1),
              logprobs: Float32Array.from({ length: tokens.length * count }, (_, i) => -i / 3),
            },
    })),
  fc.nat(999).map((id) => ({ kind: "evicted" as const, requestId: requestId(id) })),
  fc.nat(999).map((id) => ({
    kind: "chunk_done" as const,
    requestId: requestId(id),
    finish: "stop" as const,
  })),
);

test("unpackEvents(packEvents(events)): the same events in the same order", () => {
  fc.assert(
    fc.property(fc.array(eventArbitrary, { maxLength: 20 }), (events) => {
      expect(unpackEvents(packEvents(events))).toEqual(events);
    }),
  );
});

test("transfersOf: exported KV moves with the message", () => {
  const bytes = new ArrayBuffer(8);
  const kv = { tokens: 1, bytes };
  const packed = packEvents([{ kind: "exported", requestId: requestId(1), kv }]);
  expect(transfersOf(packed)).toContain(bytes);
});
