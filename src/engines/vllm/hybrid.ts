// Models whose layers are not all attention (Mamba, linear attention): their responses run undivided until the engine
// has shown, when it is opened, that a divided one is the same.

import { errorText } from "../../core/base/errors.ts";
import { checkDivided, type DividedCheck } from "./divided-check.ts";
import { type TrialServer, trialRequest, tryRequest } from "./trial.ts";

/** Ids that every vocabulary has. */
const PROMPT = Array.from({ length: 96 }, (_, index) => 10 + (index % 32));
const ABOUT = "the model is hybrid (Mamba or linear attention)";

/** Why responses of a hybrid model run undivided; null: they can be divided. */
export async function hybridProblem(server: TrialServer): Promise<string | null> {
  try {
    const { at } = await dividedCheck(server);
    if (at < 0) return null;
    return `${ABOUT}, and a response in chunks differs from the whole one from token ${at} on: responses run undivided (see foretoken doctor)`;
  } catch (error) {
    return `${ABOUT}, and whether responses can be divided is not known (${errorText(error)}): they run undivided`;
  }
}

/** @throws Error: it generates nothing. */
export async function dividedCheck(server: TrialServer): Promise<DividedCheck> {
  const { limits, cacheSalt } = server;
  return await checkDivided(async (prompt, { tokensMax, hasTop }) => {
    const ask = trialRequest(cacheSalt, {
      name: "ft-divided",
      prompt: Int32Array.from(prompt),
      sampling: { tokensMax, topLogprobs: hasTop ? 2 : 0 },
    });
    const tried = await tryRequest(server, ask, { msMax: limits.startMsMax });
    if (tried.kind !== "made") throw new Error(tried.message);
    const top = tried.alternatives.map((row) => row.filter((_, i) => i % 2 === 1));
    return { tokens: tried.tokens, top };
  }, PROMPT);
}
