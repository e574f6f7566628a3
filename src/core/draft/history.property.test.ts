// The history against its obvious twin, and what must hold of recorded groups under any bound.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { HistoryTwin } from "../../../test/reference/history-twin.ts";
import { promptKey } from "../request/prompt-key.ts";
import { History, type Recording } from "./history.ts";

const tokens = fc.array(fc.nat(9), { maxLength: 40, size: "max" });
const prompt = fc.array(fc.nat(2), { maxLength: 1 });
const shape = fc.record({
  limitBytes: fc.constantFrom(0, 200, 600, 1500, 100_000),
  generationsMax: fc.integer({ min: 1, max: 3 }),
  responsesMax: fc.integer({ min: 1, max: 5 }),
});
const act = fc.oneof(
  fc.record({ kind: fc.constant("put"), prompt, responses: fc.array(tokens, { maxLength: 4 }) }),
  fc.record({ kind: fc.constant("past"), prompt, responses: fc.constant([]) }),
  fc.record({ kind: fc.constant("advance"), prompt, responses: fc.constant([]) }),
);

test("history: keeps what its twin keeps, and stays within its bytes", () => {
  fc.assert(
    fc.property(shape, fc.array(act, { maxLength: 40, size: "max" }), (options, acts) => {
      const history = new History(options);
      const twin = new HistoryTwin(options);
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
          const past = history.past(Int32Array.from(ids)).map((list) => [...list]);
          expect(past).toEqual(twin.past(ids.join()));
        }
        const stats = history.stats();
        expect(stats.usedBytes).toBe(twin.bytes);
        expect(stats.usedBytes).toBeLessThanOrEqual(options.limitBytes);
        expect([stats.prompts, stats.responses]).toEqual([twin.prompts, twin.responses]);
      }
    }),
    { numRuns: 500 },
  );
});

interface Written {
  readonly recording: Recording;
  /** Outputs by sample index, in the order begun. */
  readonly outputs: Map<number, number[]>;
}

const write = fc.record({
  group: fc.nat(2),
  sampleIndex: fc.nat(5),
  count: fc.integer({ min: 1, max: 300 }),
});

test("recording: keeps beginnings of the first responses, within half of the bytes", () => {
  const limits = fc.constantFrom(0, 4000, 20_000, 1 << 20);
  fc.assert(
    fc.property(limits, fc.array(write, { maxLength: 60, size: "max" }), (limitBytes, writes) => {
      const history = new History({ limitBytes, responsesMax: 4 });
      const prompts = [0, 1, 2].map((group) => Int32Array.of(group));
      const groups: Written[] = prompts.map((ids) => ({
        recording: history.begin(ids),
        outputs: new Map(),
      }));
      for (const { group, sampleIndex, count } of writes) {
        const one = groups[group];
        if (one === undefined) continue;
        const output = one.outputs.get(sampleIndex) ?? [];
        one.outputs.set(sampleIndex, output);
        // Two tokens are there already and are skipped.
        const more = Int32Array.from({ length: count + 2 }, (_, i) => output.length + i - 2);
        output.push(...more.subarray(2));
        history.record(one.recording, sampleIndex, more, 2);
        expect(history.stats().recordingBytes).toBeLessThanOrEqual(limitBytes / 2);
      }
      for (const { recording } of groups) history.end(recording);
      expect(history.stats().recordingBytes).toBe(0);
      expect(history.stats().usedBytes).toBeLessThanOrEqual(limitBytes);
      history.advance();
      for (const [g, { outputs }] of groups.entries()) {
        const past = history.past(prompts[g] ?? new Int32Array(0));
        const begun = [...outputs.values()].slice(0, 4);
        if (limitBytes === 1 << 20) expect(past.map((list) => [...list])).toEqual(begun);
        for (const list of past) {
          expect(begun.some((output) => isBeginning(list, output))).toBe(true);
        }
      }
    }),
    { numRuns: 200 },
  );
});

function isBeginning(list: Int32Array, output: readonly number[]): boolean {
  return list.length <= output.length && list.every((token, i) => token === output[i]);
}
