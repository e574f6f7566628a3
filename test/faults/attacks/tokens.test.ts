// Attacks by an engine: a stand-in for vLLM sends tokens beyond the vocabulary, logprobs that are none, wrong counts,
// garbage in place of events, and closes the connection at any byte. What must hold: the one request that meets it ends
// with an error that says so, within a deadline; every other one gets exactly its tokens; the sidecar stays in service.
// Repeat a failure with SEED=n bun test <this file>.

import { expect, setDefaultTimeout, test } from "bun:test";
import { fold32 } from "../../../src/core/base/hash.ts";
import { followTokens } from "../../../src/stream-client/follow-tokens.ts";
import { CuttingProxy } from "../cutting-proxy.ts";
import { type FaultKind, LIE_KINDS } from "../stand-in/faults.ts";
import type { StandInOptions } from "../stand-in/vllm-stand-in.ts";
import { rounds } from "./scale.ts";
import { type Answer, expectedOf, StandInBed, TOKENS } from "./stand-in-bed.ts";

setDefaultTimeout(600_000);

const SEED = Number(process.env.SEED ?? 1);
/** A prompt that begins with this token meets the lie whose number follows, after so many tokens. */
const POISON = 999;
const LIES: readonly FaultKind[] = LIE_KINDS;
const LIMITS = { stallMs: 500, failedAttemptsMax: 50 };

type Client = (bed: StandInBed, prompt: readonly number[]) => Promise<Answer>;
const CLIENTS: readonly Client[] = [
  (bed, prompt) => bed.complete(prompt),
  (bed, prompt) => bed.stream(prompt),
  (bed, prompt) => bed.rollOut(prompt),
];

function lying(): Promise<StandInBed> {
  const standIn = (index: number): Partial<StandInOptions> => ({
    generate: index === 0 ? "enabled" : "disabled",
    faults: (_, [first, number = 0, afterTokens = 0]) => {
      const kind = first === POISON ? LIES[number] : undefined;
      return kind === undefined ? null : { kind, afterTokens };
    },
  });
  return StandInBed.start(2, standIn, { limits: LIMITS });
}

/** Follows all responses until the signal; each ends with as many tokens as came. */
async function follow({ http }: StandInBed, signal: AbortSignal): Promise<void> {
  for await (const event of followTokens(http.url.href, { all: true }, { signal })) {
    expect(event.kind).not.toBe("lost");
  }
}

test("lies of an engine: the request that meets one fails with an error, all others get their tokens", async () => {
  const bed = await lying();
  const end = new AbortController();
  const followed = follow(bed, end.signal);
  for (let trial = 0; trial < rounds(2, 40); trial += 1) {
    const seed = fold32(SEED, trial);
    const asks = LIES.flatMap((kind, number) =>
      CLIENTS.map(async (client, c) => {
        const mark = 1 + (fold32(seed, number * 8 + c) % 900);
        const after = fold32(seed, mark) % (TOKENS - 2);
        const bad = [POISON, number, after, trial, mark, c];
        const good = [trial, mark, c, number];
        const [badTold, goodTold] = await Promise.all([client(bed, bad), client(bed, good)]);
        const where = `SEED=${SEED} trial ${trial} ${kind} ${bad}`;
        expect({ where, told: goodTold }).toEqual({ where, told: expectedOf(good) });
        // What was lost on the way is asked for again, and a short response may end before the engine lies.
        if (badTold.status === 200) {
          expect({ where, told: badTold }).toEqual({ where, told: expectedOf(bad) });
        } else {
          expect({ where, status: badTold.status }).toEqual({ where, status: 502 });
          expect(badTold.message.length).toBeGreaterThan(10);
        }
      }),
    );
    await Promise.all(asks);
    expect(await bed.http.status("/health")).toBe(200);
  }
  end.abort();
  await followed;
  expect(bed.sidecar.sidecar.rollout.unfinished).toBe(0);
  expect(bed.failures).toEqual([]);
  const told = await bed.complete([POISON, LIES.indexOf("wild_token"), 1, 3]);
  expect(told).toMatchObject({ status: 502 });
  expect(told.message).toMatch(
    /^http:\/\/127\.0\.0\.1:\d+ gave token 6000 at position 1, not in 0\.\.1000$/,
  );
  expect(await bed.complete([4, 4])).toEqual(expectedOf([4, 4]));
  await bed.stop();
});

test("an engine that closes at every byte: every response comes whole, or its request ends with an error", async () => {
  const proxies: CuttingProxy[] = [];
  const bed = await StandInBed.start(1, undefined, {
    limits: LIMITS,
    reach: async (url) => {
      const proxy = await CuttingProxy.before(url);
      proxies.push(proxy);
      return `http://127.0.0.1:${proxy.port}`;
    },
  });
  const trials = rounds(60, 2_000);
  const step = rounds(29, 1);
  for (let trial = 0; trial < trials; trial += 1) {
    // Connections that are open are used again: every other trial begins with new ones, each good for so many bytes.
    for (const proxy of proxies) {
      proxy.cutAfterBytes = trial % 2 === 0 ? 1 + ((trial * step) % 4_000) : null;
      // Those of the retries do not break.
      proxy.cutsMax = proxy.cuts + 2;
      proxy.cut();
    }
    const prompt = [5, trial % 900, Math.floor(trial / 900)];
    const told = await CLIENTS[trial % CLIENTS.length]?.(bed, prompt);
    expect({ trial, told }).toEqual({ trial, told: expectedOf(prompt) });
  }
  expect(proxies.reduce((sum, { cuts }) => sum + cuts, 0)).toBeGreaterThan(trials / 4);
  await bed.stop();
  for (const proxy of proxies) await proxy.close();
});

test("an engine that answers its streams with endless bytes: the request ends, memory is bounded", async () => {
  const bed = await StandInBed.start(1, () => ({
    faults: (_, [first]) => (first === POISON ? { kind: "flood", afterTokens: 0 } : null),
  }));
  const before = process.memoryUsage().rss;
  const [bad, good] = await Promise.all([bed.complete([POISON, 6]), bed.complete([6, 1])]);
  expect(good).toEqual(expectedOf([6, 1]));
  expect(bad).toMatchObject({ status: 502 });
  expect(bed.standIns[0]?.shown.get("flood")).toBeGreaterThan(0);
  expect((process.memoryUsage().rss - before) / 2 ** 20).toBeLessThan(400);
  await bed.stop();
});

test("an engine that answers a control call with JSON nested without measure is passed on, or is an error", async () => {
  for (const depth of [200_000, 129, 5_000, 5_000_000].slice(0, rounds(1, 4))) {
    const nested = new TextEncoder().encode("[".repeat(depth) + "]".repeat(depth));
    const answer = { status: 400, body: nested };
    const routes = (path: string) => (path === "/collective_rpc" ? answer : null);
    const bed = await StandInBed.start(1, () => ({ routes }));
    const { status } = await bed.http.ask("/collective_rpc", { method: "some_method" });
    expect(status).toBeGreaterThanOrEqual(400);
    expect(await bed.complete([6, 1])).toEqual(expectedOf([6, 1]));
    expect(bed.failures).toEqual([]);
    await bed.stop();
  }
});
