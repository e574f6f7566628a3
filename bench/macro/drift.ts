// Whether the drift guard sees drafts that change what vLLM draws: a real CPU server with the plugin, `sound`, and with the
// fault that the plugin repairs brought back: `processed` reports logprobs of what it draws from, `raw` the model's.
//
//   npm run vllm:install && bun bench/macro/drift.ts [--json FILE]

import { join } from "node:path";
import { Fleet, promptIds } from "../../test/vllm/fleet.ts";
import { flagsOf, writeReport } from "../harness.ts";
import { post } from "./vllm/engine-log.ts";

/** After the first without an alarm a server is called sound; the others are drawn after an alarm. */
const [TOKENS, TOKENS_AFTER] = [20_000, 6_000];
const SPEC = "vllm:spec_decode_num_";
const METRICS = {
  tokens: "vllm:generation_tokens_total",
  drafted: `${SPEC}draft_tokens_total`,
  accepted: `${SPEC}accepted_tokens_total`,
  alarms: "foretoken_draft_alarms_total",
  shift: 'foretoken_sampling_shift_nats\\{[^}]*"drafted"[^}]*\\}',
};

async function guarded(name: string) {
  const mode = name === "raw" ? ["--logprobs-mode", "raw_logprobs"] : [];
  const extension = ["--worker-extension-cls", "vllm_defect.Defect", ...mode];
  const env = { PYTHONPATH: join(import.meta.dir, "vllm") };
  const fleet = await Fleet.up(["--workers", "1", "--plugin", "--", ...extension], env);
  const rpc = (method: string) => post(`${fleet.servers[0]?.url}/collective_rpc`, { method });
  const figures = async () => {
    const read = Object.entries(METRICS).map(async ([key, metric]) => {
      // The sidecar reads a server's counters only now and then.
      const of = metric.startsWith("vllm:") ? "servers" : "sidecar";
      return [key, await fleet.metric(metric, of)] as const;
    });
    return Object.fromEntries(await Promise.all(read)) as Record<keyof typeof METRICS, number>;
  };
  try {
    const prompts = await promptIds(fleet, 64);
    if (name !== "sound") await rpc("bring_back_defect");
    const draw = async (tokens: number, alarms: number) => {
      for (let seed = 0; ; seed += 4) {
        // The fault reads temperatures of earlier steps: if all were equal, they would be right.
        const asks = prompts.slice(seed % 64, (seed % 64) + 4).map((prompt, i) => {
          return fleet.complete({ prompt, n: 8, temperature: 1 - (i % 2) / 2, logprobs: 5, seed });
        });
        await Promise.all(asks);
        const now = await figures();
        if (now.tokens >= tokens || now.alarms > alarms) return now;
      }
    };
    const seen = await draw(TOKENS, 0);
    const reason = fleet.log.find(({ event }) => event === "not_lossless")?.reason ?? "no alarm";
    const after = seen.alarms > 0 ? await draw(seen.tokens + TOKENS_AFTER, seen.alarms) : seen;
    const rows = await rpc("defect_counts");
    return { ...seen, rows, reason, drafted_after: after.drafted - seen.drafted };
  } finally {
    await fleet.stop();
  }
}

const { json } = flagsOf(import.meta.path, {});
const found: Record<string, Awaited<ReturnType<typeof guarded>>> = {};
for (const name of ["sound", "processed", "raw"]) {
  const one = await guarded(name);
  found[name] = one;
  console.log(`${name}: ${JSON.stringify(one)}`);
}
writeReport(json, found);
