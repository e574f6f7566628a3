// The cost of losing an engine: a rollout over two processes of stand-ins for vLLM (a step takes 20 ms, prefill nothing), in
// turn `calm` (no loss, the baseline), `notice` (DELETE /workers) and `killed` (SIGKILL) at two fifths of the tokens; a fresh
// server comes 2 s later. ETTR is calm's time over a run's. Every response must be the same each time.
//
//   bun bench/macro/elastic.ts [--rounds 5] [--tokens 192] [--json FILE]

import { median } from "../../src/cli/rounds.ts";
import { BUNDLED_HF_MODEL } from "../../src/host/installation.ts";
import { rolledOut } from "../../test/faults/chaos/response-line.ts";
import { startStandIn, ToolProcess } from "../../test/faults/process.ts";
import { flagsOf, writeReport } from "../harness.ts";

const { rounds, tokens: max_tokens, json } = flagsOf(import.meta.path, { rounds: 5, tokens: 192 });
const sampling_params = { max_tokens, temperature: 1, seed: 42 };
const groups = Array.from({ length: 8 }, (_, i) => ({ id: `g${i}`, token_ids: [i, 7, 9], n: 8 }));
const body = JSON.stringify({ id: "elastic", groups, sampling_params });
const SERVER = { slots: 16, blocks: 1024, stepMs: 20, isExact: true };
const CASES = ["calm", "notice", "killed"] as const;

async function startServer(): Promise<ToolProcess> {
  const server = startStandIn(SERVER);
  await server.listens();
  return server;
}

async function run(how: (typeof CASES)[number], goal: number) {
  const lost = await startServer();
  const kept = await startServer();
  const workers = ["--worker", lost.url, "--worker", kept.url];
  const sidecar = await ToolProcess.serving("--tokenizer", BUNDLED_HF_MODEL, ...workers);
  const { http } = sidecar;
  const [all, startMs] = [[lost, kept, sidecar], performance.now()];
  const since = (ms: number): number => (performance.now() - ms) / 1000;
  const loss = async (): Promise<number> => {
    const now = async () => Object(await http.json("/v1/rollouts/elastic")).progress;
    while (!((await now())?.output_tokens >= goal)) await Bun.sleep(20);
    if (how === "killed") await lost.kill();
    await http.call(`/workers?url=${encodeURIComponent(lost.url)}`, { method: "DELETE" });
    while ((await http.workers()).some(({ name }) => name === lost.url)) await Bun.sleep(20);
    await lost.kill();
    const leftS = since(startMs);
    await Bun.sleep(2000);
    const freshMs = performance.now();
    const fresh = await startServer();
    all.push(fresh);
    await http.ask("/workers", { url: fresh.url });
    return leftS - (freshMs - startMs) / 1000;
  };
  const losing = how === "calm" ? null : loss();
  const { lines, report } = await rolledOut(http.url, body);
  // Seconds of all servers, each for as long as it existed.
  const engineS = 2 * since(startMs) + ((await losing) ?? 0);
  const count = (name: string) => http.metric(`foretoken_${name}_tokens_total`);
  const recomputed = await count("recomputed");
  const twice = (await count("duplicated")) + (await count("late")) + (await count("restarted"));
  for (const one of all) await one.kill();
  const texts = lines.map((line) =>
    JSON.stringify([line.group, line.index, line.token_ids, line.logprobs]),
  );
  const same = Bun.hash(texts.sort().join()).toString(16);
  const { wall_s, output_tokens: tokens } = report;
  return { wall_s, engine_s: engineS, tokens, recomputed, twice, same };
}

type Run = Awaited<ReturnType<typeof run>>;
const runs: Record<string, Run[]> = { calm: [], notice: [], killed: [] };
for (let round = 0; round < rounds; round += 1) {
  for (const how of CASES) {
    const one = await run(how, (runs.calm?.[0]?.tokens ?? 0) * 0.4);
    runs[how]?.push(one);
    const ratio = (key: "wall_s" | "engine_s", i: number, other: Run) =>
      other[key] / (runs.calm?.[i]?.[key] ?? Number.NaN);
    const wall = median((runs[how] ?? []).map((other, i) => ratio("wall_s", i, other)));
    const cost = median((runs[how] ?? []).map((other, i) => ratio("engine_s", i, other)));
    const ratios = [wall, 1 / wall, cost].map((x) => x.toFixed(2));
    console.log(`${how}: wall, ETTR, cost x calm ${ratios.join(", ")}: ${JSON.stringify(one)}`);
  }
}
writeReport(json, runs);
