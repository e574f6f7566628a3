// A request that goes on at another real server finds its KV there, by vLLM's own connector: by that server's own
// counters, with the tokens that it would have had anyway, and never with KV of other weights.

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { cpSync, existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { weightEpoch } from "../../src/base/ids.ts";
import { storedName } from "../../src/worker/vllm/kv-folder.ts";
import { vllmMissing } from "./fleet.ts";
import { BLOCK_TOKENS, KvPair, KvServers, someText } from "./kv-pair.ts";
import { scaledModel } from "./other-weights.ts";

/** What moves of 620 tokens and a few, and of a prompt of 500: whole blocks; the rest is computed. */
const WHOLE_TOKENS = Math.floor(620 / BLOCK_TOKENS) * BLOCK_TOKENS;
const WHOLE_PROMPT_TOKENS = Math.floor(499 / BLOCK_TOKENS) * BLOCK_TOKENS;
const TEST_MS_MAX = 300_000;
const missing = vllmMissing();
if (missing !== null) console.log(`kv-move: skipped, ${missing}`);

describe.skipIf(missing !== null)("two vLLM servers with ExampleConnector", () => {
  let started: KvServers | null = null;
  let salts = 0;

  beforeAll(async () => {
    started = await KvServers.start({ connector: true, startMsMax: TEST_MS_MAX });
  }, TEST_MS_MAX);

  afterAll(async () => {
    await started?.stop();
  }, TEST_MS_MAX);

  const running = (): KvServers => {
    if (started === null) throw new Error("the servers were started");
    return started;
  };

  /** Workers of a run of their own. */
  const open = async (rule: "always" | "never" | "measured", epoch = 0): Promise<KvPair> => {
    salts += 1;
    return await KvPair.open(running(), { rule, epoch: weightEpoch(epoch), salt: `run-${salts}` });
  };

  /** As the server's /metrics has it. */
  const hitsOf = async (at: number): Promise<number> => {
    const text = await (await fetch(`${running().servers[at]?.spec.url}/metrics`)).text();
    return Number(/^vllm:external_prefix_cache_hits_total\{[^}]*\} (\S+)$/m.exec(text)?.[1] ?? 0);
  };

  const inTwo = async (
    pair: KvPair,
    sides: readonly [number, number],
    text: { id: number; prompt: number[]; temperature: number; between?: () => void },
  ): Promise<number[]> => {
    const { id, prompt, temperature } = text;
    const first = await pair.chunk(sides[0], { id, prompt, output: [], tokens: 140, temperature });
    text.between?.();
    const output = first.tokens;
    const rest = await pair.chunk(sides[1], { id, prompt, output, tokens: 40, temperature });
    pair.release(id);
    return [...output, ...rest.tokens];
  };

  test(
    "greedy and sampled, what has moved with its KV is what had stayed",
    async () => {
      const [moving, staying] = [await open("always"), await open("never")];
      for (const [id, temperature] of [
        [1, 0],
        [2, 1],
        [3, 1],
      ] as const) {
        const prompt = someText(id, 480 + id);
        const before = await hitsOf(1);
        const moved = await inTwo(moving, [0, 1], { id, prompt, temperature });
        expect((await hitsOf(1)) - before).toBe(WHOLE_TOKENS);
        expect(moved.length).toBe(180);
        expect(moved).toEqual(await inTwo(staying, [0, 0], { id, prompt, temperature }));
      }
      expect(moving.moves(1)).toMatchObject({
        moves: 3,
        movedTokens: 3 * WHOLE_TOKENS,
        misses: 0,
      });
      expect(moving.moves(0)).toMatchObject({ publishes: 3, publishedTokens: 3 * WHOLE_TOKENS });
      await moving.close();
      await staying.close();
    },
    TEST_MS_MAX,
  );

  test(
    "with the folders deleted in between it is computed again, with the same tokens",
    async () => {
      const [moving, staying] = [await open("always"), await open("never")];
      const prompt = someText(11, 500);
      const text = { id: 11, prompt, temperature: 0 };
      const { folders } = running();
      const gone = () => {
        for (const folder of folders) rmSync(folder, { recursive: true, force: true });
      };
      // What it publishes is deleted too: nothing is left by the time it is wanted.
      const first = await moving.chunk(0, { ...text, output: [], tokens: 10 });
      gone();
      const output = first.tokens;
      const before = await hitsOf(1);
      const rest = await moving.chunk(1, { ...text, output, tokens: 100 });
      expect(await hitsOf(1)).toBe(before);
      const whole = await staying.chunk(0, { ...text, output: [], tokens: 110 });
      expect([...output, ...rest.tokens]).toEqual(whole.tokens);
      expect(moving.moves(1)).toMatchObject({ moves: 0, misses: 1, recomputedMoves: 1 });
      // And the next one moves again.
      await inTwo(moving, [0, 1], { id: 12, prompt: someText(12, 500), temperature: 0 });
      expect(moving.moves(1).moves).toBe(1);
      await moving.close();
      await staying.close();
    },
    TEST_MS_MAX,
  );

  test(
    "lengths that end a server whose folder nobody keeps in order do no harm",
    async () => {
      const pair = await open("always");
      // A prompt of one token, twice; and one block and a token, when the block is known to the server.
      const text = someText(21, 3 * BLOCK_TOKENS);
      const lengths = [1, 1, 100, BLOCK_TOKENS + 1, BLOCK_TOKENS + 1, 200, 2 * BLOCK_TOKENS + 1];
      for (const [i, length] of lengths.entries()) {
        const prompt = text.slice(0, length);
        const made = await pair.chunk(i % 2, {
          id: 30 + i,
          prompt,
          output: [],
          tokens: 2,
          temperature: 0,
        });
        expect(made.tokens.length).toBe(2);
        const again = { id: 30 + i, prompt, output: made.tokens, tokens: 2, temperature: 0 };
        expect((await pair.chunk((i + 1) % 2, again)).tokens.length).toBe(2);
        pair.release(30 + i);
      }
      await pair.close();
    },
    TEST_MS_MAX,
  );

  test(
    "measured: costs are learnt from what happens, and the choice is the cheaper one's",
    async () => {
      const pair = await open("measured");
      for (let id = 100; id < 112; id += 1) {
        await inTwo(pair, [id % 2, (id + 1) % 2], {
          id,
          prompt: someText(id, 400),
          temperature: 0,
        });
      }
      const all = [pair.moves(0), pair.moves(1)];
      for (const { moves, recomputedMoves } of all) {
        expect(moves + recomputedMoves).toBe(6);
        expect(moves).toBeGreaterThanOrEqual(1);
      }
      console.log(`measured: ${JSON.stringify(all)}`);
      await pair.close();
    },
    TEST_MS_MAX,
  );

  test(
    "after reload_weights no KV of the old weights is used",
    async () => {
      const pair = await open("always");
      const prompt = someText(41, 500);
      const text = { id: 41, prompt, temperature: 0 };
      const first = await pair.chunk(0, { ...text, output: [], tokens: 10 });
      const { folders, servers } = running();
      const kept = readdirSync(join(folders[0] ?? "", ".foretoken"));
      expect(kept.length).toBe(1);
      const old = mkdtempSync(join(tmpdir(), "foretoken-old-kv-"));
      cpSync(join(folders[0] ?? "", ".foretoken", kept[0] ?? ""), old, { recursive: true });

      const weights = scaledModel(0.5);
      for (const worker of pair.workers) {
        const answer = await worker.control({
          method: "POST",
          path: "/collective_rpc",
          query: {},
          body: { method: "reload_weights", kwargs: { weights_path: weights } },
          nextEpoch: weightEpoch(1),
        });
        expect(answer.status).toBe(200);
        worker.send([{ kind: "advance", epoch: weightEpoch(1) }]);
      }
      const before = [await hitsOf(0), await hitsOf(1)];
      const piece = { ...text, output: first.tokens, tokens: 50 };
      const made = await pair.chunk(1, piece);
      expect([await hitsOf(0), await hitsOf(1)]).toEqual(before);
      await pair.close();

      // Nobody else had a hand in it: the connector itself takes what it finds, whatever weights it is of.
      const name = storedName(Int32Array.from(prompt), WHOLE_PROMPT_TOKENS);
      expect(existsSync(join(folders[1] ?? "", name))).toBe(false);
      cpSync(old, join(folders[1] ?? "", name), { recursive: true });
      const { usage } = await generate(servers[1]?.spec.url ?? "", prompt);
      expect(usage.prompt_tokens_details.cached_tokens).toBe(WHOLE_PROMPT_TOKENS);

      const fresh = await open("never", 1);
      expect((await fresh.chunk(0, { ...piece, id: 42 })).tokens).toEqual(made.tokens);
      await fresh.close();
      for (const folder of [old, weights]) rmSync(folder, { recursive: true });
    },
    TEST_MS_MAX,
  );
});

async function generate(url: string, ids: readonly number[]) {
  const answer = await fetch(`${url}/inference/v1/generate`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      token_ids: ids,
      cache_salt: "nobody's",
      sampling_params: { max_tokens: 1, temperature: 0, detokenize: false },
    }),
  });
  return (await answer.json()) as {
    usage: { prompt_tokens_details: { cached_tokens: number } };
  };
}
