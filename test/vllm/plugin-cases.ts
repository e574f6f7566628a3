// Cases of two real vLLM servers that draft by the plugin, the same under either of vLLM's model runners. A proxy stands
// between them and the sidecar's draft service, so that the link can be cut, and a file steers the plugin
// (python/steered.py). The order matters: the link is cut, a server killed and a thread ended after what needs them.

import { afterAll, beforeAll, test as bunTest, expect } from "bun:test";
import { mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathOf } from "../../src/tools/doctor/engine.ts";
import { CuttingProxy } from "../faults/cutting-proxy.ts";
import { type Bed, faultsOf, movedIn, plainly, roll } from "./bed.ts";
import { expectDrawn, expectDrawnAsPlain, expectGreedyAsPlain } from "./drawn-as-plain.ts";
import { CHUNK_TOKENS, Fleet, INTERPRETER, livingIn, promptIds, scaledModel } from "./fleet.ts";

/** The bundled model's, model/hf/config.json. */
const EOS = 1359;
/** The logits of the second weights are so much larger: it draws as at a lower temperature. */
const SCALE = 1.2;

/** Differences between the runners, and sizes of rollouts: kernels under Triton's interpreter are slow. */
export interface Runner {
  readonly number: 1 | 2;
  /** Why `up` chooses it. */
  readonly reason: string;
  readonly env: Readonly<Record<string, string>>;
  readonly args: readonly string[];
  readonly speculation: { readonly method: string; readonly model: string };
  readonly drafts: number;
  readonly settings: object;
  readonly groups: number;
  readonly n: number;
  readonly tokensMax: number;
  /** Rollouts that are disturbed: groups, responses of a group, and tokens before the disturbance. */
  readonly small: { readonly groups: number; readonly n: number; readonly afterTokens: number };
  /** Whether only what is drawn is looked at: faults and the budget are those of another run. */
  readonly isShort?: boolean;
}

/** vLLM's second model runner, without a GPU. */
export const SECOND: Runner = {
  number: 2,
  reason: "has Triton here",
  env: INTERPRETER,
  args: ["--max-model-len", "1600", "--", "--max-num-seqs", "8"],
  speculation: { method: "ngram_gpu", model: "foretoken_vllm.speculator" },
  drafts: 4,
  // But for the budget's own case, step times of the interpreter do not decide what is drafted.
  settings: { probability_min: 0.02 },
  groups: 2,
  n: 4,
  tokensMax: 64,
  small: { groups: 2, n: 2, afterTokens: 60 },
};

interface EngineLine {
  readonly engine: string;
  readonly weight_epoch: number;
  readonly kv_usage: number | null;
  readonly waiting: number | null;
  readonly steps: number;
  readonly step_error: number;
  readonly drafted_tokens: number;
  readonly accepted_tokens: number;
  readonly traced_elsewhere_tokens: number;
  readonly faults: number;
}

interface EnginesAnswer {
  readonly engines: EngineLine[];
  readonly draft_service: { readonly tokens_fetched: number };
}

/** The two servers, once they have started, and what is asked of their plugins. */
class Plugins {
  readonly runner: Runner;
  readonly folder = mkdtempSync(join(tmpdir(), "foretoken-plugin-"));
  proxy: CuttingProxy | null = null;
  #fleet: Fleet | null = null;
  #bed: Bed | null = null;
  #steering: object = {};

  constructor(runner: Runner) {
    this.runner = runner;
  }

  async start(): Promise<void> {
    let sidecarPort = 0;
    this.proxy = await CuttingProxy.listen(() => sidecarPort);
    const { args, env, settings, speculation, drafts, groups, n, tokensMax } = this.runner;
    const drafting = { ...speculation, num_speculative_tokens: drafts };
    const own = { draft_url: `${this.proxy.url}/v1/draft`, ...settings };
    const fleet = await Fleet.up(
      [
        ...["--plugin", "--chunk-tokens", String(CHUNK_TOKENS), ...args],
        ...["--additional-config", JSON.stringify({ foretoken: own })],
        ...["--speculative-config", JSON.stringify(drafting)],
      ],
      { ...env, STEERING_FILE: join(this.folder, "steering") },
    );
    this.#fleet = fleet;
    sidecarPort = Number(new URL(fleet.url).port);
    this.#bed = { fleet, prompts: await promptIds(fleet, groups), eos: EOS, n, tokensMax };
    await fleet.until(async () => (await this.engines()).length === 2);
  }

