// Two real vLLM servers with Mooncake between them, as `foretoken up --kv-connector mooncake` starts them: what one has
// made is found by the other, and by nobody with other weights; and with the master killed, the pool full, the owner of
// KV stopped or killed, no request fails, no token is another one, and what it cost is counted.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { rmSync } from "node:fs";
import type { Diagnosis } from "../../src/tools/doctor/finding.ts";
import { foretoken } from "../e2e/tool.ts";
import { type Bed, faultsOf, movedIn, roll, standStill, TEST_MS_MAX } from "./bed.ts";
import { CHUNK_TOKENS, Fleet, livingIn, promptIds, scaledModel, vllmMissing } from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

const GROUPS = 6;
const GROUP_SIZE = 4;

const EOS = 1359;
/** Block size of src/tools/up/launch.ts on CPU. */
const BLOCK_TOKENS = 32;
/** Share of each server: a few hundred blocks of the bundled model's KV (128 KiB). */
const SEGMENT_MIB = 24;
/** Size of a KV block of the bundled model, in float32. */
const BLOCK_KIB = 128;
/** A little more than src/tools/up/mooncake.ts grants. */
const LEASE_MS = 6_000;
const HITS = "vllm:external_prefix_cache_hits_total";

const missing = vllmMissing();
if (missing !== null) console.log(`kv-pool: skipped, ${missing}`);

