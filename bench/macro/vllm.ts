// The same rollout on two real vLLM servers, by each of the systems in vllm/systems.ts, interleaved in rounds of one run.
//
//   npm run bench:vllm -- --priced [--dtype float32|bfloat16] [--setting paper|bulk] [--systems a,b] [--rounds N]
//       [--groups N] [--report FILE.json] [--account]
//
// `--priced`: with the bundled model widened (npm run model:priced), so that a decode step is bound by memory, in bfloat16
// where the CPU has matrix units. `--setting`: how short KV is (vllm/settings.ts). All requests have one `max_tokens`, and
// each token is the one that plain vLLM drew in a run before, so that all systems have the same work. Further sizes:
// --siblings, --max-tokens, --max-num-seqs, --kv-blocks, --max-model-len, --chunk-tokens, --ngram-tokens, --suffix-tokens.

import { present } from "../../src/core/base/assert.ts";
import { conditions, interleaved, writeReport } from "../harness.ts";
import { iteration } from "./vllm/drive.ts";
import { accountTables, figuresIn, notesOf, reportOf, tableOf } from "./vllm/figures.ts";
import { checkRun, workloadsOf } from "./vllm/rounds.ts";
import { readSettings } from "./vllm/settings.ts";
import { withServers } from "./vllm/systems.ts";

const settings = readSettings(process.argv.slice(2), import.meta.path);
const { sizes, launch, setting, systems: names } = settings;
await withServers(names, { launch, setOf: (name) => name }, async (systems, servers, machine) => {
  const workloads = await workloadsOf(await servers.open("plain"), settings, servers);
  const run = async (name: (typeof names)[number], round: number) => {
    const system = present(systems.get(name), "all are open");
    const workload = present(workloads[round], "one for each round");
    const made = await iteration(system, workload, servers);
    const what = round === 0 ? "warm-up" : `round ${round}/${sizes.rounds}`;
    console.error(`${what} ${name}: ${made.wallS.toFixed(1)} s, tail ${made.tailS.toFixed(1)} s`);
    checkRun(made, workload, system);
    return made;
  };
  const about = { ...conditions(), setting, machine, ...sizes, ...launch };
  // After every round, so that an interrupted run leaves the rounds before.
  const runs = await interleaved(names, sizes.rounds, run, (so) =>
    writeReport(settings.json, reportOf(so, about)),
  );
  const found = figuresIn(runs);
  console.log([tableOf(found), ...notesOf(found)].join("\n"));
  if (settings.account) console.log(accountTables(runs));
});
