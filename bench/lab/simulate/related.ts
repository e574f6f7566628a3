// Related systems do other things with iterations than to run one: how, for each row of systems.ts that does.

import { present } from "../../../src/core/base/assert.ts";
import type { IterationOptions, IterationResult } from "./iteration.ts";
import type { GroupLengths } from "./lengths.ts";
import { CANN_GRAPHS } from "./rebalance.ts";
import { FORWARD_PART, type Workload } from "./workload.ts";

/** Choices of a system about a simulated iteration; the rest is the cell's. */
export type IterationChoices = Pick<
  IterationOptions,
  "lengths" | "until" | "progress" | "finishFirst" | "elastic"
> & { readonly workload?: Workload };

/** Parts that a row is made of: `lengths` draws groups of an iteration, `simulate` runs one. */
export interface RelatedParts {
  readonly workload: Workload;
  readonly lengths: (iteration: number, shape: Partial<Workload["shape"]>) => GroupLengths;
  readonly simulate: (iteration: IterationChoices) => Promise<IterationResult>;
}

export type Run = (parts: RelatedParts) => Promise<IterationResult>;

/** APRIL starts twice the groups, ends with the required number, and continues the rest in the next iteration. */
const OVER_ISSUE = 2;
/** Iterations before the measured one, until the number of carried-over requests is steady. */
const WARM_UP = 3;

interface Carried {
  readonly lengths: readonly number[];
  /** Tokens of each response. */
  readonly progress: readonly number[];
  /** Iterations since it began. */
  readonly age: number;
}

/** `stalenessMax`: iterations over which a response may be carried. */
export const partialRollout =
  (stalenessMax: number): Run =>
  async ({ workload, lengths: draw, simulate }) => {
    const { groups: wanted } = workload.shape;
    let carried: Carried[] = [];
    const returned: number[] = [];
    for (let iteration = 0; ; iteration += 1) {
      const fresh = draw(iteration, { groups: wanted * OVER_ISSUE - carried.length });
      const all: Carried[] = [...carried, ...fresh.map(newGroup)];
      const result = await simulate({
        lengths: all.map(({ lengths }) => lengths),
        progress: all.flatMap(({ progress }) => progress),
        until: ({ groups }) => groups >= wanted,
      });
      returned.push(...result.returnedLengths);
      const after = withReached(all, result.reached);
      if (iteration === WARM_UP) {
        const whole = after.filter(isWhole);
        const old = total(whole.flatMap(({ progress }) => progress));
        const staleShare = old / total(whole.flatMap(({ lengths }) => lengths));
        const steady = { ...result, staleShare, biasLengths: returned };
        return stalenessMax > 0 ? steady : withoutWaste(steady);
      }
      carried = after
        .filter((group) => !isWhole(group))
        .map(({ lengths, reached, age }) =>
          age < stalenessMax ? { lengths, progress: reached, age: age + 1 } : newGroup(lengths),
        );
    }
  };

const total = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0);

const newGroup = (lengths: readonly number[]): Carried => ({
  lengths,
  progress: lengths.map(() => 0),
  age: 0,
});

/** The groups with the tokens that each response has now. */
function withReached(groups: readonly Carried[], all: readonly number[]) {
  let from = 0;
  return groups.map((group) => {
    const reached = all.slice(from, from + group.lengths.length);
    from += reached.length;
    return { ...group, reached };
  });
}

const isWhole = ({ lengths, reached }: ReturnType<typeof withReached>[number]): boolean =>
  lengths.every((length, i) => (reached[i] ?? 0) >= length);

const OVER_SAMPLE = 1.25;

export async function finishFirst(parts: RelatedParts): Promise<IterationResult> {
  const { groupSize } = parts.workload.shape;
  const lengths = parts.lengths(0, { groupSize: Math.ceil(groupSize * OVER_SAMPLE) });
  return withoutWaste(await parts.simulate({ lengths, finishFirst: groupSize }));
}

