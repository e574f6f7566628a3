// Tests on the engine, at temperature 0, whether a divided response equals the same response in one piece. The doctor reports
// it. A worker tests models whose state is not KV of tokens (Mamba, linear attention), because there a continuation computes
// its state by prefill, and not step by step as in decoding.

import { errorText } from "../../core/base/errors.ts";
import { type Made, refusalText, type TrialServer, trialRequest, tryRequest } from "./trial.ts";

const TOKENS = 192;
const CHUNK_TOKENS = 48;

export interface DividedCheck {
  readonly tokens: number;
  readonly chunks: number;
  /** First position at which the two responses differ; -1: none. */
  readonly at: number;
  /** Difference of the two likeliest tokens' logprobs at that position, nats. 0: not known. */
  readonly gapNats: number;
  /** Largest difference of logprobs between the two responses, while their tokens are the same. 0: bit for bit equal. */
  readonly logprobNats: number;
}

/** `generate`: makes `tokensMax` tokens greedily, with the two likeliest at each position. */
export async function checkDivided(
  generate: (prompt: readonly number[], tokensMax: number) => Promise<Pick<Made, "tokens" | "top">>,
  prompt: readonly number[],
): Promise<DividedCheck> {
  const whole = await generate(prompt, TOKENS);
  const tokens: number[] = [];
  const top: (readonly number[])[] = [];
  while (tokens.length < TOKENS) {
    const tokensMax = Math.min(CHUNK_TOKENS, TOKENS - tokens.length);
    const chunk = await generate([...prompt, ...tokens], tokensMax);
    if (chunk.tokens.length === 0) break;
    tokens.push(...chunk.tokens);
    top.push(...chunk.top);
  }
  const differs = whole.tokens.findIndex((token, index) => token !== tokens[index]);
  const isWhole = whole.tokens.length === TOKENS && tokens.length === TOKENS;
  const at = differs < 0 && !isWhole ? Math.min(whole.tokens.length, tokens.length) : differs;
  const [first = 0, second = 0] = whole.top[at] ?? [];
  const logprobNats = whole.top
    .slice(0, at < 0 ? TOKENS : at)
    .flatMap((row, i) => row.map((logprob, j) => Math.abs(logprob - (top[i]?.[j] ?? logprob))))
    .reduce((most, nats) => Math.max(most, nats), 0);
  const chunks = Math.ceil(TOKENS / CHUNK_TOKENS);
  return { tokens: TOKENS, chunks, at, gapNats: first - second, logprobNats };
}

/** A prompt of ids that every vocabulary has. */
const PROMPT = Array.from({ length: 96 }, (_, index) => 10 + (index % 32));
const ABOUT = "the model is hybrid (Mamba or linear attention)";

/** Why responses of a hybrid model run undivided; null: they can be divided. */
export async function hybridProblem(server: TrialServer): Promise<string | null> {
  try {
    const { at, logprobNats } = await dividedCheck(server);
    if (at < 0 && logprobNats === 0) return null;
    const how = at < 0 ? `by ${logprobNats} nats` : `from token ${at} on`;
    return `${ABOUT}, and a response in chunks differs from the whole one ${how}: responses run undivided (see foretoken doctor)`;
  } catch (error) {
    return `${ABOUT}, and whether responses can be divided is not known (${errorText(error)}): they run undivided`;
  }
}

/** @throws Error: the server generates nothing. */
export async function dividedCheck(server: TrialServer): Promise<DividedCheck> {
  const { limits, cacheSalt } = server;
  return await checkDivided(async (prompt, tokensMax) => {
    const request = trialRequest(cacheSalt, {
      name: "ft-divided",
      prompt: Int32Array.from(prompt),
      sampling: { tokensMax, topLogprobs: 2 },
    });
    const tried = await tryRequest(server, request, { msMax: limits.startMsMax });
    if (tried.kind !== "made") throw new Error(refusalText({ status: 0, ...tried }));
    return tried;
  }, PROMPT);
}
