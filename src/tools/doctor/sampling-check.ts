// Has an engine draw many tokens at temperature 1 and tests whether they come from the model's distribution
// (core/rollout/sampling-test.ts). That is what the engine says when it is given the finished text to read: it then drafts nothing
// and draws nothing. What it reports while it draws is no measure: an engine that draws at a wrong temperature reports
// the distribution of that temperature.

import { SamplingTest } from "../../core/rollout/sampling-test.ts";
import type { FoundEngine } from "../../engines/vllm/dialect.ts";
import type { Made } from "../../engines/vllm/trial.ts";
import { make, Refused, somePrompt } from "./behaviour-checks.ts";
import { Engine, pathOf, type Scored } from "./engine.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";

/** Probability that a correct engine is called faulty. */
export const ALPHA = 1e-6;
const CONCURRENCY = 16;
const TOKENS_OF_ONE = 64;
const BEGINNINGS = 16;
/** vLLM's limit of reported logprobs without --max-logprobs. */
const TOP = 20;
/** Number of reported tokens used: one less, as the drawn token may have taken the place of the last. */
const TOP_USED = TOP - 1;

/** Lower bound of logprobs, in nats: a less likely token is practically impossible, and rounding decides its value. */
const LOGPROB_MIN = -20;
/** Maximum mean distance in nats per token. In bfloat16, 0.01 to 0.03 are usual between decoding and prefill. */
const DISTANCE_MAX = 0.1;

export async function checkSampling(
  engine: Engine,
  options: {
    prompt: readonly number[];
    tokensMax: number;
    isSpeculative: boolean;
    hasSeeds: boolean;
  },
): Promise<Finding[]> {
  const { prompt, tokensMax, isSpeculative, hasSeeds } = options;
  const before = await engine.drafts();
  const state: State = { test: new SamplingTest(ALPHA), differences: 0, isScored: true };
  let next = 0;
  const asked = Math.ceil(tokensMax / TOKENS_OF_ONE);
  const run = crypto.randomUUID();
  const draw = async () => {
    while (next < asked && !state.test.isRejected) {
      next += 1;
      // Other beginnings of the same text, so that requests are at different places of it.
      const shorter = next % BEGINNINGS;
      const tokens = prompt.slice(0, prompt.length - shorter);
      // Responses to one beginning are siblings, for who drafts from these.
      const sibling = { group: `doctor-${run}-${shorter}`, sample: Math.floor(next / BEGINNINGS) };
      const plain = { tokens, maxTokens: TOKENS_OF_ONE, temperature: 1, top: TOP, sibling };
      const request = hasSeeds ? { ...plain, seed: next } : plain;
      const made = await make(engine, request);
      take(state, made, await engine.score([...tokens, ...made.tokens], tokens.length, TOP));
    }
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, draw));
  const after = await engine.drafts();
  const drafted = after.drafted - before.drafted;
  const accepted = after.accepted - before.accepted;
  const drafts =
    drafted > 0 ? `${drafted} drafted and ${accepted} accepted meanwhile` : "no drafts";
  const findings = sampled(state, { drafts, drafted });
  if (isSpeculative && drafted === 0) {
    const reason =
      "it is configured to draft but drafted nothing for this text, so its drafts are not tested";
    findings.push(warn("drafts", reason, "run it again on a text that it drafts for"));
  }
  return findings;
}

interface State {
  readonly test: SamplingTest;
  /** Sum of the distances of reported from true logprobs, nats. */
  differences: number;
  /** Whether the engine reports the model's logprobs of a finished text. */
  isScored: boolean;
}

function take(state: State, made: Made, scored: Scored | null): void {
  if (scored === null) state.isScored = false;
  const { logprobs, top } = scored ?? made;
  for (const [index, logprob] of logprobs.entries()) {
    state.test.add({ logprob, top: (top[index] ?? []).slice(0, TOP_USED) });
    state.differences += Math.abs(
      Math.max(LOGPROB_MIN, logprob) - Math.max(LOGPROB_MIN, made.logprobs[index] ?? 0),
    );
  }
}

