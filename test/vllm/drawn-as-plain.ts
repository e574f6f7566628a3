// Rollouts held against plain vLLM: at temperature 0 token for token; at temperature 1 against the model's own logprobs
// and against responses that plain vLLM draws to the same prompts, pairs of groups by mean length and mean logprob.

import { expect } from "bun:test";
import { type Bed, faultsOf, GROUP_SIZE, plainly, type Rolled, roll, written } from "./bed.ts";
import { heldAgainst, mean, pairedT, T15_MAX, type Written } from "./compare.ts";
import type { Line } from "./fleet.ts";

/** nats a token: float32 on one machine. */
const DISTANCE_MAX = 1e-3;

/** A rollout of `n` responses to each prompt. */
export async function expectGreedyAsPlain(bed: Bed, n: number): Promise<Rolled> {
  const rolled = await roll(bed, { id: "greedy", n, sampling: { temperature: 0 } });
  expect(faultsOf(bed, rolled, { n })).toEqual([]);
  const plain = await Promise.all(
    bed.prompts.map((tokens, i) => plainly(bed, i % 2, { tokens, temperature: 0 })),
  );
  for (const { group, token_ids: ids } of rolled.lines) {
    expect(ids).toEqual([...(plain[Number(group.slice(1))]?.tokens ?? [])]);
  }
  return rolled;
}

/** `scored`: those whose logprobs a server computes again. Returns a line for the log, too. */
export async function expectDrawnAsPlain(
  bed: Bed,
  { lines }: Rolled,
  scored: readonly Line[],
): Promise<string> {
  const told = await expectDrawn(bed, scored);
  const { prompts } = bed;
  const asks = prompts.flatMap((prompt) => Array.from({ length: GROUP_SIZE }, () => prompt));
  const plain = await Promise.all(
    asks.map((tokens, i) => plainly(bed, i % 2, { tokens, temperature: 1, seed: 1000 + i })),
  );
  const tOf = (figure: (one: Written) => number) =>
    pairedT(
      prompts.map((prompt, g): readonly [number, number] => [
        mean(written(lines.filter(({ group }) => group === `g${g}`)).map(figure)),
        mean(plain.filter((one) => one.prompt === prompt).map(figure)),
      ]),
    );
  const [byLength, byLogprob] = [
    tOf(({ tokens }) => tokens.length),
    tOf((one) => mean(one.logprobs)),
  ];
  expect(Math.abs(byLength)).toBeLessThan(T15_MAX);
  expect(Math.abs(byLogprob)).toBeLessThan(T15_MAX);
  return `${told}; t of lengths ${byLength.toFixed(2)}, of logprobs ${byLogprob.toFixed(2)}`;
}

/** Responses are draws from the model's distributions. Returns a line for the log, too. */
export async function expectDrawn({ fleet }: Bed, lines: readonly Line[]): Promise<string> {
  const held = await heldAgainst(fleet.plain(0), written(lines));
  expect(held.test.isRejected).toBe(false);
  expect(held.distance).toBeLessThan(DISTANCE_MAX);
  const { scoreMean, expectedMean, resolution } = held.test;
  return (
    `mean logprob ${scoreMean.toFixed(3)}, by the model ${expectedMean.toFixed(3)}; a difference of ` +
    `${resolution.toFixed(3)} would have shown`
  );
}
