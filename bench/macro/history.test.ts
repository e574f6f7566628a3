// The bench on made-up policies: responses to a prompt share phrases over the policies, and all prompts
// share some. The past of the prompt must help, another prompt's must not harm, and probabilities must
// stay what they say, whichever past is there. Nearly a third of the tokens is chance, about as in real text.

import { expect, test } from "bun:test";
import type { TraceGroup } from "../../src/tools/replay/recordings.ts";
import { generator, SEED } from "../harness.ts";
import { byPolicy, compare } from "./history.ts";

const POLICIES = 6;
const PROMPTS = 6;
const RESPONSES = 6;

function policies(): TraceGroup[][] {
  const random = generator(SEED);
  const token = () => 100 + Math.floor(random() * 3000);
  const phrase = () => Array.from({ length: 6 + Math.floor(random() * 12) }, token);
  const common = Array.from({ length: 20 }, phrase);
  const own = Array.from({ length: PROMPTS }, () => Array.from({ length: 12 }, phrase));
  const write = (phrases: readonly number[][]) =>
    Array.from({ length: 30 }, () => {
      const pool = random() < 0.6 ? phrases : common;
      return pool[Math.floor(random() * pool.length)] ?? [];
    })
      .flat()
      .map((id) => (random() < 0.3 ? token() : id));
  const groups = Array.from({ length: POLICIES }, (_, k) =>
    own.map((phrases, q) => ({
      name: `${k}/${q}`,
      prompt: Int32Array.of(1, q, 2),
      responses: Array.from({ length: RESPONSES }, () => Int32Array.from(write(phrases))),
    })),
  );
  return byPolicy(groups.flat());
}

test("bench: the past helps, another prompt's past does no harm, and both stay calibrated", async () => {
  const rows = await compare(policies(), {
    drafter: "grouped",
    draftedPerStep: 1.5,
    folds: 2,
    history: { generationsMax: 1 },
    live: 4,
  });
  expect(rows.map(({ history }) => history)).toEqual(["none", "same prompt", "other prompt"]);
  const [, same, other] = rows;
  // Without a past, the instance still knows how earlier policies wrote.
  expect(same?.ratio).toBeGreaterThan(1.02);
  expect(other?.ratio).toBeGreaterThan(0.98);
  for (const { drafted_per_step, ece } of rows) {
    expect(Math.abs(drafted_per_step - 1.5)).toBeLessThan(0.05);
    expect(ece).toBeLessThan(0.03);
  }
}, 60_000);
