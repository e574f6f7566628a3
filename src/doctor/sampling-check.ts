// Has an engine draw many tokens at temperature 1 and tests whether they come from the distribution that it reports
// (sampling-test.ts). Drafts must not change that; without drafts it is the engine's sampler that is tested.

import { make } from "./behaviour-checks.ts";
import type { Engine, Made } from "./engine.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";
import { SamplingTest } from "./sampling-test.ts";

/** The chance that a sound engine is called faulty. */
export const ALPHA = 1e-6;
const CONCURRENCY = 16;
const TOKENS_OF_ONE = 128;
/** What vLLM reports at most without --max-logprobs. */
const TOP = 20;
/** One less: the token drawn may have taken the place of the last. */
const TOP_USED = TOP - 1;

interface DraftCounts {
  readonly drafted: number;
  readonly accepted: number;
}

export async function checkSampling(
  engine: Engine,
  options: { prompt: readonly number[]; tokensMax: number; isSpeculative: boolean | null },
): Promise<Finding[]> {
  const { prompt, tokensMax, isSpeculative } = options;
  const before = await draftCounts(engine);
  const test = new SamplingTest(ALPHA);
  let next = 0;
  const asked = Math.ceil(tokensMax / TOKENS_OF_ONE);
  const draw = async () => {
    while (next < asked && !test.isRejected) {
      next += 1;
      take(
        test,
        await make(engine, {
          // Other beginnings of the same text, so that requests are at different places of it.
          tokens: prompt.slice(0, prompt.length - (next % 16)),
          maxTokens: TOKENS_OF_ONE,
          temperature: 1,
          seed: next,
          top: TOP,
        }),
      );
    }
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, draw));
  const after = await draftCounts(engine);
  const drafted = after.drafted - before.drafted;
  const accepted = after.accepted - before.accepted;
  const drafts =
    drafted > 0 ? `${drafted} drafted and ${accepted} accepted meanwhile` : "no drafts";
  const findings = [sampled(test, { drafts, drafted })];
  if (isSpeculative === true && drafted === 0) {
    findings.push(
      warn(
        "drafts",
        "it is set up to draft, and drafted nothing for this text: the test says nothing of them",
        "run it again on a text that it drafts for",
      ),
    );
  }
  return findings;
}

function sampled(test: SamplingTest, told: { drafts: string; drafted: number }): Finding {
  const check = told.drafted > 0 ? "sampling with drafts" : "sampling";
  const means = `mean logprob of ${test.draws} draws ${test.scoreMean.toFixed(3)}, by its own distributions ${test.expectedMean.toFixed(3)}`;
  const rate = `error rate ${ALPHA}`;
  if (!test.isRejected) {
    return ok(
      check,
      `${means}; differences from ${test.resolution.toFixed(3)} on would show; ${rate}; ${told.drafts}`,
    );
  }
  const fix =
    told.drafted > 0
      ? "switch drafts off there (no --speculative-config): vLLM 0.32 on CPU draws wrongly with every method at temperature > 0"
      : "do not sample there: report it to vLLM";
  return fail(
    check,
    `${means}; ${rate}; ${told.drafts}: what it draws is not what the model says`,
    fix,
  );
}

function take(test: SamplingTest, made: Made): void {
  for (const [index, logprob] of made.logprobs.entries()) {
    test.add({ logprob, top: (made.top[index] ?? []).slice(0, TOP_USED) });
  }
}

async function draftCounts(engine: Engine): Promise<DraftCounts> {
  const text = String((await engine.call("GET", "/metrics")).body);
  const sum = (name: string) =>
    [...text.matchAll(new RegExp(`^vllm:${name}(?:_total)?(?:\\{[^}]*\\})? (\\S+)`, "gm"))].reduce(
      (total, match) => total + Number(match[1]),
      0,
    );
  return {
    drafted: sum("spec_decode_num_draft_tokens"),
    accepted: sum("spec_decode_num_accepted_tokens"),
  };
}
