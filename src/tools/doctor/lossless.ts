// Tests whether an engine that drafts still samples from its model's distribution, before it gets a rollout. Returns
// the fault and the measurement; the caller decides what follows.

import { Refused, somePrompt } from "./behaviour-checks.ts";
import { Engine, pathOf } from "./engine.ts";
import { checkSampling } from "./sampling-check.ts";
import { checkEndpoints, readServerInfo } from "./settings-checks.ts";

/** Draws of a test at the start: that of vLLM 0.32 on CPU shows after about 1,200. */
const DRAWS = 4096;
const PROMPT_TOKENS = 96;
/** The project's own plugin: it tests the sampler itself, before the first draft. */
const FORETOKEN_PROPOSER = /^foretoken_vllm\./;

/** none: it does not draft, or its drafts are the project's own. sound: it draws as it should, drafts and all. */
export type Losslessness =
  | { readonly kind: "none" }
  | { readonly kind: "sound"; readonly reason: string }
  /** It drafted nothing for the text of the test, or could not be asked. */
  | { readonly kind: "unknown"; readonly reason: string }
  | { readonly kind: "faulty"; readonly reason: string };

/** `token`: sent to the engine; null: none. */
export async function losslessness(url: string, token: string | null): Promise<Losslessness> {
  const engine = new Engine(url, token);
  const server = await readServerInfo(engine, []);
  const speculation = pathOf(server?.config, "speculative_config");
  const isForetoken = FORETOKEN_PROPOSER.test(String(pathOf(speculation, "model")));
  if (server === null || server.isSpeculative !== true || isForetoken) return { kind: "none" };
  await checkEndpoints(engine);
  try {
    const findings = await checkSampling(engine, {
      prompt: await somePrompt(engine, PROMPT_TOKENS),
      tokensMax: DRAWS,
      isSpeculative: true,
      hasSeeds: server.isSeedSafe,
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
