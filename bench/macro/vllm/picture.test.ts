import { expect, test } from "bun:test";
import { figureOf } from "../../../src/observe/picture/figure.ts";
import { measuredRun } from "./picture.ts";
import { prefill, run, step } from "./testing.ts";

test("picture: a bench's log as the picture takes it: idle, recomputing, tokens and moves", () => {
  const steps = [
    step({ beginS: 100, endS: 100.5, rows: 10, prefillRows: 10, tokensMade: 1 }),
    step({ beginS: 100.5, endS: 101, tokensMade: 4, unfinished: 0 }),
  ];
  // All of the prompt and the three tokens of its first chunk, but the last, again on the other server.
  const again = { atS: 101, server: 1, madeTokens: 3, computedTokens: 13 };
  const prefills = [prefill({ atS: 100 }), prefill(again)];
  const end = { group: 0, sample: 0, isStopped: false };
  const ends = [
    { ...end, atS: 101, server: 0, madeTokens: 3 },
    { ...end, atS: 102, server: 1, madeTokens: 8 },
  ];
  const other = step({ beginS: 101, endS: 102, rows: 13, prefillRows: 13, tokensMade: 5 });
  const log = { steps: [steps, [other]], prefills, ends, proposeUs: 0 };
  const { engines, longest, tokens_per_s } = figureOf(measuredRun("plain", run({ log })));
  expect(engines.map(({ idle }) => idle)).toEqual([0.5, 0.5]);
  expect(engines.map(({ recomputing }) => recomputing > 0.3)).toEqual([false, true]);
  expect(longest?.responses).toMatchObject([{ tokens: 8, moves: 1 }]);
  expect(Math.max(...tokens_per_s)).toBeGreaterThan(1);
});
