// The same rollout on two real vLLM servers, by each of the systems in vllm/systems.ts, interleaved in rounds of one run.
//
//   npm run bench:vllm -- --priced [--setting paper|bulk] [--systems a,b] [--rounds N] [--groups N] [--report FILE]
//
// `--priced`: with the bundled model widened (npm run model:priced), so that a decode step is bound by memory; without it
// the bundled model itself. `--setting`: how short KV is (vllm/settings.ts). Every request has the same `max_tokens`. Systems that
// draft draw other texts from the same seeds; so that all have the same work, each response ends inside the engine where
// plain vLLM ended it in a run before (`--lengths natural`: where the model ends it).

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { vllmMissing } from "../../test/vllm/fleet.ts";
import { conditions, SEED } from "../harness.ts";
import { iteration, type Run, type Workload } from "./vllm/drive.ts";
import { figuresOf, figuresOfAll } from "./vllm/figures.ts";
import { lengthsOf } from "./vllm/lengths.ts";
import { type Found, notesOf, reportOf, tableOf } from "./vllm/report.ts";
import { readSettings, type Settings } from "./vllm/settings.ts";
import { promptsOf, Servers, type System, type SystemName } from "./vllm/systems.ts";

/** Before the rounds, on every system, not counted. */
const WARM_UP_GROUPS = 4;

/** What is sent in the warm-up, and in each round. */
async function workloadsOf(
  plain: System,
  settings: Settings,
  servers: Servers,
): Promise<Workload[]> {
  const { sizes, launch, areLengthsFixed } = settings;
  const { rounds, groups, siblings, maxTokens } = sizes;
  const { model } = launch;
  const prompts = await promptsOf(plain, model, WARM_UP_GROUPS + rounds * groups);
  const { eos_token_id: eos } = JSON.parse(readFileSync(join(model, "config.json"), "utf8"));
  const lengths = areLengthsFixed
    ? await lengthsOf(plain, { model, eos, prompts, siblings, maxTokens, seed: SEED }, servers)
    : null;
  return Array.from({ length: rounds + 1 }, (_, round) => {
    const from = round === 0 ? 0 : WARM_UP_GROUPS + (round - 1) * groups;
    const to = round === 0 ? WARM_UP_GROUPS : from + groups;
    const plan = {
      eos,
      prompts: prompts.slice(from, to),
      lengths: lengths?.slice(from, to) ?? null,
    };
    return { model, plan, siblings, maxTokens, seed: SEED + from * siblings };
  });
}

/** All systems, in every round in another order. */
async function measure(settings: Settings, servers: Servers): Promise<Map<SystemName, Run[]>> {
  const { rounds } = settings.sizes;
  const plain = await servers.open("plain");
  const workloads = await workloadsOf(plain, settings, servers);
  const systems: System[] = [];
  for (const name of settings.systems) systems.push(await servers.open(name));
  const runs = new Map<SystemName, Run[]>(settings.systems.map((name) => [name, []]));
  for (const [round, workload] of workloads.entries()) {
    for (let turn = 0; turn < systems.length; turn += 1) {
      const system = systems[(turn + round) % systems.length];
      if (system === undefined) continue;
      const run = await iteration(system, workload, servers);
      const what = round === 0 ? "warm-up" : `round ${round}/${rounds}`;
      const [wall, tail] = [run.wallS.toFixed(1), run.tailS.toFixed(1)];
      console.error(`${what} ${system.name}: ${wall} s, tail ${tail} s`);
      checkLengths(run, workload, system.name);
      if (round > 0) runs.get(system.name)?.push(run);
    }
  }
  return runs;
}

/** All systems did the same work. */
function checkLengths({ lengths }: Run, { plan, maxTokens }: Workload, name: SystemName): void {
  for (const [group, expected] of plan.lengths?.entries() ?? []) {
    const wanted = expected.map((tokens) => tokens || maxTokens).toSorted((a, b) => a - b);
    const made = lengths[group]?.toSorted((a, b) => a - b) ?? [];
    if (wanted.join() !== made.join()) {
      throw new Error(`${name}: group ${group} has lengths ${made.join()}, not ${wanted.join()}`);
    }
  }
}

async function main(): Promise<void> {
  const settings = readSettings(process.argv.slice(2));
  const missing = vllmMissing();
  if (missing !== null) throw new Error(missing);
  const servers = new Servers(settings.launch);
  try {
    const runs = await measure(settings, servers);
    const found: Found = new Map(
      [...runs].map(([name, of]) => [name, figuresOfAll(of.map(figuresOf))]),
    );
    console.log(tableOf(found));
    for (const note of notesOf(found)) console.log(note);
    if (settings.report === null) return;
    const { setting, sizes, launch, areLengthsFixed } = settings;
    const about = { setting, ...sizes, ...launch, lengths: areLengthsFixed ? "fixed" : "natural" };
    const report = reportOf(found, { ...conditions(), ...about });
    writeFileSync(settings.report, `${JSON.stringify(report)}\n`);
  } finally {
    await servers.stop();
  }
}

if (import.meta.main) await main();
