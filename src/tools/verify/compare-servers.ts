// Sends the same seeded prompts to running vLLM servers in several ways, and compares each way with the plain one: which
// responses are identical, where the others first differ, and how far the logprobs of the tokens before that are apart.
// The report judges nothing: without the plugin's `exact`, drafts are expected to change what a seed draws.

import { present } from "../../core/base/assert.ts";
import { AppError } from "../../core/base/errors.ts";
import { quantileOf } from "../../core/base/quantile.ts";
import type { Made } from "../../engines/vllm/trial.ts";
import { Engine } from "../doctor/engine.ts";

/** The plain way: one request per response. `moves`: each piece runs on another server than the one before. */
const PLAIN = { pieces: "one", moves: false, drafts: false } as const;
const WAYS = {
  plain: PLAIN,
  // Other neighbours in the batch, and nothing else.
  again: PLAIN,
  chunks: { pieces: "chunks", moves: false, drafts: false },
  moves: { pieces: "halves", moves: true, drafts: false },
  drafts: { pieces: "one", moves: false, drafts: true },
  all: { pieces: "chunks", moves: true, drafts: true },
} as const;
type Way = keyof typeof WAYS;

export interface VerifyPrompt {
  readonly id: string;
  readonly tokens: readonly number[];
}

/** Numbers of a comparison. `slots`: requests that each server is sent at the same time. */
type Counts = "groupSize" | "slots" | "maxTokens" | "chunkTokens" | "temperature" | "seed";
type Run = Readonly<Record<Counts, number>> & {
  readonly engines: readonly Engine[];
  readonly prompts: readonly VerifyPrompt[];
};

/** `name` separates these requests' groups and KV from all others'. */
type Named = { readonly name: string };
type Response = Pick<Made, "tokens" | "logprobs">;

export type WayReport = ReturnType<typeof compared> & {
  readonly way: Way;
  /** Draft tokens as counted by the servers. Both 0: they do not draft, or do not report it. */
  readonly drafted_tokens: number;
  readonly accepted_tokens: number;
};

/** Opens and probes a server. @throws AppError: it cannot be used for a comparison. */
export async function openServer(url: string, token: string | null): Promise<Engine> {
  const engine = new Engine(url, token);
  const { capabilities } = await engine.probe();
  if (!capabilities.hasSeeds) {
    const fix = "start it with --no-enable-chunked-prefill";
    throw new AppError("worker_failed", `${url} ends at requests with a seed: ${fix}`);
  }
  return engine;
}

/** Compares the ways; without drafts `all` is left out. @throws AppError worker_failed: a server refuses a request. */
export async function compareServers(run: Run, began: (way: Way) => void): Promise<WayReport[]> {
  const name = `verify-${crypto.randomUUID()}`;
  const reports: WayReport[] = [];
  let plain: readonly Response[] = [];
  for (const way of Object.keys(WAYS) as Way[]) {
    if (way === "moves" && run.engines.length < 2) continue;
    if (way === "all" && reports.at(-1)?.drafted_tokens === 0) continue;
    began(way);
    const before = await draftsOf(run.engines);
    const made = await runAll({ ...run, name }, way);
    const after = await draftsOf(run.engines);
    if (way === "plain") plain = made;
    reports.push({
      way,
      ...compared(run, plain, made),
      drafted_tokens: after.drafted - before.drafted,
      accepted_tokens: after.accepted - before.accepted,
    });
  }
  return reports;
}

async function runAll(run: Run & Named, way: Way): Promise<Response[]> {
  const made: Response[] = Array.from({ length: run.prompts.length * run.groupSize });
  const waiting = [...made.keys()];
  // From the other end, requests have other neighbours.
  if (way !== "again") waiting.reverse();
  const work = async () => {
    for (let index = waiting.pop(); index !== undefined; index = waiting.pop()) {
      made[index] = await respond(run, way, index);
    }
  };
  await Promise.all(Array.from({ length: run.slots * run.engines.length }, work));
  return made;
}

async function respond(run: Run & Named, way: Way, index: number): Promise<Response> {
  const { name, engines, groupSize, maxTokens, chunkTokens, temperature } = run;
  const { pieces, moves, drafts } = WAYS[way];
  const group = Math.floor(index / groupSize);
  const prompt = run.prompts[group]?.tokens ?? [];
  const size = { one: maxTokens, halves: Math.ceil(maxTokens / 2), chunks: chunkTokens }[pieces];
  // A response of `all` has its twin of `drafts` for a sibling too, which drafts it nearly whole.
  const sample = (index % groupSize) + (way === "all" ? groupSize : 0);
  const tokens: number[] = [];
  const logprobs: number[] = [];
  for (let piece = 0; tokens.length < maxTokens; piece += 1) {
    const engine = present(engines[(index + (moves ? piece : 0)) % engines.length], "a server");
    const offset = tokens.length;
    const made = await engine.generate({
      tokens: [...prompt, ...tokens],
      maxTokens: Math.min(size, maxTokens - offset),
      temperature,
      // The same for each piece: noise that depends on a token's place draws them as it draws the whole.
      seed: run.seed + index,
      cacheSalt: `${name}-${way}`,
      ...(drafts ? { offset, sibling: { group: `${name}-${group}`, sample } } : {}),
    });
    if (made.kind !== "made") {
      throw new AppError("worker_failed", `${engine.url}: ${made.message}`);
    }
    tokens.push(...made.tokens);
    logprobs.push(...made.logprobs);
  }
  return { tokens, logprobs };
}

function compared({ prompts, groupSize }: Run, plain: readonly Response[], made: Response[]) {
  const distances: number[] = [];
  const differences: { response: string; position: number; logprob_gap: number }[] = [];
  for (const [index, { tokens, logprobs }] of made.entries()) {
    const other = plain[index] ?? { tokens: [], logprobs: [] };
    const gapAt = (i: number) => (other.logprobs[i] ?? 0) - (logprobs[i] ?? 0);
    const at = tokens.findIndex((token, i) => token !== other.tokens[i]);
    const position = at < 0 ? tokens.length : at;
    for (let i = 0; i < position; i += 1) distances.push(Math.abs(gapAt(i)));
    if (at < 0) continue;
    const response = `${prompts[Math.floor(index / groupSize)]?.id} ${index % groupSize}`;
    differences.push({ response, position, logprob_gap: gapAt(at) });
  }
  const sum = distances.reduce((total, one) => total + one, 0);
  const [p99 = 0, max = 0] = [0.99, 1].map((part) => quantileOf(distances, part));
  return {
    responses: made.length,
    identical_responses: made.length - differences.length,
    // Tokens before the first difference, and the distances of their logprobs, nats.
    compared_tokens: distances.length,
    dlogp: { mean: sum / Math.max(1, distances.length), p99, max },
    // At the first one: output tokens before it, and the plain token's logprob less the other's.
    differences,
  };
}

async function draftsOf(engines: readonly Engine[]) {
  const counts = await Promise.all(engines.map((engine) => engine.drafts()));
  const sum = (of: "drafted" | "accepted") => counts.reduce((total, one) => total + one[of], 0);
  return { drafted: sum("drafted"), accepted: sum("accepted") };
}
