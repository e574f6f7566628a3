// What comes out of a rollout over two real servers, held against plain vLLM: token for token at temperature 0, in
// distribution at temperature 1; seeds, stop tokens and cached prefixes across chunks.

import { expect, test } from "bun:test";
import { faultsOf, GROUP_SIZE, type LateBed, movedIn, roll, standStill } from "./bed.ts";
import { mean } from "./compare.ts";
import { expectDrawnAsPlain, expectGreedyAsPlain } from "./drawn-as-plain.ts";
import { CHUNK_TOKENS, MAX_TOKENS } from "./fleet.ts";

export function drawTests(bed: LateBed): void {
  test("temperature 0: in chunks over both servers, token for token as plain vLLM in one piece", async () => {
    const rolled = await expectGreedyAsPlain(bed(), 1);
    expect(rolled.summary.report.chunks).toBeGreaterThan(bed().prompts.length);
  });

  test("temperature 1: 16 groups of 6, every response in chunks and some moved, as plain vLLM draws", async () => {
    const rolled = await roll(bed(), {
      id: "drawn",
      sampling: { temperature: 1, seed: 5 },
      afterTokens: 2_000,
      meanwhile: () => standStill(bed()),
    });
    expect(faultsOf(bed(), rolled)).toEqual([]);
    expect(rolled.lines.length).toBe(16 * GROUP_SIZE);
    for (const { token_ids: ids, chunks } of rolled.lines) {
      expect(chunks.length).toBeGreaterThanOrEqual(Math.ceil(ids.length / CHUNK_TOKENS));
    }
    expect(movedIn(rolled)).toBeGreaterThan(0);
    expect(rolled.summary.report.restarts).toBe(0);
    const half = rolled.lines.filter((_, i) => i % 2 === 0);
    const told = await expectDrawnAsPlain(bed(), rolled, half);
    const { wall_s: s, output_tokens: tokens, chunks, migrations } = rolled.summary.report;
    console.log(
      `rollout: ${rolled.lines.length} responses, ${tokens} tokens in ${s.toFixed(1)} s, ${chunks} chunks, ${migrations} moves; ${told}`,
    );
  });

  test("a continued chunk finds its KV in the prefix cache, and the sidecar's metrics show it", async () => {
    const { fleet, prompts } = bed();
    const figures = async () => ({
      asked: await fleet.metric("vllm:prompt_tokens_total", "servers"),
      cached: await fleet.metric("vllm:prompt_tokens_cached_total", "servers"),
      shown: await fleet.metric("vllm:prompt_tokens_total", "sidecar"),
    });
    const before = await figures();
    const [choice] = await fleet.complete({
      prompt: prompts[0],
      temperature: 0,
      ignore_eos: true,
      max_tokens: 640,
    });
    expect(choice?.token_ids.length).toBe(640);
    const after = await figures();
    const asked = after.asked - before.asked;
    const cached = after.cached - before.cached;
    // 20 chunks, whose prompts add up to more than half of 20 times the whole; whole blocks of 32 are found.
    expect(asked).toBeGreaterThan(6000);
    expect(cached / asked).toBeGreaterThan(0.5);
    expect(cached % 32).toBe(0);
    expect(after.shown - before.shown).toBe(asked - cached);
    console.log(`prefix cache: of ${asked} prompt tokens of 20 chunks, ${cached} were found`);
  });

  seedTests(bed);

  test("stop tokens: a response ends at the first one, inside, at the end and at the beginning of a chunk", async () => {
    const { fleet, prompts } = bed();
    const hot = { temperature: 2, ignore_eos: true, max_tokens: 3 * CHUNK_TOKENS };
    const places = [CHUNK_TOKENS - 1, CHUNK_TOKENS, 2 * CHUNK_TOKENS - 1, 2 * CHUNK_TOKENS + 9];
    const asks = [1, 2, 3, 4].flatMap((seed) =>
      prompts.map((prompt) => ({ ...hot, prompt, seed })),
    );
    const texts = await Promise.all(
      asks.map(async (ask) => ({ ask, ids: (await fleet.complete(ask))[0]?.token_ids ?? [] })),
    );
    // Tokens that occur for the first time there.
    const cases = places.flatMap((at) =>
      texts
        .filter(({ ids }) => ids.indexOf(ids[at] ?? -1) === at)
        .slice(0, 3)
        .map(({ ask, ids }) => ({ ask, at, ids: ids.slice(0, at + 1) })),
    );
    expect([...new Set(cases.map(({ at }) => at))]).toEqual(places);
    const stopped = await Promise.all(
      cases.map(({ ask, ids }) => fleet.complete({ ...ask, stop_token_ids: ids.slice(-1) })),
    );
    for (const [i, [choice]] of stopped.entries()) {
      expect(choice?.token_ids).toEqual(cases[i]?.ids ?? []);
      expect(choice?.finish_reason).toBe("stop");
    }
  });
}

function seedTests(bed: LateBed): void {
  test("seeds: one repeats its responses however they are chunked out; another draws others; siblings differ", async () => {
    const { fleet, prompts } = bed();
    const draw = (seed: number) =>
      fleet.complete({ prompt: prompts[1], n: 4, temperature: 1.5, seed, ignore_eos: true });
    const [one, again, other] = await Promise.all([draw(3), draw(3), draw(4)]);
    const texts = (choices: typeof one) => choices.map(({ token_ids: ids }) => ids.join(" "));
    expect(texts(again)).toEqual(texts(one));
    expect(new Set([...texts(one), ...texts(other)]).size).toBe(8);
    expect(one.every(({ token_ids: ids }) => ids.length === MAX_TOKENS)).toBe(true);
  });

  test("seeds: no chunk draws with the random numbers of the one before", async () => {
    const { fleet, prompts } = bed();
    const texts = await Promise.all(
      prompts.map(async (prompt, seed) => {
        const ask = {
          prompt,
          temperature: 2,
          seed,
          ignore_eos: true,
          max_tokens: 4 * CHUNK_TOKENS,
        };
        return (await fleet.complete(ask))[0]?.token_ids ?? [];
      }),
    );
    // With the same numbers a fifth of the tokens would come again, at this temperature.
    const equal = (ids: readonly number[], others: readonly number[]) => {
      const later = ids.slice(CHUNK_TOKENS);
      return later.filter((id, at) => id === others[at % CHUNK_TOKENS]).length / later.length;
    };
    const own = mean(texts.map((ids) => equal(ids, ids)));
    const others = mean(texts.map((ids, i) => equal(ids, texts[(i + 1) % texts.length] ?? [])));
    expect(texts.every((ids) => ids.length === 4 * CHUNK_TOKENS)).toBe(true);
    expect(own - others).toBeLessThan(0.07);
  });
}
