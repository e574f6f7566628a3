// The same rollout on two real vLLM servers, by each of the systems in vllm/systems.ts, interleaved in rounds of one run.
//
//   npm run bench:vllm -- --priced [--dtype float32|bfloat16] [--setting paper|bulk] [--systems a,b] [--rounds N]
//       [--groups N] [--report FILE.json] [--account]
//
// `--priced`: with the bundled model widened (npm run model:priced), so that a decode step is bound by memory, in bfloat16
// where the CPU has matrix units. `--setting`: how short KV is (vllm/settings.ts). All requests have one `max_tokens`, and
// each token is the one that plain vLLM drew in a run before, so that all systems have the same work. Further sizes:
// --siblings, --max-tokens, --max-num-seqs, --kv-blocks, --max-model-len, --chunk-tokens, --ngram-tokens, --suffix-tokens.

import { writeFileSync } from "node:fs";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { ensurePlugin } from "../../src/tools/up/install-plugin.ts";
import { ROOT, vllmMissing } from "../../test/vllm/fleet.ts";
import { conditions, helpFrom } from "../harness.ts";
import { type Account, accountOf, accountTables } from "./vllm/account.ts";
import type { Run } from "./vllm/drive.ts";
import { figuresOf, figuresOfAll } from "./vllm/figures.ts";
import { separate } from "./vllm/neighbour.ts";
import { type Found, notesOf, reportOf, tableOf } from "./vllm/report.ts";
import { runRounds, workloadsOf } from "./vllm/rounds.ts";
import { readSettings, type Settings } from "./vllm/settings.ts";
import { Servers, type System, type SystemName } from "./vllm/systems.ts";

type Runs = ReadonlyMap<SystemName, readonly Run[]>;

function foundIn(runs: Runs): Found {
  return new Map([...runs].map(([name, of]) => [name, figuresOfAll(of.map(figuresOf))]));
}

function accountsOf(runs: Runs): Map<SystemName, Account> {
  return new Map([...runs].map(([name, of]) => [name, accountOf(of)]));
}

/** Saves the report after every round, so that an interrupted run leaves the rounds before. */
function save(runs: Runs, settings: Settings, machine: object): void {
  const found = foundIn(runs);
  if (settings.report === null) return;
  const { setting, sizes, launch } = settings;
  const about = { setting, machine, ...sizes, ...launch };
  const report = reportOf(found, { ...conditions(), ...about });
  const all = { ...report, account: Object.fromEntries(accountsOf(runs)) };
  writeFileSync(settings.report, `${JSON.stringify(all)}\n`);
}

function tell(runs: Runs, settings: Settings): void {
  const found = foundIn(runs);
  console.log(tableOf(found));
  for (const note of notesOf(found)) console.log(note);
  if (settings.account) console.log(accountTables(accountsOf(runs)));
}

async function main(): Promise<void> {
  helpFrom(import.meta.path);
  const settings = readSettings(process.argv.slice(2));
  const missing = vllmMissing();
  if (missing !== null) throw new Error(missing);
  const servers = new Servers(settings.launch);
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.once(signal, () => void servers.stop().finally(() => process.exit(130)));
  }
  try {
    // Also what makes vLLM's own drafts lossless on a CPU is in the plugin's package.
    const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
    await ensurePlugin({ python, root: ROOT });
    const plain = await servers.open("plain");
    const machine = await separate(plain.urls, settings.launch.model, servers.fillers);
    // All before the texts are drawn: servers that do not start end the bench at once.
    const systems: System[] = [];
    for (const name of settings.systems) systems.push(await servers.open(name));
    const workloads = await workloadsOf(plain, settings, servers);
    const keep = (runs: Runs): void => save(runs, settings, machine);
    tell(await runRounds(systems, workloads, servers, keep), settings);
  } finally {
    await servers.stop();
  }
}

if (import.meta.main) await main();