function sampled(state: State, drafting: { drafts: string; drafted: number }): Finding[] {
  const { test, differences, isScored } = state;
  const check = drafting.drafted > 0 ? "sampling with drafts" : "sampling";
  const means = `mean logprob of ${test.draws} draws ${test.scoreMean.toFixed(3)}, by the model's distributions ${test.expectedMean.toFixed(3)}`;
  const rate = `error rate ${ALPHA}`;
  const findings: Finding[] = [];
  if (test.isRejected) {
    const fix =
      drafting.drafted > 0
        ? "switch drafts off there (no --speculative-config): vLLM 0.32 on CPU draws wrongly with every method at temperature > 0"
        : "do not sample there: report it to vLLM";
    const seen = `${means}; ${rate}; ${drafting.drafts}`;
    findings.push(fail(check, `${seen}: it does not sample from the model's distribution`, fix));
  } else {
    const seen = `differences from ${test.resolution.toFixed(3)} on would show; ${rate}`;
    findings.push(ok(check, `${means}; ${seen}; ${drafting.drafts}`));
  }
  const reported = "reported logprobs";
  if (!isScored) {
    const reason =
      "it does not score a finished text (prompt_logprobs): draws were held against its own report alone";
    return [...findings, warn(reported, reason, "give it --max-logprobs 20 or more")];
  }
  const distance = differences / Math.max(1, test.draws);
  const text = `${distance.toFixed(4)} nats a token from those of the finished text`;
  if (distance < DISTANCE_MAX) return [...findings, ok(reported, text)];
  const wrong = `${text}: a trainer's importance weights would be wrong`;
  return [...findings, fail(reported, wrong, "compare --dtype float32 and drafts off")];
}

/** Number of draws in the test at the start; the fault of vLLM 0.32 on CPU shows after about 1,200. */
const DRAWS = 4096;
const PROMPT_TOKENS = 96;
/** Class name of the project's own plugin, which tests the sampler itself before the first draft. */
const FORETOKEN_PROPOSER = /^foretoken_vllm\./;

/** none: the engine does not draft, or by the project's plugin. sound: it samples correctly with its drafts. */
export type Losslessness =
  | { readonly kind: "none" }
  | { readonly kind: "sound"; readonly reason: string }
  /** unknown: the engine drafted nothing for the test's text, or could not be asked. */
  | { readonly kind: "unknown"; readonly reason: string }
  | { readonly kind: "faulty"; readonly reason: string };

/** Tests an engine that drafts by itself. `found`: result of its worker's probe. `token`: for the engine; null: none. */
export async function losslessness(
  url: string,
  token: string | null,
  found: FoundEngine,
): Promise<Losslessness> {
  const { config, isSpeculative, hasSeeds } = found.capabilities;
  const proposer = String(pathOf(config, "speculative_config", "model"));
  if (!isSpeculative || FORETOKEN_PROPOSER.test(proposer)) return { kind: "none" };
  const engine = new Engine(url, token, found);
  try {
    const findings = await checkSampling(engine, {
      prompt: await somePrompt(engine, PROMPT_TOKENS),
      tokensMax: DRAWS,
      isSpeculative: true,
      hasSeeds,
    });
    const [sampling] = findings;
    const wrong = findings.find(({ verdict }) => verdict === "fail");
    if (wrong !== undefined) return { kind: "faulty", reason: wrong.reason };
    const unknown = findings.find(({ check }) => check === "drafts");
    if (unknown !== undefined) return { kind: "unknown", reason: unknown.reason };
    return { kind: "sound", reason: sampling?.reason ?? "" };
  } catch (error) {
    if (error instanceof Refused) return { kind: "unknown", reason: error.message };
    throw error;
  }
}
