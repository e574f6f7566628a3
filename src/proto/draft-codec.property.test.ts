// Every client message survives its frame; every frame cut short or altered gives a value, never a throw, and what is
// decoded lies within the bounds. Frames of the server: test/golden/draft, and server.property.test.ts for their sizes.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { kind } from "../../test/suite/arbitraries.ts";
import { encodeClientMessage } from "../../test/suite/draft-client.ts";
import { draftMessages } from "../../test/suite/draft-messages.ts";
import { groupId, weightEpoch } from "../core/base/ids.ts";
import { LOG_TOKENS_MAX, SAMPLES_MAX } from "../core/draft/service/limits.ts";
import type { ClientMessage } from "../core/draft/service/message.ts";
import { type Decoded, decodeClientMessage } from "./draft-codec.ts";

const uint32 = fc.integer({ min: 0, max: 0xffffffff });
const id = fc.string({ unit: "binary", minLength: 1, maxLength: 80 }).map(groupId);
const epoch = uint32.map(weightEpoch);
const count = fc.integer({ min: 0, max: LOG_TOKENS_MAX - 100 });
const sampleIndex = fc.integer({ min: 0, max: SAMPLES_MAX - 1 });
const tokens = (minLength: number) =>
  fc
    .array(fc.integer({ min: 0, max: 0x7fffffff }), { minLength, maxLength: 50 })
    .map((list) => Int32Array.from(list));
const clientMessage: fc.Arbitrary<ClientMessage> = fc.oneof(
  fc.record({ kind: kind("hello"), protocolVersion: uint32 }),
  fc.record({ kind: kind("hello"), protocolVersion: uint32, engine: id }),
  draftMessages({ epoch, groupId: id, sampleIndex, have: count, tokens }),
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
