// Two real vLLM servers that draft by the plugin, as `foretoken up --plugin` starts them. A proxy stands between them
// and the sidecar's draft service, so that the link can be cut; the last test ends the plugin's own thread. The order
// matters: the link is cut and the thread ended after what needs them.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CuttingProxy } from "../faults/cutting-proxy.ts";
import { type Bed, faultsOf, GROUP_SIZE, movedIn, plainly, roll, TEST_MS_MAX } from "./bed.ts";
import { expectDrawnAsPlain } from "./drawn-as-plain.ts";
import { CHUNK_TOKENS, Fleet, MODEL, promptIds, vllmMissing } from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

const GROUPS = 16;
/** The bundled model's, model/hf/config.json. */
const EOS = 1359;

interface EngineLine {
  readonly engine: string;
  readonly weight_epoch: number;
  readonly is_lossless: boolean;
  readonly waiting: number | null;
  readonly kv_usage: number | null;
  readonly steps: number;
  readonly drafted_tokens: number;
  readonly accepted_tokens: number;
  readonly traced_tokens: number;
  readonly traced_elsewhere_tokens: number;
  readonly faults: number;
}

interface EnginesAnswer {
  readonly engines: EngineLine[];
  readonly draft_service: { readonly groups: number; readonly tokens_fetched: number };
}

const missing = vllmMissing();
if (missing !== null) console.log(`plugin: skipped, ${missing}`);