  async stop(): Promise<void> {
    await this.#fleet?.stop();
    await this.proxy?.close();
    rmSync(this.folder, { recursive: true, force: true });
  }

  get bed(): Bed {
    if (this.#bed === null) throw new Error("the servers did not start");
    return this.#bed;
  }

  /** For what happens to any rollout. */
  get small(): Bed {
    const { groups, n } = this.runner.small;
    return { ...this.bed, prompts: this.bed.prompts.slice(0, groups), n };
  }

  steer(more: object): void {
    this.#steering = { ...this.#steering, ...more };
    const path = join(this.folder, "steering");
    writeFileSync(`${path}.new`, JSON.stringify(this.#steering));
    renameSync(`${path}.new`, path);
  }

  async told(): Promise<EnginesAnswer> {
    const answer = await this.bed.fleet.call("GET", "/foretoken/engines");
    return (await answer.json()) as EnginesAnswer;
  }

  async engines(): Promise<EngineLine[]> {
    return (await this.told()).engines;
  }

  async sum(field: "accepted_tokens" | "faults" | "steps"): Promise<number> {
    return (await this.engines()).reduce((total, engine) => total + engine[field], 0);
  }

  /** The servers run what `up` has chosen, and the second runner schedules asynchronously. */
  async expectRunner(): Promise<void> {
    const { number, speculation } = this.runner;
    for (const [index] of this.bed.fleet.servers.entries()) {
      const path = "/server_info?config_format=json";
      const { body } = await this.bed.fleet.plain(index).call("GET", path);
      const isAsync = pathOf(body, "vllm_config", "scheduler_config", "async_scheduling");
      expect(isAsync).toBe(number === 2);
      const method = pathOf(body, "vllm_config", "speculative_config", "method");
      expect(method).toBe(speculation.method);
    }
  }
}

type Fact = (name: string, body: () => Promise<void>) => void;

export function pluginTests(runner: Runner): void {
  const startMs = performance.now();
  const plugins = new Plugins(runner);
  const test: Fact = (name, body) =>
    bunTest(name, async () => {
      await body();
      await plugins.expectRunner();
    });

  beforeAll(async () => {
    await plugins.start();
    console.log(`healthy and linked after ${seconds(startMs)} s`);
  });

  afterAll(async () => {
    await plugins.stop();
    console.log(`plugin, runner ${runner.number}: ${seconds(startMs)} s`);
  });

  draftTests(plugins, test);
  if (runner.isShort !== true) disturbanceTests(plugins, test);
  exactTests(plugins, test);
  if (runner.isShort === true) return;
  budgetTests(plugins, test);

  test("the plugin's thread ends in the middle: the rollout continues without it, and ends", async () => {
    const rolled = await roll(plugins.small, {
      id: "no-thread",
      sampling: { temperature: 1 },
      afterTokens: runner.small.afterTokens,
      meanwhile: async () => plugins.steer({ stop: true }),
    });
    expect(faultsOf(plugins.small, rolled)).toEqual([]);
    const again = await roll(plugins.small, { id: "still", n: 2, sampling: { temperature: 1 } });
    expect(faultsOf(plugins.small, again, { n: 2 })).toEqual([]);
    expect(rolled.summary.report.restarts + again.summary.report.restarts).toBe(0);
  });
}

function draftTests(plugins: Plugins, test: Fact): void {
  const { number, reason } = plugins.runner;

  test("up chooses the runner; both engines report a correct sampler and their KV usage", async () => {
    const { fleet } = plugins.bed;
    const chosen = fleet.log.find(({ event }) => event === "plugin_runner");
    expect(chosen).toMatchObject({ runner: number, reason: expect.stringContaining(reason) });
    // They report every second: the last of the check before the start may still be in what they said.
    await fleet.until(async () => (await plugins.engines()).every(({ waiting }) => waiting === 0));
    const lines = await plugins.engines();
    const names = fleet.servers.map(({ url }) => url).sort();
    expect(lines.map(({ engine }) => engine).sort()).toEqual(names);
    for (const line of lines) {
      expect(line).toMatchObject({ is_lossless: true, waiting: 0, faults: 0 });
      expect(line.kv_usage).not.toBeNull();
    }
  });

  test("temperature 1: siblings on the other server are drafted from, and draws are those of plain vLLM", async () => {
    const { bed } = plugins;
    const rolled = await roll(bed, { id: "drawn", sampling: { temperature: 1 } });
    expect(faultsOf(bed, rolled)).toEqual([]);
    const areDrafting = ({ engines: all, draft_service: service }: EnginesAnswer) =>
      service.tokens_fetched > 0 &&
      all.every(
        (one) => one.accepted_tokens > 0 && (number === 2 || one.traced_elsewhere_tokens > 0),
      );
    await bed.fleet.until(async () => areDrafting(await plugins.told()));
    const lines = await plugins.engines();
    for (const line of lines) expect(line.faults).toBe(0);
    const scored = rolled.lines.slice(0, 64);
    const told = await (bed.prompts.length === 16
      ? expectDrawnAsPlain(bed, rolled, scored)
      : expectDrawn(bed, scored));
    const { wall_s: s, output_tokens: tokens, chunks, migrations } = rolled.summary.report;
    const of = (field: keyof EngineLine) =>
      lines.map((line) => Math.round(Number(line[field]))).join(" + ");
    console.log(
      `plugin: ${tokens} tokens in ${s.toFixed(1)} s, ${chunks} chunks, ${migrations} moves, ${movedIn(rolled)} moved; ` +
        `steps ${of("steps")}, drafted ${of("drafted_tokens")}, accepted ${of("accepted_tokens")}; ` +
        told,
    );
  });

  test("temperature 0: token for token as plain vLLM, with drafts", async () => {
    const before = await plugins.sum("accepted_tokens");
    // Some alike in each group: all but the first draft from what is there already.
    await expectGreedyAsPlain(plugins.bed, Math.min(4, plugins.runner.n - 1));
    await plugins.bed.fleet.until(async () => (await plugins.sum("accepted_tokens")) > before);
  });

  test("another weight epoch: both plugins learn of it, and drafts continue from it alone", async () => {
    const { small } = plugins;
    const answer = await small.fleet.call("POST", "/collective_rpc", {
      method: "reload_weights",
      kwargs: { weights_path: scaledModel(SCALE) },
    });
    expect(answer.status).toBe(200);
    const rolled = await roll(small, { id: "epoch", sampling: { temperature: 1 } });
    expect(faultsOf(small, rolled)).toEqual([]);
    expect(new Set(rolled.lines.map(({ weight_epoch: epoch }) => epoch))).toEqual(new Set([1]));
    const isNew = async () =>
      (await plugins.engines()).every(({ weight_epoch: epoch }) => epoch === 1);
    await small.fleet.until(isNew);
  });
}

function disturbanceTests(plugins: Plugins, test: Fact): void {
  const { afterTokens } = plugins.runner.small;

  test("the sidecar's link is cut in the middle: nothing lost, nothing twice, and it is there again", async () => {
    const { small } = plugins;
    const before = await plugins.sum("accepted_tokens");
    const rolled = await roll(small, {
      id: "cut",
      sampling: { temperature: 1 },
      afterTokens,
      meanwhile: async () => plugins.proxy?.cut(),
    });
    expect(faultsOf(small, rolled)).toEqual([]);
    const since = await plugins.sum("steps");
    await roll(small, { id: "after-cut", n: 2, sampling: { temperature: 1 } });
    const isBack = async () =>
      (await plugins.sum("steps")) > since &&
      (await plugins.sum("accepted_tokens")) > before &&
      (await plugins.engines()).every(({ faults }) => faults >= 1);
    await small.fleet.until(isBack);
  });

  test("kill -9 of a server in the middle of a rollout: nothing lost, nothing twice; it is back with the current weights, and drafts", async () => {
    const { small } = plugins;
    const { fleet, prompts } = small;
    const from = fleet.log.length;
    const victim = fleet.servers[1];
    if (victim === undefined) throw new Error("there are two servers");
    const itsLine = async () =>
      (await plugins.engines()).find(({ engine }) => engine === victim.url);
    const before = (await itsLine())?.steps ?? 0;
    const rolled = await roll(small, {
      id: "killed",
      sampling: { temperature: 1, seed: 8 },
      afterTokens,
      meanwhile: async () => {
        process.kill(-victim.pid, "SIGKILL");
      },
    });
    expect(faultsOf(small, rolled)).toEqual([]);
    const workers = rolled.lines.flatMap(({ chunks }) => chunks.map(({ worker }) => worker));
    expect(new Set(workers)).toEqual(new Set([0, 1]));
    await expectDrawn(
      small,
      rolled.lines.filter((_, i) => i % 2 === 0),
    );
    expect(livingIn(victim.pid)).toEqual([]);

    const died = await fleet.heard(({ event }) => event === "server_died", from);
    await fleet.heard(
      ({ event, state }) => event === "worker" && state === "ready",
      from + fleet.log.slice(from).indexOf(died),
    );
    expect(await fleet.workerStates()).toEqual(["ready", "ready"]);
    const scores = await Promise.all(
      [0, 1].map((index) => fleet.plain(index).score(prompts[1] ?? [], 1, 1)),
    );
    expect(scores[1]?.logprobs).toEqual(scores[0]?.logprobs ?? []);

    await fleet.until(async () => ((await itsLine())?.steps ?? before) < before);
    const again = await roll(small, { id: "after-kill", sampling: { temperature: 1 } });
    expect(faultsOf(small, again)).toEqual([]);
    await fleet.until(async () => ((await itsLine())?.drafted_tokens ?? 0) > 0);
  });
}

function exactTests(plugins: Plugins, test: Fact): void {
  test("exact: at temperature 1, token for token the same drafted, undrafted, and in two pieces on two servers", async () => {
    const { bed } = plugins;
    const [prompt = []] = bed.prompts;
    const before = await plugins.sum("accepted_tokens");
    const drawn = async (server: number, seed: number, more: object = {}) => {
      const ask = { tokens: prompt, maxTokens: 32, temperature: 1, seed, ...more };
      return [...(await plainly(bed, server, ask)).tokens];
    };
    plugins.steer({ exact: 1 });
    // A step of each server, in which it takes the setting.
    await Promise.all([0, 1].map((server) => drawn(server, 0, { maxTokens: 2 })));
    const seeds = [11, 12, 13, 14];
    const plain = await Promise.all(seeds.map((seed) => drawn(0, seed)));
    expect(new Set(plain.map((tokens) => tokens.join())).size).toBeGreaterThan(1);
    const drafted = (sample: number) => ({ sibling: { group: "exact", sample } });
    for (const wave of [0, 4]) {
      const again = seeds.map((seed, i) => drawn(0, seed, drafted(wave + i)));
      expect(await Promise.all(again)).toEqual(plain);
    }
    const divided = plain.map(async (tokens, i) => {
      const first = tokens.slice(0, 7);
      const rest = { tokens: [...prompt, ...first], maxTokens: 32 - first.length };
      return [...first, ...(await drawn(1, seeds[i] ?? 0, rest))];
    });
    expect(await Promise.all(divided)).toEqual(plain);
    await bed.fleet.until(async () => (await plugins.sum("accepted_tokens")) > before);
  });
}

function budgetTests(plugins: Plugins, test: Fact): void {
  test("the budget: requests without siblings have no drafts, and step times that are measured decide for the others", async () => {
    const { small } = plugins;
    plugins.steer({ probability_min: 0 });
    // As vLLM counts them.
    const drafted = () => small.fleet.metric("vllm:spec_decode_num_draft_tokens_total", "servers");
    const before = await drafted();
    const [tokens = []] = small.prompts;
    const alone = { tokens, temperature: 1, maxTokens: 96, stopTokenIds: [] };
    await Promise.all([0, 1].map((server) => plainly(small, server, alone)));
    // Steps that were under way, and some to learn what such steps take; all would have had 760.
    expect((await drafted()) - before).toBeLessThan(160);
    do {
      const rolled = await roll(small, { id: crypto.randomUUID(), sampling: { temperature: 1 } });
      expect(faultsOf(small, rolled)).toEqual([]);
    } while (!(await plugins.engines()).every(({ step_error: error }) => error > 0));
  });
}

function seconds(sinceMs: number): number {
  return Math.round((performance.now() - sinceMs) / 1000);
}
