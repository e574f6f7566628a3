// Every message survives its bytes; bytes cut short, altered or made up give a value, never a throw.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { hostMessage, sidecarMessage } from "../../../test/suite/link-messages.ts";
import {
  decodeHostMessage,
  decodeSidecarMessage,
  encodeHostMessage,
  encodeSidecarMessage,
} from "./codec.ts";

test("codec: every message of the sidecar survives its bytes", () => {
  fc.assert(
    fc.property(sidecarMessage, (message) => {
      const decoded = decodeSidecarMessage(encodeSidecarMessage(message));
      expect(decoded).toEqual({ kind: "ok", message });
    }),
    { numRuns: 1000 },
  );
});

test("codec: every message of the host survives its bytes, events in order", () => {
  fc.assert(
    fc.property(hostMessage, (message) => {
      const decoded = decodeHostMessage(encodeHostMessage(message));
      expect(decoded).toEqual({ kind: "ok", message });
    }),
    { numRuns: 1000 },
  );
});

/** Bytes of a message, then cut and altered; or any bytes at all. */
const wrongBytes = fc.oneof(
  fc.uint8Array({ maxLength: 300 }),
  fc
    .record({
      bytes: fc.oneof(sidecarMessage.map(encodeSidecarMessage), hostMessage.map(encodeHostMessage)),
      end: fc.nat({ max: 400 }),
      edits: fc.array(fc.record({ at: fc.nat({ max: 400 }), byte: fc.nat({ max: 255 }) }), {
        maxLength: 3,
      }),
    })
    .map(({ bytes: whole, end, edits }) => {
      const cut = Uint8Array.from(whole.subarray(0, end));
      for (const { at, byte } of edits) if (at < cut.length) cut[at] = byte;
      return cut;
    }),
);

test("codec: whatever bytes come, decoding gives a value and never throws", () => {
  const kinds = new Set<string>();
  fc.assert(
    fc.property(wrongBytes, (wrong) => {
      for (const decode of [decodeSidecarMessage, decodeHostMessage]) {
        kinds.add(decode(wrong).kind);
      }
    }),
    { numRuns: 4000 },
  );
  expect([...kinds].sort()).toEqual(["invalid_message", "ok", "undecodable"]);
});
