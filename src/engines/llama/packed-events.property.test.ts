// Events cross between threads as they were, in their order, whatever they are.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { requestId } from "../../core/base/ids.ts";
import type { WorkerEvent } from "../../core/rollout/worker.ts";
import { pack, unpack } from "./packed-events.ts";

const ID_MAX = 2 ** 31 - 1;
const id = fc.nat(ID_MAX).map(requestId);
const floats = (length: number) => fc.float32Array({ minLength: length, maxLength: length });
const ints = (length: number) => fc.int32Array({ minLength: length, maxLength: length });

const tokensEvent = fc
  .tuple(id, fc.nat(ID_MAX), fc.nat(6), fc.nat(3))
  .chain(([request, offset, length, count]) =>
    fc
      .tuple(ints(length), floats(length), ints(length * count), floats(length * count))
      .map(([tokens, logprobs, topTokens, topLogprobs]): WorkerEvent => {
        const top = count === 0 ? null : { count, tokens: topTokens, logprobs: topLogprobs };
        return { kind: "tokens", requestId: request, offset, tokens, logprobs, top };
      }),
  );
const otherEvent = fc.oneof(
  id.map((request): WorkerEvent => ({ kind: "evicted", requestId: request })),
  id.map((request): WorkerEvent => ({ kind: "chunk_done", requestId: request, finish: "stop" })),
  fc.string().map((message): WorkerEvent => ({ kind: "failed", message })),
);

test("pack, unpack: the same events in the same order", () => {
  fc.assert(
    fc.property(fc.array(fc.oneof(tokensEvent, otherEvent), { maxLength: 12 }), (events) => {
      expect(unpack(structuredClone(pack(events)))).toEqual(events);
    }),
  );
});