describe.skipIf(missing !== null)("two vLLM servers with one KV pool", () => {
  let up: Fleet | null = null;
  let bed: Bed | null = null;
  let salts = 0;
  let folder = "";
  const startMs = performance.now();

  beforeAll(async () => {
    folder = scaledModel(0.6);
    const args = ["--kv-connector", "mooncake", "--kv-segment-mb", String(SEGMENT_MIB)];
    up = await Fleet.up([...args, "--chunk-tokens", String(CHUNK_TOKENS)]);
    bed = { fleet: up, prompts: await promptIds(up, GROUPS), eos: EOS };
  });

  afterAll(async () => {
    const groups = [...(up?.servers ?? []).map(({ pid }) => pid), masterPid()];
    await up?.stop();
    rmSync(folder, { recursive: true, force: true });
    expect(groups.flatMap(livingIn)).toEqual([]);
    console.log(`kv-pool: ${Math.round((performance.now() - startMs) / 1000)} s`);
  });

  const ready = (): Bed => {
    if (bed === null) throw new Error("the servers did not start");
    return bed;
  };
  const masterPid = (): number =>
    up?.log.findLast(({ event, name }) => event === "server_started" && name === "mooncake-master")
      ?.pid ?? 0;
  const newSalt = (): string => {
    salts += 1;
    return `salt-${salts}`;
  };
  const hits = (at: number) => ready().fleet.metric(HITS, at);

  /** Greedy. */
  const generate = async (at: number, ids: readonly number[], salt: string, count: number) => {
    const outcome = await ready()
      .fleet.plain(at)
      .generate({ tokens: ids, maxTokens: count, temperature: 0, cacheSalt: salt });
    if (outcome.kind !== "made") throw new Error(outcome.message);
    return [...outcome.tokens];
  };

  /** Keys that the master has; null: it does not answer. */
  const keys = async (): Promise<number | null> => {
    const admin = up?.log.find(({ event }) => event === "kv_pool")?.admin ?? "";
    try {
      const text = await (await fetch(`${admin}/get_all_keys`)).text();
      return text.split("\n").filter((line) => line !== "").length;
    } catch {
      return null;
    }
  };

  /** A text made at server 0 is in the pool. */
  const made = async (seed: number, count: number): Promise<{ text: number[]; salt: string }> => {
    const prompt = someText(seed, 40);
    const salt = newSalt();
    const before = (await keys()) ?? 0;
    const text = [...prompt, ...(await generate(0, prompt, salt, count))];
    const blocks = Math.floor((text.length - 1) / BLOCK_TOKENS);
    // Where the pool is full, others go for them.
    for (let i = 0; i < 250 && ((await keys()) ?? 0) < before + blocks; i += 1) await Bun.sleep(20);
    return { text, salt };
  };

  test("what one has made is found by the other, output included, and not under another epoch's salt", async () => {
    const { text, salt } = await made(1, 200);
    const before = await hits(1);
    const found = await generate(1, text, salt, 24);
    expect((await hits(1)) - before).toBe(inBlocks(text));
    const anew = await generate(1, text, newSalt(), 24);
    expect((await hits(1)) - before).toBeLessThanOrEqual(text.length);
    expect(found).toEqual(anew);
  });

  test("`foretoken doctor A B`: says of the second server that it finds the KV of the first", async () => {
    const urls = ready().fleet.servers.map(({ url }) => url);
    const ran = await foretoken("doctor", ...urls, "--json", "--quiet", "--samples", "1000");
    const { engines } = JSON.parse(ran.stdout) as { engines: Diagnosis[] };
    const found = engines.map(({ findings }) => findings.find(({ check }) => check === "KV pool"));
    console.log(`kv-pool: doctor: ${JSON.stringify(found[1])}`);
    expect(found).toEqual([undefined, expect.objectContaining({ verdict: "ok" })]);
    expect(ran.status).toBe(0);
  });

  test("a rollout takes its KV along, and leaves no output's KV in the pool", async () => {
    const { fleet, prompts } = ready();
    const before = (await keys()) ?? 0;
    const rolled = await roll(ready(), {
      ...asked("moves", 11),
      afterTokens: 200,
      meanwhile: () => standStill(ready()),
    });
    expect(faultsOf(ready(), rolled, { n: GROUP_SIZE })).toEqual([]);
    expect(movedIn(rolled)).toBeGreaterThan(0);
    const counted = {
      moves: await fleet.metric("foretoken_kv_moves_total", "sidecar"),
      tokens: await fleet.metric("foretoken_kv_moved_tokens_total", "sidecar"),
      recomputed: await fleet.metric("foretoken_kv_recomputed_moves_total", "sidecar"),
      hits: await fleet.metric("foretoken_kv_hit_tokens_total", "sidecar"),
    };
    console.log(`kv-pool: ${movedIn(rolled)} responses moved, ${JSON.stringify(counted)}`);
    expect(counted.moves).toBeGreaterThan(0);
    expect(counted.hits).toBeGreaterThanOrEqual(counted.tokens);
    // Prompts stay, for their siblings; blocks with a lease go when it is over.
    const prompted = prompts.reduce((sum, ids) => sum + Math.floor(ids.length / BLOCK_TOKENS), 0);
    const left = async () => ((await keys()) ?? 0) - before;
    for (let i = 0; i < 600 && (await left()) > prompted; i += 1) await Bun.sleep(100);
    expect(await left()).toBeLessThanOrEqual(prompted);
  });

  test("KV of finished responses, more than the pool holds, pushes out none of a response that goes on", async () => {
    const { text, salt } = await made(50, 200);
    let tokens = 0;
    const blocksMax = (2 * SEGMENT_MIB * 1024) / BLOCK_KIB;
    for (let i = 0; tokens < 1.25 * blocksMax * BLOCK_TOKENS; i += 1) {
      // A block that another server looked up is removed when its lease is over.
      if (i > 0) await Bun.sleep(LEASE_MS);
      const rolled = await roll(ready(), { ...asked(`finished-${i}`, 60 + i) });
      tokens += rolled.summary.report.output_tokens;
    }
    const before = await hits(1);
    const found = await generate(1, text, salt, 8);
    expect((await hits(1)) - before).toBe(inBlocks(text));
    expect(found).toEqual(await generate(1, text, newSalt(), 8));
    console.log(`kv-pool: ${tokens} tokens of finished responses; ${await keys()} keys are left`);
  });

  test("after new weights nothing of the old ones' KV is loaded, by any server", async () => {
    const { fleet } = ready();
    const body = { prompt: someText(150, 300), max_tokens: 40, temperature: 0 };
    const loaded = async () => (await hits(0)) + (await hits(1));
    await fleet.complete(body);
    const before = await loaded();
    expect((await keys()) ?? 0).toBeGreaterThan(0);
    const reload = { method: "reload_weights", kwargs: { weights_path: folder } };
    expect((await fleet.call("POST", "/collective_rpc", reload)).status).toBe(200);
    const [made] = await fleet.complete(body);
    expect(await loaded()).toBe(before);
    expect(made?.weight_versions.map(({ version }) => version)).toEqual(["1"]);
  });

  test("the owner of KV stands still: the text is computed again", async () => {
    const { fleet } = ready();
    const texts = [await made(201, 150), await made(202, 150)];
    const owner = fleet.servers[0]?.pid ?? 0;
    process.kill(-owner, "SIGSTOP");
    const beginMs = performance.now();
    try {
      for (const { text, salt } of texts) {
        const goes = await generate(1, text, salt, 16);
        expect(goes).toEqual(await generate(1, text, newSalt(), 16));
      }
    } finally {
      process.kill(-owner, "SIGCONT");
    }
    const ms = performance.now() - beginMs;
    console.log(`kv-pool: an owner that stands still cost ${Math.round(ms)} ms for two texts`);
    // Connections that were kept open meanwhile are closed by the server as it goes on.
    const again = () => generate(0, someText(203, 40), newSalt(), 8);
    expect((await again().catch(again)).length).toBe(8);
  });

  test("the master is killed in the middle of a rollout: nothing is lost, it comes back, KV is found again", async () => {
    const { fleet } = ready();
    const from = fleet.log.length;
    const beginMs = performance.now();
    const rolled = await roll(ready(), {
      ...asked("no-master", 12),
      afterTokens: 200,
      meanwhile: async () => {
        process.kill(-masterPid(), "SIGKILL");
      },
    });
    expect(faultsOf(ready(), rolled, { n: GROUP_SIZE })).toEqual([]);
    console.log(`kv-pool: with the master killed ${Math.round(performance.now() - beginMs)} ms`);
    const isMaster = (event: string) => (entry: { event: string; name?: string }) =>
      entry.event === event && entry.name === "mooncake-master";
    await fleet.heard(isMaster("server_died"), from);
    await fleet.heard(isMaster("server_healthy"), from);
    const { text, salt } = await made(301, 150);
    // The servers leave the pool out for a while; then they find each other's KV again.
    for (let i = 0; ; i += 1) {
      const before = await hits(1);
      const again = await made(302 + i, 100);
      await generate(1, again.text, again.salt, 4);
      if ((await hits(1)) > before) break;
      await Bun.sleep(500);
    }
    expect(await generate(1, text, salt, 16)).toEqual(await generate(1, text, newSalt(), 16));
    expect(await fleet.metric("foretoken_kv_pool_failed_blocks_total", "sidecar")).toBeGreaterThan(
      0,
    );
  });

  test("a server is killed with its segment in the middle of a rollout: nothing is lost", async () => {
    const { fleet } = ready();
    const texts = [await made(401, 150), await made(402, 150)];
    const rolled = await roll(ready(), {
      ...asked("no-owner", 13),
      afterTokens: 200,
      meanwhile: async () => {
        process.kill(-(fleet.servers[0]?.pid ?? 0), "SIGKILL");
      },
    });
    expect(faultsOf(ready(), rolled, { n: GROUP_SIZE })).toEqual([]);
    for (const { text, salt } of texts) {
      expect(await generate(1, text, salt, 16)).toEqual(await generate(1, text, newSalt(), 16));
    }
  });
});

/** Tokens of the text that others can find. */
const inBlocks = (text: readonly number[]): number =>
  Math.floor((text.length - 1) / BLOCK_TOKENS) * BLOCK_TOKENS;

const asked = (id: string, seed: number) => ({
  ...{ id, n: GROUP_SIZE },
  sampling: { temperature: 1, seed, stop_token_ids: [EOS] },
});

/** `count` tokens that belong to `seed`: KV of a text does not care what it says. */
function someText(seed: number, count: number): number[] {
  let state = (seed * 2_654_435_761) >>> 0;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return 5 + ((state >>> 8) % 400);
  });
}
