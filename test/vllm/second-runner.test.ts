// Two real vLLM servers on the second model runner, without a GPU: Triton's interpreter runs its kernels
// (interpreter/), asynchronous scheduling is on, and `foretoken up --plugin` chooses the runner by itself. The
// interpreter is slow, so everything here is small.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { pathOf } from "../../src/tools/doctor/engine.ts";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { type Bed, faultsOf, plainly, roll, TEST_MS_MAX, written } from "./bed.ts";
import { heldAgainst } from "./compare.ts";
import { Fleet, MODEL, promptIds, ROOT, vllmMissing } from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

/** The bundled model's, model/hf/config.json. */
const EOS = 1359;
const CHUNK_TOKENS = 32;
const TOKENS_MAX = 64;
/** nats a token: float32 on one machine. */
const DISTANCE_MAX = 1e-3;
const TRITON = join(ROOT, ".cache", "vllm", "triton");
const INTERPRETER = {
  PYTHONPATH: [TRITON, join(import.meta.dir, "interpreter")].join(":"),
  TRITON_INTERPRET: "1",
};

const SHORT = { max_tokens: TOKENS_MAX };
/** Step times of the interpreter are not to decide what is drafted. */
const OWN = { foretoken: { probability_min: 0.02, exact: 1 } };

interface EngineLine {
  readonly weight_epoch: number;
  readonly steps: number;
  readonly drafted_tokens: number;
  readonly accepted_tokens: number;
  readonly traced_elsewhere_tokens: number;
  readonly faults: number;
}

const missing =
  vllmMissing() ?? (existsSync(TRITON) ? null : `there is no ${TRITON}: npm run vllm:install`);
if (missing !== null) console.log(`second runner: skipped, ${missing}`);

