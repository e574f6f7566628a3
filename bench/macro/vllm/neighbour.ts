// How much longer a server's step takes while the other server works. Where that is too much, fillers keep every server's
// core busy whenever its server is idle, so that a step takes the same either way.

import { median } from "../../../src/cli/rounds.ts";
import type { Fillers } from "./cores.ts";
import { readLog, tellPlan } from "./engine-log.ts";
import { post, promptsOf } from "./systems.ts";

/** Largest ratio of step times, with the other server busy over idle, that needs no fillers. */
const BUSY_RATIO_MAX = 1.05;
const PROBE_TOKENS = 160;

/** Median time of a step of one request while the other server works, over that while it is idle. */
async function busyRatio(urls: readonly string[], model: string): Promise<number> {
  const [first = "", second = ""] = urls;
  const prompts = await promptsOf(first, model, 2);
  await tellPlan(urls, { eos: -1, prompts, texts: null });
  const make = async (url: string, prompt: number): Promise<number[]> => {
    await post(`${url}/v1/completions`, {
      ...{ model, prompt: prompts[prompt], max_tokens: PROBE_TOKENS, temperature: 1 },
      ...{ ignore_eos: true, vllm_xargs: { bench_sample: 0 } },
    });
    const { steps } = await readLog([url]);
    return steps.flat().flatMap((s) => (s.prefillRows === 0 ? [s.endS - s.beginS] : []));
  };
  await make(first, 0);
  const alone = await make(first, 1);
  const [beside] = await Promise.all([make(first, 0), make(second, 1)]);
  return median(beside) / median(alone);
}

/** Measures the ratio, and starts fillers where it is too large and they help. Returns it before and, with fillers, after. */
export async function separate(
  urls: readonly string[],
  model: string,
  fillers: Fillers,
): Promise<{ busy_over_idle: number; with_fillers: number | null }> {
  const before = await busyRatio(urls, model);
  const told = `a step takes ${before.toFixed(3)} times as long while the other server works`;
  if (before <= BUSY_RATIO_MAX) {
    console.error(told);
    return { busy_over_idle: before, with_fillers: null };
  }
  fillers.start(urls.length);
  const after = await busyRatio(urls, model);
  if (after >= before) fillers.stop();
  const verdict = after < before ? "" : ", so there is none";
  console.error(`${told}; with a filler on each idle core ${after.toFixed(3)}${verdict}`);
  return { busy_over_idle: before, with_fillers: after };
}
