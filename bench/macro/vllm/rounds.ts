// The workloads of all rounds, with what each response says: as plain vLLM drew it in a run that is not measured. Texts are
// kept in the project's cache by model, prompt, seed and limit, so that each is drawn once. Only the engines learn them
// (vllm_bench.py).

import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { ROOT } from "../../../test/vllm/fleet.ts";
import { SEED } from "../../harness.ts";
import { iteration, type Run, type Workload } from "./drive.ts";
import { promptsOf, type Texts } from "./engine-log.ts";
import type { Settings } from "./settings.ts";
import type { Servers, System } from "./systems.ts";

const CACHE = join(ROOT, ".cache", "bench-vllm", "texts.json");
/** Groups that run before the rounds on every system, not counted. */
const WARM_UP_GROUPS = 4;

/** The workloads of the warm-up and of each round. */
export async function workloadsOf(
  plain: System,
  { sizes, launch: { model } }: Settings,
  servers: Servers,
): Promise<Workload[]> {
  const { rounds, groups, siblings, maxTokens } = sizes;
  const prompts = await promptsOf(plain.urls[0] ?? "", model, WARM_UP_GROUPS + rounds * groups);
  const { eos_token_id: eos } = JSON.parse(readFileSync(join(model, "config.json"), "utf8"));
  const part = (from: number, to: number, texts: readonly Texts[] | null): Workload => {
    const plan = { eos, prompts: prompts.slice(from, to), texts: texts?.slice(from, to) ?? null };
    return { model, plan, siblings, maxTokens, seed: SEED + from * siblings };
  };
  const draw = (from: number, to: number) => iteration(plain, part(from, to, null), servers);
  const weights = Bun.hash(readFileSync(join(model, "model.safetensors")));
  const keys = prompts.map((prompt, group) => {
    const parts = [String(weights), prompt, SEED + group * siblings, siblings, maxTokens];
    return String(Bun.hash(JSON.stringify(parts)));
  });
  const texts = await textsOf(keys, draw);
  return Array.from({ length: rounds + 1 }, (_, round) => {
    const from = round === 0 ? 0 : WARM_UP_GROUPS + (round - 1) * groups;
    return part(from, round === 0 ? WARM_UP_GROUPS : from + groups, texts);
  });
}

/** Texts by group. The last token is the end of text, or the response has `maxTokens`. `draw`: of the groups [from, to). */
async function textsOf(
  keys: readonly string[],
  draw: (from: number, to: number) => Promise<Run>,
): Promise<Texts[]> {
  const known: Record<string, Texts> = existsSync(CACHE)
    ? JSON.parse(readFileSync(CACHE, "utf8"))
    : {};
  const isMissing = (key: string) => known[key] === undefined;
  for (let from = keys.findIndex(isMissing); from >= 0; from = keys.findIndex(isMissing)) {
    // Groups in a row share an iteration: seeds count up.
    const length = keys.slice(from).findIndex((key) => !isMissing(key));
    const to = length < 0 ? keys.length : from + length;
    const run = await draw(from, to);
    for (const [i, key] of keys.slice(from, to).entries()) known[key] = run.texts[i] ?? [];
    console.error(`texts of ${to - from} groups, drawn by plain vLLM: ${run.wallS.toFixed(0)} s`);
    mkdirSync(dirname(CACHE), { recursive: true });
    writeFileSync(CACHE, `${JSON.stringify(known)}\n`);
  }
  return keys.map((key) => known[key] ?? []);
}

/** Throws Error if the system did other work than planned: every system has the same. */
export function checkRun({ texts, counters }: Run, { plan }: Workload, system: System): void {
  if (system.drafts && counters.draftedTokens === 0) {
    throw new Error(`${system.name} drafted nothing: its servers do not draft as asked`);
  }
  for (const [group, expected] of plan.texts?.entries() ?? []) {
    // A sidecar numbers the responses of a group in the order in which they come.
    const wanted = expected.map((text) => text.join()).toSorted();
    const made = texts[group]?.map((text) => text.join()).toSorted() ?? [];
    const odd = made.find((text, i) => text !== wanted[i]);
    if (made.length === wanted.length && odd === undefined) continue;
    throw new Error(
      `${system.name}: group ${group} has other responses than planned, such as ${odd}`,
    );
  }
}