/** Tokens of responses that were given up are no output. */
function withoutWaste(result: IterationResult): IterationResult {
  return { ...result, outputTokens: total(result.returnedLengths) };
}

/** Iterations whose prompts are dealt out together: those with the longest history come in the last one. */
const ROUNDS = 4;

export async function tailBatching(parts: RelatedParts): Promise<IterationResult> {
  const { groups, groupSize } = parts.workload.shape;
  // To each prompt the last epoch's responses, then this one's.
  const epochs = parts.lengths(0, { groups: groups * ROUNDS, groupSize: groupSize * 2 });
  const longest = (group: readonly number[]) => Math.max(...group.slice(0, groupSize));
  const byHistory = [...epochs].sort((a, b) => longest(a) - longest(b));
  const rounds: IterationResult[] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    const own = byHistory.slice(round * groups, (round + 1) * groups);
    rounds.push(await parts.simulate({ lengths: own.map((group) => group.slice(groupSize)) }));
  }
  return added(rounds, ROUNDS);
}

/** Parts of the requests that are left when RLHFuse migrates them, to a part of the instances: it searches for the best. */
const LEFT_PARTS = [0.1, 0.04, 0.01];
const INSTANCES_PART = 1 / 4;

export async function rlhfuse(parts: RelatedParts): Promise<IterationResult> {
  const found: IterationResult[] = [];
  for (const part of LEFT_PARTS) found.push(await fused(parts, part));
  const timeOf = ({ wallS, freeS }: IterationResult) =>
    wallS - Math.min(freeS, FORWARD_PART * parts.workload.after.training * wallS);
  return found.reduce((best, one) => (timeOf(one) < timeOf(best) ? one : best));
}

async function fused({ workload, lengths, simulate }: RelatedParts, part: number) {
  const all = lengths(0, {});
  const left = part * all.flat().length;
  const before = await simulate({ lengths: all, until: ({ unfinished }) => unfinished <= left });
  const open = withReached(all.map(newGroup), before.reached).filter((group) => !isWhole(group));
  const instances = Math.ceil(workload.instances * INSTANCES_PART);
  const after = await simulate({
    workload: { ...workload, instances },
    lengths: open.map((group) => group.lengths),
    progress: open.flatMap(({ reached }) => reached),
  });
  const free = 1 - instances / workload.instances;
  const result = added([before, after], 1);
  const tailS = before.tailS + after.wallS;
  return { ...result, tailS, freeS: free * after.wallS, returnedLengths: all.flat() };
}

export function onGraphs({ workload, lengths, simulate }: RelatedParts): Promise<IterationResult> {
  return simulate({ lengths: lengths(0, {}), workload: { ...workload, graphs: CANN_GRAPHS } });
}

/** Life of an engine, and the time from its leaving until another serves. */
const LIFE_S = 3_600;
const ABSENT_S = 120;

/** `noticeS`: shorter than any cloud's. */
export function elastic(noticeS: number): Run {
  return async ({ lengths, simulate }) => {
    const groups = lengths(0, {});
    const { wallS: calmS } = await simulate({ lengths: groups });
    const times = { lifeS: LIFE_S, absentS: ABSENT_S, noticeS };
    return { ...withoutWaste(await simulate({ lengths: groups, elastic: times })), calmS };
  };
}

/** Results one after the other, as the mean of `iterations` iterations. */
function added(results: readonly IterationResult[], iterations: number): IterationResult {
  const [first] = results;
  const all = { ...present(first, "something was simulated"), iterations };
  for (const key of SUMS) {
    all[key] = results.reduce((sum, result) => sum + result[key], 0) / iterations;
  }
  return { ...all, returnedLengths: results.flatMap(({ returnedLengths }) => returnedLengths) };
}

const SUMS = [
  ...(["wallS", "tailS", "engineS", "outputTokens", "preemptions", "recomputedTokens"] as const),
  ...(["chunks", "migrations", "migratedBytes"] as const),
];
