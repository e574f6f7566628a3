// The history against its obvious twin, under any bound.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { HistoryTwin } from "../../../test/reference/history-twin.ts";
import { promptKey } from "../request/prompt-key.ts";
import { History } from "./history.ts";

const tokens = fc.array(fc.nat(9), { maxLength: 40, size: "max" });
const prompt = fc.array(fc.nat(2), { maxLength: 1 });
const limit = fc.constantFrom(0, 200, 600, 1500, 100_000);
const act = fc.oneof(
  fc.record({ kind: fc.constant("put"), prompt, responses: fc.array(tokens, { maxLength: 12 }) }),
  fc.record({ kind: fc.constant("past"), prompt, responses: fc.constant([]) }),
  fc.record({ kind: fc.constant("advance"), prompt, responses: fc.constant([]) }),
);

test("history: keeps what its twin keeps, and stays within its bytes", () => {
  fc.assert(
    fc.property(limit, fc.array(act, { maxLength: 40, size: "max" }), (limitBytes, acts) => {
      const history = new History(limitBytes);
      const twin = new HistoryTwin(limitBytes);
      for (const { kind, prompt: ids, responses } of acts) {
        if (kind === "advance") {
          history.advance();
          twin.advance();
        } else if (kind === "put") {
          for (const list of responses) {
            history.add(promptKey(Int32Array.from(ids)), Int32Array.from(list));
            twin.put(ids.join(), [list]);
          }
        } else {
          const past = history.past(promptKey(Int32Array.from(ids))).map((list) => [...list]);
          expect(past).toEqual(twin.past(ids.join()));
        }
        const stats = history.stats();
        expect(stats.usedBytes).toBe(twin.bytes);
        expect(stats.usedBytes).toBeLessThanOrEqual(limitBytes);
        expect([stats.prompts, stats.responses]).toEqual([twin.prompts, twin.responses]);
      }
    }),
    { numRuns: 500 },
  );
});
