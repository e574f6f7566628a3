// Delivery over a channel that breaks anywhere: each message arrives once, whole, in order.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { Delivery } from "./delivery.ts";
import type { Data } from "./message.ts";

const LIMITS = {
  frameBytesMax: 7,
  messageBytesMax: 64,
  bufferBytesMax: 100_000,
  kvWindowBytes: 20,
};

test("delivery: messages arrive once, whole and in order, whatever is lost with connections", () => {
  const step = fc.oneof(
    fc.record({ kind: fc.constant("push" as const), bytes: fc.nat({ max: 64 }) }),
    fc.record({ kind: fc.constant("carry" as const), frames: fc.nat({ max: 12 }) }),
    fc.record({ kind: fc.constant("ack" as const) }),
    /** Frames that are sent and lost with the connection. */
    fc.record({ kind: fc.constant("cut" as const), lost: fc.nat({ max: 12 }) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const from = new Delivery(LIMITS);
      const to = new Delivery(LIMITS);
      const wanted: number[][] = [];
      const got: number[][] = [];
      const carry = (frames: number) => {
        for (let i = 0; i < frames; i += 1) {
          const frame = from.next();
          if (frame === null) return;
          const accepted = to.accept(frame);
          expect(accepted.kind).not.toBe("refuse");
          if (accepted.kind === "message") got.push([...accepted.payload]);
          // A repeat changes nothing.
          expect(to.accept(frame).kind).toBe("nothing");
        }
      };
      for (const one of steps) {
        if (one.kind === "push") {
          const payload = Uint8Array.from({ length: one.bytes }, (_, i) => wanted.length + i);
          wanted.push([...payload]);
          expect(from.push(payload)).toBe(true);
        } else if (one.kind === "carry") carry(one.frames);
        else if (one.kind === "ack") expect(from.acknowledge(to.received)).toBe(true);
        else {
          for (let i = 0; i < one.lost; i += 1) from.next();
          expect(from.rewind(to.received)).toBe(true);
        }
      }
      carry(Number.POSITIVE_INFINITY);
      expect(got).toEqual(wanted);
      from.acknowledge(to.received);
      expect(from).toMatchObject({ bytes: 0, isAwaiting: false });
    }),
    { numRuns: 2000 },
  );
});

const data = (seq: number, more: boolean, bytes = 1): Data => ({
  kind: "data",
  seq,
  more,
  payload: new Uint8Array(bytes),
});

test("delivery: a frame after a hole is refused", () => {
  const delivery = new Delivery(LIMITS);
  expect(delivery.accept(data(1, false)).kind).toBe("message");
  expect(delivery.accept(data(3, false))).toMatchObject({ kind: "refuse" });
});

test("delivery: a message beyond the limit is refused in pieces as well", () => {
  const delivery = new Delivery(LIMITS);
  expect(delivery.accept(data(1, true, 40)).kind).toBe("nothing");
  expect(delivery.accept(data(2, true, 40))).toMatchObject({ kind: "refuse" });
});

test("delivery: pieces without bytes cannot pile up", () => {
  expect(new Delivery(LIMITS).accept(data(1, true, 0))).toMatchObject({ kind: "refuse" });
});

test("delivery: a peer cannot acknowledge what was not sent, nor forget what it acknowledged", () => {
  const delivery = new Delivery(LIMITS);
  delivery.push(new Uint8Array(20));
  delivery.next();
  expect(delivery.acknowledge(2)).toBe(false);
  expect(delivery.acknowledge(1)).toBe(true);
  expect(delivery.rewind(0)).toBe(false);
});

test("delivery: takes no more than its buffer holds, and continues when it is acknowledged", () => {
  const delivery = new Delivery({ ...LIMITS, bufferBytesMax: 200, frameBytesMax: 64 });
  expect(delivery.push(new Uint8Array(60))).toBe(true);
  expect(delivery.push(new Uint8Array(60))).toBe(true);
  expect(delivery.push(new Uint8Array(60))).toBe(false);
  while (delivery.next() !== null);
  delivery.acknowledge(2);
  expect(delivery.push(new Uint8Array(60))).toBe(true);
});
