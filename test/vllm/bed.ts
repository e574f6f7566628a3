// What the tests of one fleet share: the fleet itself, its prompts, and the few ways in which they all ask it for
// responses and look at what came. It decides nothing about what is right.

import type { CompletionRequest } from "../../src/tools/doctor/engine.ts";
import type { Written } from "./compare.ts";
import { CHUNK_TOKENS, type Fleet, type Line, MAX_TOKENS, type RolloutSummary } from "./fleet.ts";

export interface Bed {
  readonly fleet: Fleet;
  /** Token ids of the bundled prompts, all different. */
  readonly prompts: readonly (readonly number[])[];
  /** Ends a response of the bundled model. */
  readonly eos: number;
  /** Responses of a group, and tokens of a response, where a test does not say. */
  readonly n?: number;
  readonly tokensMax?: number;
}

/** Filled in before the first test. */
export type LateBed = () => Bed;

export const GROUP_SIZE = 6;
/** A rollout, a restart and a start of two servers all fit, on a machine that has other things to do as well. */
export const TEST_MS_MAX = 600_000;

export interface Rolled {
  readonly lines: readonly Line[];
  readonly summary: RolloutSummary;
}

/** Runs a rollout over the bed's prompts to its end. `meanwhile` begins once `afterTokens` tokens are there. */
export async function roll(
  { fleet, prompts, n: size = GROUP_SIZE, tokensMax = MAX_TOKENS }: Bed,
  options: {
    id: string;
    sampling: object;
    n?: number;
    groups?: number;
    afterTokens?: number;
    meanwhile?: () => Promise<void>;
  },
): Promise<Rolled> {
  const { id, sampling, n = size, groups = prompts.length, meanwhile } = options;
  const lines: Line[] = [];
  let summary: RolloutSummary | null = null;
  const follow = async () => {
    const body = {
      id,
      n,
      groups: prompts.slice(0, groups).map((ids, i) => ({ id: `g${i}`, token_ids: ids })),
      sampling_params: { max_tokens: tokensMax, ...sampling },
    };
    for await (const line of fleet.rollout(body)) {
      if ("rollout" in line) summary = line;
      else lines.push(line);
    }
  };
  const disturb = async () => {
    if (meanwhile === undefined) return;
    await fleet.until(async () => (await fleet.progress(id)) >= (options.afterTokens ?? 1));
    await meanwhile();
  };
  await Promise.all([follow(), disturb()]);
  if (summary === null) throw new Error("the rollout ended without a summary");
  return { lines, summary };
}

/** Problems in the lines of a rollout; empty: each response came once, complete, chunk after chunk. */
export function faultsOf(bed: Bed, { lines }: Rolled, options: { n?: number } = {}): string[] {
  const { tokensMax = MAX_TOKENS } = bed;
  const { n = bed.n ?? GROUP_SIZE } = options;
  const faults: string[] = [];
  const seen = new Set<string>();
  for (const line of lines) {
    const { index, token_ids: ids, logprobs, chunks, finish_reason: finish } = line;
    const name = `${line.group}/${index}`;
    if (seen.has(name)) faults.push(`${name} came twice`);
    seen.add(name);
    let offset = 0;
    for (const chunk of chunks) {
      if (chunk.offset !== offset) faults.push(`${name}: a chunk begins at ${chunk.offset}`);
      if (chunk.tokens > CHUNK_TOKENS) faults.push(`${name}: a chunk of ${chunk.tokens} tokens`);
      offset += chunk.tokens;
    }
    if (offset !== ids.length) faults.push(`${name}: chunks of ${offset}, ${ids.length} tokens`);
    if (logprobs.length !== ids.length) faults.push(`${name}: ${logprobs.length} logprobs`);
    const end = ids.indexOf(bed.eos);
    const isEnded = end >= 0 && end === ids.length - 1 && finish === "stop";
    const isFull = end < 0 && ids.length === tokensMax && finish === "length";
    if (!isEnded && !isFull) faults.push(`${name}: ${ids.length} tokens, ${finish}, EOS at ${end}`);
  }
  const expected = bed.prompts.length * n;
  if (seen.size !== expected) faults.push(`${seen.size} responses, not ${expected}`);
  return faults;
}

/** Responses that ran on more than one server. */
export function movedIn({ lines }: Rolled): number {
  return lines.filter(({ chunks }) => new Set(chunks.map(({ worker }) => worker)).size > 1).length;
}

/** Stops the first server until the other one has finished a good part of its requests, so that the rest must move. */
export async function standStill({ fleet }: Bed): Promise<void> {
  const slow = fleet.plain(0);
  // Requests whose chunks end in the same step run nowhere for a moment: only what several looks agree on counts.
  const running = async () => {
    let most = 0;
    for (let look = 0; look < 6; look += 1) {
      most = Math.max(most, await fleet.metric("vllm:num_requests_running", 1));
      await Bun.sleep(15);
    }
    return most;
  };
  await slow.call("POST", "/pause?mode=keep");
  const many = await running();
  await fleet.until(async () => (await running()) <= many / 2);
  await slow.call("POST", "/resume");
}

export function written(lines: readonly Line[]): Written[] {
  return lines.map(({ prompt_token_ids: prompt, token_ids: tokens, logprobs }) => ({
    prompt,
    tokens,
    logprobs,
  }));
}

/** Plain vLLM's response: one request, on one server, without the sidecar. */
export async function plainly(
  { fleet, eos, tokensMax = MAX_TOKENS }: Bed,
  server: number,
  ask: Omit<CompletionRequest, "maxTokens"> & { readonly maxTokens?: number },
): Promise<Written> {
  const request = { maxTokens: tokensMax, stopTokenIds: [eos], ...ask };
  const outcome = await fleet.plain(server).generate(request);
  if (outcome.kind !== "made") throw new Error(outcome.message);
  const { tokens, logprobs } = outcome;
  return { prompt: ask.tokens, tokens, logprobs };
}
