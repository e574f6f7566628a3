// Whether the sidecar's memory is bounded: `foretoken serve` with embedded engines, its journal and its history, takes as
// many requests as a long run has, of every kind: whole, streamed, groups, rollouts, given up, wrong, and weight updates.
// Resident memory after each tenth, and what of it is finished work that is kept up to a bound (`foretoken_kept_bytes`); the
// last over that at the half says whether memory grows, and whether it does without what is kept.
//
//   bun bench/macro/soak.ts [--requests 16384] [--json FILE]

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BUNDLED_MODEL } from "../../src/host/installation.ts";
import { ToolProcess } from "../../test/faults/process.ts";
import { flagsOf, writeReport } from "../harness.ts";

const { requests: count, json } = flagsOf(import.meta.path, { requests: 16_384 });
const PARTS = 10;
/** Requests in flight. */
const CLIENTS = 64;

const folder = mkdtempSync(join(tmpdir(), "foretoken-soak-"));
const served = await ToolProcess.serving("--llama", "2", "--journal", folder);
const { http } = served;

/** One request; the status of its answer, 0 where it was given up. */
async function send(i: number): Promise<number> {
  const prompt = `total ${i % 97} ${i % 89} ${i % 10}`;
  const body = { prompt, max_tokens: 4 + (i % 24), temperature: 1, seed: i };
  const groups = [0, 1].map((one) => ({ id: `g${one}`, prompt: `${prompt} ${one}`, n: 2 }));
  const sampling = { max_tokens: 16, temperature: 1 };
  if (i % 1_024 === 1_023) {
    const kwargs = { weights_path: BUNDLED_MODEL };
    return (await http.ask("/collective_rpc", { method: "reload_weights", kwargs })).status;
  }
  switch (i % 8) {
    case 0:
      return (await http.ask("/v1/completions", { ...body, n: 4 })).status;
    case 1:
      return (await http.ask("/v1/completions", { ...body, stream: true, logprobs: 3 })).status;
    case 2:
      return (await http.ask("/v1/rollouts", { groups, sampling_params: sampling })).status;
    case 3:
      return (await http.ask("/v1/completions", { ...body, max_tokens: -1 })).status;
    case 4: {
      const signal = AbortSignal.timeout(5 + (i % 50));
      const init = { method: "POST", body: JSON.stringify({ ...body, max_tokens: 512 }), signal };
      return await http.call("/v1/completions", init).then(
        async (answer) => (await answer.text().catch(() => "")).length && answer.status,
        () => 0,
      );
    }
    default:
      return (await http.ask("/v1/completions", body)).status;
  }
}

const statuses: Record<number, number> = {};
const rssMib: number[] = [];
const keptMib: number[] = [];
let next = 0;
async function client(until: number): Promise<void> {
  while (next < until) {
    next += 1;
    const status = await send(next);
    statuses[status] = (statuses[status] ?? 0) + 1;
  }
}

/** Finished work of all kinds that the server keeps. */
async function keptNow(): Promise<number> {
  const metrics = await (await http.call("/metrics", {})).text();
  const values = metrics.matchAll(/^foretoken_kept_bytes\{[^}]*\} (\S+)$/gm);
  return [...values].reduce((sum, [, bytes]) => sum + Number(bytes) / 2 ** 20, 0);
}

const startMs = performance.now();
for (let part = 1; part <= PARTS; part += 1) {
  const until = Math.round((count * part) / PARTS);
  await Promise.all(Array.from({ length: CLIENTS }, () => client(until)));
  rssMib.push(Math.round(served.residentMib));
  keptMib.push(Math.round(await keptNow()));
  console.error(`${until} requests: ${rssMib.at(-1)} MiB, of which ${keptMib.at(-1)} MiB are kept`);
}
const seconds = Math.round((performance.now() - startMs) / 1000);
const ratio = (mib: readonly number[]): number => (mib.at(-1) ?? 0) / (mib[PARTS / 2 - 1] ?? 1);
const growth = ratio(rssMib);
const unkept = ratio(rssMib.map((mib, part) => mib - (keptMib[part] ?? 0)));
console.log(`at the end ${growth.toFixed(2)} times the memory at the half; ${seconds} s`);
console.log(`without what is kept ${unkept.toFixed(2)} times`);
console.log(`answers by status: ${JSON.stringify(statuses)}`);
const memory = { rss_mib: rssMib, kept_mib: keptMib, growth, unkept };
writeReport(json, { requests: count, seconds, ...memory, statuses });
await served.kill();
rmSync(folder, { recursive: true, force: true });