describe.skipIf(missing !== null)("two vLLM servers that draft by the plugin", () => {
  const startMs = performance.now();
  const folder = mkdtempSync(join(tmpdir(), "foretoken-plugin-"));
  const stopFile = join(folder, "stop");
  let fleet: Fleet | null = null;
  let bed: Bed | null = null;
  let proxy: CuttingProxy | null = null;
  const ready = (): Bed => {
    if (bed === null) throw new Error("the servers did not start");
    return bed;
  };
  /** Half of the prompts: what these tests are about happens to any rollout. */
  const small = (): Bed => ({ ...ready(), prompts: ready().prompts.slice(0, GROUPS / 2) });
  const engines = async () =>
    (await (await ready().fleet.call("GET", "/foretoken/engines")).json()) as EnginesAnswer;
  const sum = (answer: EnginesAnswer, field: "accepted_tokens" | "faults" | "steps") =>
    answer.engines.reduce((total, engine) => total + engine[field], 0);

  beforeAll(async () => {
    let sidecarPort = 0;
    proxy = await CuttingProxy.listen(() => sidecarPort);
    process.env.PYTHONPATH = join(import.meta.dir, "python");
    process.env.FORETOKEN_TEST_STOP_FILE = stopFile;
    const own = { foretoken: { draft_url: `ws://127.0.0.1:${proxy.port}/v1/draft` } };
    const speculation = {
      method: "custom_class",
      model: "stopping.StoppingProposer",
      num_speculative_tokens: 8,
    };
    fleet = await Fleet.up([
      ...["--plugin", "--chunk-tokens", String(CHUNK_TOKENS), "--max-model-len", "2100", "--"],
      ...["--additional-config", JSON.stringify(own)],
      ...["--speculative-config", JSON.stringify(speculation)],
    ]);
    sidecarPort = Number(new URL(fleet.url).port);
    const prompts = await promptIds(fleet, GROUPS);
    bed = { fleet, prompts, eos: EOS };
    await fleet.until(async () => (await engines()).engines.length === 2);
    console.log(`healthy and linked after ${seconds(startMs)} s`);
  });

  afterAll(async () => {
    await fleet?.stop();
    await proxy?.close();
    rmSync(folder, { recursive: true, force: true });
    console.log(`plugin: ${seconds(startMs)} s`);
  });

  test("both engines report a correct sampler and their KV usage", async () => {
    const { engines: lines } = await engines();
    expect(lines.map(({ engine }) => engine).sort()).toEqual(
      ready()
        .fleet.servers.map(({ url }) => url)
        .sort(),
    );
    for (const line of lines) {
      expect(line).toMatchObject({ is_lossless: true, waiting: 0, faults: 0 });
      expect(line.kv_usage).not.toBeNull();
    }
  });

  test("temperature 1: 16 groups of 6 draft from siblings on the other server, and are drawn as plain vLLM draws", async () => {
    const rolled = await roll(ready(), { id: "drawn", sampling: { temperature: 1 } });
    expect(faultsOf(ready(), rolled)).toEqual([]);
    expect(rolled.lines.length).toBe(GROUPS * GROUP_SIZE);
    const areDrafting = ({ engines: all, draft_service: service }: EnginesAnswer) =>
      service.tokens_fetched > 0 &&
      all.every((one) => one.accepted_tokens > 0 && one.traced_elsewhere_tokens > 0);
    await ready().fleet.until(async () => areDrafting(await engines()));
    const { engines: lines } = await engines();
    for (const line of lines) expect(line.faults).toBe(0);
    const { told } = await expectDrawnAsPlain(ready(), rolled, rolled.lines.slice(0, 64));
    const { wall_s: s, output_tokens: tokens, chunks, migrations } = rolled.summary.report;
    const of = (field: keyof EngineLine) =>
      lines.map((line) => Math.round(Number(line[field]))).join(" + ");
    console.log(
      `plugin: ${tokens} tokens in ${s.toFixed(1)} s, ${chunks} chunks, ${migrations} moves, ${movedIn(rolled)} moved; ` +
        `steps ${of("steps")}, drafted ${of("drafted_tokens")}, accepted ${of("accepted_tokens")}; of ` +
        `${of("traced_tokens")} traced, ${of("traced_elsewhere_tokens")} written by siblings elsewhere alone; ` +
        told,
    );
  });

  test("temperature 0: token for token as plain vLLM, with drafts", async () => {
    const { fleet, prompts, eos } = ready();
    const before = sum(await engines(), "accepted_tokens");
    // Four alike in each group: all but the first draft from what is there already.
    const rolled = await roll(ready(), { id: "greedy", n: 4, sampling: { temperature: 0 } });
    expect(faultsOf(ready(), rolled, { n: 4 })).toEqual([]);
    const plain = await Promise.all(
      prompts.map((prompt, i) => plainly(fleet.plain(i % 2), { prompt, temperature: 0, eos })),
    );
    for (const { group, token_ids: ids } of rolled.lines) {
      expect(ids).toEqual([...(plain[Number(group.slice(1))]?.tokens ?? [])]);
    }
    await fleet.until(async () => sum(await engines(), "accepted_tokens") > before);
  });

  test("another weight epoch: both plugins learn of it, and drafts continue from it alone", async () => {
    const { fleet } = ready();
    const answer = await fleet.call("POST", "/collective_rpc", {
      method: "reload_weights",
      kwargs: { weights_path: MODEL },
    });
    expect(answer.status).toBe(200);
    const rolled = await roll(small(), { id: "epoch", sampling: { temperature: 1 }, n: 4 });
    expect(faultsOf(small(), rolled, { n: 4 })).toEqual([]);
    expect(new Set(rolled.lines.map(({ weight_epoch: epoch }) => epoch))).toEqual(new Set([1]));
    const isNew = async () =>
      (await engines()).engines.every(({ weight_epoch: epoch }) => epoch === 1);
    await fleet.until(isNew);
  });

  test("the sidecar's link is cut in the middle: nothing lost, nothing twice, and it is there again", async () => {
    const before = sum(await engines(), "accepted_tokens");
    const rolled = await roll(small(), {
      id: "cut",
      sampling: { temperature: 1 },
      afterTokens: 1500,
      meanwhile: async () => proxy?.cut(),
    });
    expect(faultsOf(small(), rolled)).toEqual([]);
    const since = sum(await engines(), "steps");
    await roll(small(), { id: "after-cut", n: 2, sampling: { temperature: 1 } });
    const isBack = (after: EnginesAnswer) =>
      sum(after, "steps") > since &&
      sum(after, "accepted_tokens") > before &&
      after.engines.every(({ faults }) => faults >= 1);
    await ready().fleet.until(async () => isBack(await engines()));
  });

  test("the plugin's thread ends in the middle: the rollout continues without it, and ends", async () => {
    const rolled = await roll(small(), {
      id: "no-thread",
      sampling: { temperature: 1 },
      afterTokens: 1500,
      meanwhile: async () => writeFileSync(stopFile, ""),
    });
    expect(faultsOf(small(), rolled)).toEqual([]);
    const again = await roll(small(), { id: "still", n: 2, sampling: { temperature: 1 } });
    expect(faultsOf(small(), again, { n: 2 })).toEqual([]);
    expect(rolled.summary.report.restarts + again.summary.report.restarts).toBe(0);
  });
});

function seconds(sinceMs: number): number {
  return Math.round((performance.now() - sinceMs) / 1000);
}
