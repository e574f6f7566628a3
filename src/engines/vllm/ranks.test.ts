// Data parallel ranks and hybrid models over stand-ins: what all ranks answer as one, and whether responses are divided.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { StandInBed, stopBeds } from "../../../test/faults/attacks/stand-in-bed.ts";
import { standInResponse } from "../../../test/faults/stand-in/tokens.ts";
import type { StandInOptions, VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { workerId } from "../../core/base/ids.ts";
import { openVllmWorker } from "./open.ts";

setDefaultTimeout(180_000);

const TOKENS = 24;
const RANKS = 3;
const SLOTS = 4;
afterEach(stopBeds);

async function started(options: Partial<StandInOptions>): Promise<[StandInBed, VllmStandIn]> {
  const bed = await StandInBed.start(1, () => options);
  const [standIn] = bed.standIns;
  if (standIn === undefined) throw new Error("no server");
  return [bed, standIn];
}

const promptOf = (i: number) =>
  Array.from({ length: 8 + (i % 5) }, (_, k) => (i * 31 + k * 7) % 900);

/** The tokens of `count` prompts, against those that one undisturbed engine would make. */
async function askAll(of: StandInBed, count: number): Promise<void> {
  const asks = Array.from({ length: count }, async (_, i) => {
    const body = { prompt: promptOf(i), max_tokens: TOKENS, return_token_ids: true };
    const response = await of.post("/v1/completions", body);
    const text = await response.text();
    expect([response.status, text]).toEqual([200, text]);
    const { choices } = JSON.parse(text) as { choices: { token_ids: number[] }[] };
    const drawn = { prompt: promptOf(i), tokensMax: TOKENS };
    expect(choices[0]?.token_ids).toEqual(standInResponse(drawn));
  });
  await Promise.all(asks);
}

/** The rank of each chunk, by request. */
function ranksIn({ placed }: VllmStandIn): Map<string, number[]> {
  const ranks = new Map<string, number[]>();
  for (const { name, rank } of placed) {
    const [request] = /^ft-\d+/.exec(name) ?? [];
    if (request !== undefined) ranks.set(request, [...(ranks.get(request) ?? []), rank]);
  }
  return ranks;
}

test("ranks: they serve as one engine, and a canary asks each of them", async () => {
  const [one, standIn] = await started({ ranks: RANKS, slots: SLOTS });
  await askAll(one, 24);
  expect(ranksIn(standIn).size).toBe(24);
  const worker = await openVllmWorker({ workerId: workerId(9), url: standIn.url });
  await worker.perform({ kind: "canary", adapter: null });
  await worker.close();
  const canaries = standIn.placed.filter(({ name }) => name.startsWith("ft-canary"));
  expect(canaries.map(({ rank }) => rank).sort()).toEqual([0, 1, 2]);
});

test("ranks: a request longer than one rank's KV is refused, though all ranks together had room", async () => {
  const [one] = await started({ ranks: RANKS, slots: SLOTS, blocks: 5, blockSize: 16 });
  const ask = async (tokens: number) =>
    await one.post("/v1/completions", { prompt: promptOf(1), max_tokens: tokens });
  // vLLM keeps one block of each rank for itself.
  const long = await ask(60);
  expect([long.status, await long.text()]).toEqual([400, expect.stringContaining("64 tokens")]);
  expect((await ask(40)).status).toBe(200);
});

test("hybrid models: divided once the engine has shown that it is the same, else in one piece", async () => {
  for (const [options, isDivided] of [
    [{ isHybrid: true }, true],
    [{ isHybrid: true, dividesWrongly: true }, false],
    [{ isHybrid: false, dividesWrongly: true }, true],
  ] as const) {
    const [one, standIn] = await started(options);
    await askAll(one, 6);
    const chunks = [...ranksIn(standIn).values()].map(({ length }) => length);
    expect([options, Math.min(...chunks) > 1, Math.max(...chunks) > 1]).toEqual([
      options,
      isDivided,
      isDivided,
    ]);
  }
});
