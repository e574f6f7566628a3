// A rollout at temperature 1, held against the model's own logprobs and against responses that plain vLLM draws to the
// same prompts: pairs of groups by mean length and mean logprob.

import { expect } from "bun:test";
import { type Bed, GROUP_SIZE, plainly, type Rolled, written } from "./bed.ts";
import { type Held, heldAgainst, mean, pairedT, T15_MAX, type Written } from "./compare.ts";
import type { Line } from "./fleet.ts";

/** nats a token: float32 on one machine. */
const DISTANCE_MAX = 1e-3;

/** `scored`: those whose logprobs a server computes again. Returns a line for the log, too. */
export async function expectDrawnAsPlain(
  { fleet, prompts, eos }: Bed,
  { lines }: Rolled,
  scored: readonly Line[],
): Promise<{ held: Held; told: string }> {
  const held = await heldAgainst(fleet.plain(0), written(scored));
  expect(held.test.isRejected).toBe(false);
  expect(held.distance).toBeLessThan(DISTANCE_MAX);
  const asks = prompts.flatMap((prompt) => Array.from({ length: GROUP_SIZE }, () => prompt));
  const plain = await Promise.all(
    asks.map((prompt, i) =>
      plainly(fleet.plain(i % 2), { prompt, temperature: 1, seed: 1000 + i, eos }),
    ),
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
  const { scoreMean, expectedMean, resolution } = held.test;
  const told =
    `mean logprob ${scoreMean.toFixed(3)}, by the model ${expectedMean.toFixed(3)}; a difference of ` +
    `${resolution.toFixed(3)} would have shown; t of lengths ${byLength.toFixed(2)}, of logprobs ${byLogprob.toFixed(2)}`;
  return { held, told };
}
