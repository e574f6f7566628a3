// Has a server make a few tokens with the weights that it has now, and looks at their logprobs: weights that are not
// numbers give none, weights that are all the same give every token the same. Its salt is used once, and its prompt is
// shorter than any block of KV, so that nothing of it is found later.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { ControlAnswer } from "../../core/rollout/worker.ts";
import type { Alternatives } from "./event.ts";
import { type Made, type TrialServer, trialRequest, tryRequest } from "./trial.ts";

/** Number of positions that must all be flat before the weights count as flat: ties of two tokens happen. */
const OUTPUT_TOKENS = 4;
const ALTERNATIVES = 2;
/** vLLM's replacement for an invalid logprob. */
const LOGPROB_NONE = -9999;

/**
 * Never rejects. `adapter` null: the model itself. `ranks`: of data parallel engines, each of which has weights of its
 * own; null: the server is one engine.
 */
export async function weightsCanary(
  server: TrialServer,
  { epoch, adapter, ranks }: { epoch: WeightEpoch; adapter: string | null; ranks: number | null },
): Promise<ControlAnswer> {
  const form = adapter === null ? server.form : { ...server.form, model: adapter };
  const name = crypto.randomUUID();
  const problems = await Promise.all(
    Array.from({ length: ranks ?? 1 }, async (_, rank) => {
      const own = ranks === null ? name : `${name}-${rank}`;
      const ask = trialRequest(`${server.cacheSalt}-canary-${own}`, {
        name: `ft-canary-${own}`,
        prompt: Int32Array.of(0, 1, 2, 3),
        sampling: { tokensMax: OUTPUT_TOKENS, topLogprobs: ALTERNATIVES },
        run: server.cacheSalt,
        epoch,
        streamInterval: 1,
      });
      const msMax = server.limits.canaryMsMax;
      const pinned = ranks === null ? null : rank;
      const tried = await tryRequest({ ...server, form }, ask, { msMax, rank: pinned });
      if (tried.kind === "unreachable") return { status: 502, error: tried.message };
      const problem = tried.kind === "refused" ? refusalOf(tried) : problemOf(tried);
      if (problem === null) return null;
      return { status: 500, error: `the weights do not generate: ${problem}` };
    }),
  );
  const first = problems.find((problem) => problem !== null);
  if (first === undefined) return { status: 200, body: { tokens: OUTPUT_TOKENS } };
  return { status: first.status, body: { error: first.error } };
}

function refusalOf({ status, message }: { status: number; message: string }): string {
  return status === 0 ? message : `HTTP ${status}: ${message}`;
}

/** null: its tokens have finite logprobs, and not all the same ones. */
function problemOf({ logprobs, alternatives, hasUnreadable }: Made): string | null {
  if (hasUnreadable) return "an event of its stream is not JSON";
  if (logprobs.length === 0) return "it generated no token";
  const wrong = logprobs.find((one) => !(one > LOGPROB_NONE && one <= 0.001));
  if (wrong !== undefined) return `a token's logprob is ${wrong <= LOGPROB_NONE ? "none" : wrong}`;
  const isFlat = alternatives.length === OUTPUT_TOKENS && alternatives.every(isTie);
  return isFlat ? "all tokens are equally likely" : null;
}

/** Token, logprob, token, logprob. */
function isTie(row: Alternatives): boolean {
  return row.length >= 4 && row[1] === row[3];
}
