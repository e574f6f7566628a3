// The workloads of all rounds, and the rounds themselves: every system in each of them.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { SEED } from "../../harness.ts";
import { iteration, type Run, type Workload } from "./drive.ts";
import type { Settings } from "./settings.ts";
import { promptsOf, type Servers, type System, type SystemName } from "./systems.ts";
import { textsOf } from "./texts.ts";

/** Groups that run before the rounds on every system, not counted. */
const WARM_UP_GROUPS = 4;

/** The workloads of the warm-up and of each round. */
export async function workloadsOf(
  plain: System,
  settings: Settings,
  servers: Servers,
): Promise<Workload[]> {
  const { sizes, launch } = settings;
  const { rounds, groups, siblings, maxTokens } = sizes;
  const { model } = launch;
  const prompts = await promptsOf(plain.urls[0] ?? "", model, WARM_UP_GROUPS + rounds * groups);
  const { eos_token_id: eos } = JSON.parse(readFileSync(join(model, "config.json"), "utf8"));
  const options = { model, eos, prompts, siblings, maxTokens, seed: SEED };
  const texts = await textsOf(plain, options, servers);
  return Array.from({ length: rounds + 1 }, (_, round) => {
    const from = round === 0 ? 0 : WARM_UP_GROUPS + (round - 1) * groups;
    const to = round === 0 ? WARM_UP_GROUPS : from + groups;
    const plan = { eos, prompts: prompts.slice(from, to), texts: texts.slice(from, to) };
    return { model, plan, siblings, maxTokens, seed: SEED + from * siblings };
  });
}

/**
 * The first workload warms up and is not counted; the systems' order turns, so that none is always first.
 * `onRound` gets the runs of all rounds so far.
 */
export async function runRounds(
  systems: readonly System[],
  workloads: readonly Workload[],
  servers: Servers,
  onRound: (runs: ReadonlyMap<SystemName, readonly Run[]>) => void = () => {},
): Promise<Map<SystemName, Run[]>> {
  const rounds = workloads.length - 1;
  const runs = new Map<SystemName, Run[]>(systems.map(({ name }) => [name, []]));
  for (const [round, workload] of workloads.entries()) {
    for (let turn = 0; turn < systems.length; turn += 1) {
      const system = systems[(turn + round) % systems.length];
      if (system === undefined) continue;
      const run = await iteration(system, workload, servers);
      const what = round === 0 ? "warm-up" : `round ${round}/${rounds}`;
      const [wall, tail] = [run.wallS.toFixed(1), run.tailS.toFixed(1)];
      console.error(`${what} ${system.name}: ${wall} s, tail ${tail} s`);
      checkTexts(run, workload, system.name);
      if (system.drafts && run.counters.draftedTokens === 0) {
        throw new Error(`${system.name} drafted nothing: its servers do not draft as asked`);
      }
      if (round > 0) runs.get(system.name)?.push(run);
    }
    if (round > 0) onRound(runs);
  }
  return runs;
}

/** All systems did the same work. */
function checkTexts({ texts }: Run, { plan }: Workload, name: SystemName): void {
  for (const [group, expected] of plan.texts?.entries() ?? []) {
    // A sidecar numbers the responses of a group in the order in which they come.
    const wanted = expected.map((text) => text.join()).toSorted();
    const made = texts[group]?.map((text) => text.join()).toSorted() ?? [];
    const odd = made.find((text, i) => text !== wanted[i]);
    if (made.length !== wanted.length || odd !== undefined) {
      throw new Error(`${name}: group ${group} has other responses than planned, such as ${odd}`);
    }
  }
}
