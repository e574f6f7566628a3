// Whether an engine that drafts by itself still draws what its model says: asked before a rollout is given to it. It
// says what is wrong, and why; what follows is its caller's affair.

import { Refused, somePrompt } from "./behaviour-checks.ts";
import { Engine, pathOf } from "./engine.ts";
import { checkSampling } from "./sampling-check.ts";
import { checkEndpoints, listen } from "./settings-checks.ts";

/** Draws of a test at the start: that of vLLM 0.32 on CPU shows after about 1,200. */
const DRAWS = 4096;
const PROMPT_TOKENS = 96;
/** The project's own drafts: they look at the sampler by themselves, before the first draft. */
const OWN_PROPOSER = /^foretoken_vllm\./;

/** none: it does not draft, or its drafts are the project's own. sound: it draws as it should, drafts and all. */
export type Losslessness =
  | { readonly kind: "none" }
  | { readonly kind: "sound"; readonly told: string }
  /** It drafted nothing for the text of the test, or could not be asked. */
  | { readonly kind: "unknown"; readonly told: string }
  | { readonly kind: "faulty"; readonly told: string };

/** `token`: sent to the engine; null: none. */
export async function losslessness(url: string, token: string | null): Promise<Losslessness> {
  const engine = new Engine(url, token);
  const told = await listen(engine, []);
  const speculation = pathOf(told?.config, "speculative_config");
  const isOwn = OWN_PROPOSER.test(String(pathOf(speculation, "model")));
  if (told === null || told.isSpeculative !== true || isOwn) return { kind: "none" };
  await checkEndpoints(engine);
  try {
    const findings = await checkSampling(engine, {
      prompt: await somePrompt(engine, PROMPT_TOKENS),
      tokensMax: DRAWS,
      isSpeculative: true,
      hasSeeds: told.isSeedSafe,
    });
    const [sampling] = findings;
    const wrong = findings.find(({ verdict }) => verdict === "fail");
    if (wrong !== undefined) return { kind: "faulty", told: wrong.reason };
    const untold = findings.find(({ check }) => check === "drafts");
    if (untold !== undefined) return { kind: "unknown", told: untold.reason };
    return { kind: "sound", told: sampling?.reason ?? "" };
  } catch (error) {
    if (error instanceof Refused) return { kind: "unknown", told: error.message };
    throw error;
  }
}