describe.skipIf(missing !== null)("vLLM's second model runner", () => {
  const startMs = performance.now();
  let fleet: Fleet | null = null;
  let bed: Bed | null = null;
  const ready = (): Bed => {
    if (bed === null) throw new Error("the servers did not start");
    return bed;
  };
  const engines = async (): Promise<EngineLine[]> => {
    const answer = await ready().fleet.call("GET", "/foretoken/engines");
    return ((await answer.json()) as { engines: EngineLine[] }).engines;
  };
  const sum = (lines: readonly EngineLine[], field: keyof EngineLine) =>
    lines.reduce((total, line) => total + line[field], 0);

  beforeAll(async () => {
    fleet = await Fleet.up(
      [
        ...["--plugin", "--chunk-tokens", String(CHUNK_TOKENS), "--max-model-len", "1600", "--"],
        ...["--max-num-seqs", "8", "--additional-config", JSON.stringify(OWN)],
        "--speculative-config",
        JSON.stringify({
          method: "ngram_gpu",
          model: "foretoken_vllm.speculator",
          num_speculative_tokens: 4,
        }),
      ],
      INTERPRETER,
    );
    bed = { fleet, prompts: await promptIds(fleet, 2), eos: EOS };
    await fleet.until(async () => (await engines()).length === 2);
    console.log(`healthy and linked after ${seconds(startMs)} s`);
  });

  afterAll(async () => {
    await fleet?.stop();
    console.log(`second runner: ${seconds(startMs)} s`);
  });

  test("up chooses it where Triton is, and the servers schedule asynchronously", async () => {
    const chosen = ready().fleet.log.find(({ event }) => event === "plugin_runner");
    expect(chosen).toMatchObject({ runner: 2, reason: expect.stringContaining("has Triton here") });
    for (const [index] of ready().fleet.servers.entries()) {
      const { body } = await ready()
        .fleet.plain(index)
        .call("GET", "/server_info?config_format=json");
      expect(pathOf(body, "vllm_config", "scheduler_config", "async_scheduling")).toBe(true);
      expect(pathOf(body, "vllm_config", "speculative_config", "method")).toBe("ngram_gpu");
    }
  });

  test("temperature 0: token for token as without drafts, in chunks, with drafts accepted", async () => {
    const { fleet, prompts, eos } = ready();
    const rolled = await roll(ready(), {
      id: "greedy",
      n: 3,
      sampling: { ...SHORT, temperature: 0 },
    });
    expect(faultsOf(ready(), rolled, { n: 3, tokensMax: TOKENS_MAX })).toEqual([]);
    const plain = await Promise.all(
      prompts.map((prompt, i) =>
        plainly(fleet.plain(i % 2), { prompt, temperature: 0, eos, tokensMax: TOKENS_MAX }),
      ),
    );
    for (const { group, token_ids: ids } of rolled.lines) {
      expect(ids).toEqual([...(plain[Number(group.slice(1))]?.tokens ?? [])]);
    }
  });

  test("temperature 1: siblings on the other server are drafted from, and draws follow the model's distributions", async () => {
    const { fleet } = ready();
    const rolled = await roll(ready(), {
      id: "drawn",
      n: 4,
      sampling: { ...SHORT, temperature: 1 },
    });
    expect(faultsOf(ready(), rolled, { n: 4, tokensMax: TOKENS_MAX })).toEqual([]);
    await fleet.until(async () => sum(await engines(), "accepted_tokens") > 10);
    const lines = await engines();
    expect(sum(lines, "faults")).toBe(0);
    const held = await heldAgainst(fleet.plain(0), written(rolled.lines));
    expect(held.test.isRejected).toBe(false);
    expect(held.distance).toBeLessThan(DISTANCE_MAX);
    const { wall_s: s, output_tokens: tokens } = rolled.summary.report;
    const of = (field: keyof EngineLine) => lines.map((line) => line[field]).join(" + ");
    console.log(
      `second runner: ${tokens} tokens in ${s.toFixed(1)} s; steps ${of("steps")}, drafted ` +
        `${of("drafted_tokens")}, accepted ${of("accepted_tokens")}, ${of("traced_elsewhere_tokens")} ` +
        `traced to the other server; mean logprob ${held.test.scoreMean.toFixed(3)}, by the model ` +
        held.test.expectedMean.toFixed(3),
    );
  });

  test("exact: at temperature 1, token for token the same drafted, undrafted, and in two pieces on two servers", async () => {
    const { fleet, prompts, eos } = ready();
    const [prompt = []] = prompts;
    const before = sum(await engines(), "accepted_tokens");
    const drawn = async (index: number, seed: number, more: object = {}) => {
      const request = {
        tokens: prompt,
        maxTokens: 32,
        temperature: 1,
        stopTokenIds: [eos],
        seed,
      };
      const outcome = await fleet.plain(index).generate({ ...request, ...more });
      if (outcome.kind === "refused") throw new Error(outcome.message);
      return [...outcome.made.tokens];
    };
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
    await fleet.until(async () => sum(await engines(), "accepted_tokens") > before);
  });

  test("another weight epoch: both plugins learn of it", async () => {
    const answer = await ready().fleet.call("POST", "/collective_rpc", {
      method: "reload_weights",
      kwargs: { weights_path: MODEL },
    });
    expect(answer.status).toBe(200);
    const rolled = await roll(ready(), {
      id: "epoch",
      n: 2,
      sampling: { ...SHORT, temperature: 1 },
    });
    expect(faultsOf(ready(), rolled, { n: 2, tokensMax: TOKENS_MAX })).toEqual([]);
    expect(new Set(rolled.lines.map(({ weight_epoch: epoch }) => epoch))).toEqual(new Set([1]));
    const isNew = async () => (await engines()).every(({ weight_epoch: epoch }) => epoch === 1);
    await ready().fleet.until(isNew);
  });

  const scripted = (name: string, env: Readonly<Record<string, string | undefined>>) => {
    const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
    const { exitCode, stdout, stderr } = Bun.spawnSync(
      [python, join(import.meta.dir, "python", name)],
      { env: { ...process.env, ...INTERPRETER, VLLM_LOGGING_LEVEL: "ERROR", ...env } },
    );
    return exitCode === 0 ? stdout.toString().trim() : stderr.toString();
  };

  test("the kernel drafts what the core drafts, nothing from another request's table, and no fault gets out", () => {
    const { cases, drafted } = JSON.parse(scripted("walk_cases.py", {})) as Record<string, number>;
    expect(cases).toBeGreaterThan(100);
    expect(drafted).toBeGreaterThan(500);
  });

  test("the kernel compiles for a GPU", () => {
    const said = scripted("walk_compiles.py", { TRITON_INTERPRET: undefined });
    expect(said).toMatch(/^\*i32: \d+ characters of PTX\n\*i64: \d+ characters of PTX$/);
  });
});

function seconds(sinceMs: number): number {
  return Math.round((performance.now() - sinceMs) / 1000);
}
