// The client of /v1/stream against a whole sidecar over stand-ins, through a proxy that breaks its connections at random bytes:
// every token of every response once, in order, whatever broke.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { StandInBed, stopBeds } from "../../test/faults/attacks/stand-in-bed.ts";
import { CuttingProxy } from "../../test/faults/cutting-proxy.ts";
import { standInResponse } from "../../test/faults/stand-in/tokens.ts";
import { Random } from "../../test/suite/random.ts";
import {
  type FollowOptions,
  followTokens,
  type StreamEvent,
  type StreamFilter,
} from "./follow-tokens.ts";

setDefaultTimeout(120_000);

const SEED = Number(process.env.SEED ?? 1);
const N = 4;
const TOKENS_MAX = 200;
/** Some end within the handshake, some bring a few frames, and some all that was missed. */
const BYTES_MIN = 100;
/** Many small frames. */
const SLOW_TOKENS = 800;
const ROUNDS = Number(process.env.ROUNDS ?? 3);

const proxies: CuttingProxy[] = [];

afterEach(async () => {
  await stopBeds();
  await Promise.all(proxies.splice(0).map((proxy) => proxy.close()));
});

/** A sidecar, and its address behind a proxy that breaks connections at bytes drawn from `seed`; null: it breaks none. */
async function behindProxy(cuts: { seed: number; bytesMax: number } | null) {
  const bed = await StandInBed.start(2, () => ({ stepMs: 2 }));
  const proxy = await CuttingProxy.before(bed.sidecar.url.href);
  proxies.push(proxy);
  if (cuts !== null) {
    const random = new Random(cuts.seed, "cuts");
    proxy.cutAfterBytes = () => BYTES_MIN + random.below(cuts.bytesMax);
  }
  return { bed, proxy, url: `http://127.0.0.1:${proxy.port}` };
}

const groupNames = ["g0", "g1", "g2"];
const promptOf = (group: string): number[] => [Number(group.slice(1)), 8, 9];

function rollout(
  bed: StandInBed,
  names: readonly string[],
  tokensMax = TOKENS_MAX,
): Promise<Response> {
  const groups = names.map((id) => ({ id, n: N, token_ids: promptOf(id) }));
  const body = { id: "r", groups, sampling_params: { max_tokens: tokensMax, temperature: 1 } };
  return bed.post("/v1/rollouts", body);
}

interface Had {
  readonly name: string;
  readonly tokens: number[];
  end: string | null;
}

/** Holds the stream to its promise, and keeps what came. */
class Reader {
  readonly responses = new Map<number, Had>();
  readonly finishedGroups: string[] = [];

  read(event: StreamEvent): void {
    if (event.kind === "joined") {
      expect(this.responses.has(event.request)).toBe(false);
      const name = `${event.group.split("/").at(-1)}/${event.index}`;
      this.responses.set(event.request, { name, tokens: [], end: null });
    } else if (event.kind === "tokens") {
      const had = this.of(event.request);
      expect([event.request, event.offset]).toEqual([event.request, had.tokens.length]);
      had.tokens.push(...event.tokens);
    } else if (event.kind === "finished") {
      const had = this.of(event.request);
      expect([had.end, had.tokens.length]).toEqual([null, event.length]);
      had.end = event.reason;
    } else if (event.kind === "group_finished") this.finishedGroups.push(event.group);
    else if (event.kind !== "subscribed") throw new Error(`unexpected: ${JSON.stringify(event)}`);
  }

  of(request: number): Had {
    const had = this.responses.get(request);
    if (had === undefined) throw new Error(`response ${request} has not joined`);
    return had;
  }

  get ended(): number {
    return [...this.responses.values()].filter(({ end }) => end !== null).length;
  }
}

async function* taken(events: AsyncIterable<StreamEvent>, count: number) {
  let left = count;
  for await (const event of events) {
    yield event;
    left -= 1;
    if (left === 0) return;
  }
}

function expectWhole(reader: Reader, names: readonly string[], tokensMax = TOKENS_MAX): void {
  const came = new Map([...reader.responses.values()].map(({ name, tokens }) => [name, tokens]));
  const all = names.flatMap((group) =>
    Array.from({ length: N }, (_, sample): [string, number[]] => {
      const drawn = { prompt: promptOf(group), sample, tokensMax };
      return [`${group}/${sample}`, standInResponse(drawn)];
    }),
  );
  expect(Object.fromEntries(came)).toEqual(Object.fromEntries(all));
}

for (const [about, filter, names, bytesMax] of [
  ["all", { all: true }, groupNames, 12_000],
  ["a group", { group: "r/g1" }, ["g1"], 9_000],
] as const) {
  for (let round = 0; round < ROUNDS; round += 1) {
    const seed = SEED * 1_000 + round;
    test(`${about}, cut at random bytes (${seed}): every token once, in order`, async () => {
      const { bed, proxy, url } = await behindProxy({ seed, bytesMax });
      const reader = new Reader();
      let asked: Promise<Response> | null = null;
      for await (const event of followTokens(url, filter)) {
        if (event.kind === "subscribed") asked = rollout(bed, groupNames);
        reader.read(event);
        if (reader.ended === N * names.length && "all" in filter) break;
      }
      expect((await asked)?.status).toBe(200);
      expectWhole(reader, names);
      expect(proxy.cuts).toBeGreaterThan(0);
      if ("group" in filter) expect(reader.finishedGroups).toHaveLength(1);
    });
  }
}

test("a request, cut at random bytes: a number to come, whole, and then the end", async () => {
  const { bed, proxy, url } = await behindProxy({ seed: SEED, bytesMax: 2_500 });
  const reader = new Reader();
  let asked: Promise<Response> | null = null;
  for await (const event of followTokens(url, { request: 2 })) {
    if (event.kind === "subscribed") asked = rollout(bed, ["g0"]);
    reader.read(event);
  }
  expect((await asked)?.status).toBe(200);
  const drawn = { prompt: promptOf("g0"), sample: 2, tokensMax: TOKENS_MAX };
  expect(reader.of(2).tokens).toEqual(standInResponse(drawn));
  expect(proxy.cuts).toBeGreaterThan(1);
});

test("snapshot: what is there comes first, and what ended before does not without it", async () => {
  const { bed, url } = await behindProxy(null);
  // Groups of plain requests stay open: their responses are there until the weights change.
  const before = await bed.complete([1, 2], { n: 1 });
  const fresh = Array.fromAsync(taken(followTokens(url, { all: true }), 1));
  expect(await fresh).toEqual([{ kind: "subscribed", weightEpoch: 0 }]);
  const reader = new Reader();
  for await (const event of followTokens(url, { all: true }, { snapshot: true })) {
    reader.read(event);
    if (reader.ended === 1) break;
  }
  expect(reader.of(0).tokens).toEqual([...before.tokens]);
});

test("another server: what the first one had not finished is lost, and what the next one makes comes", async () => {
  const first = await StandInBed.start(1, () => ({ stepMs: 20 }));
  let target = first;
  const proxy = await CuttingProxy.listen(() => Number(target.sidecar.url.port));
  proxies.push(proxy);
  const seen: StreamEvent[] = [];
  for await (const event of followTokens(`http://127.0.0.1:${proxy.port}`, { all: true })) {
    seen.push(event);
    if (event.kind === "subscribed") void rollout(first, ["g0"]).catch(() => undefined);
    if (event.kind === "tokens" && target === first) {
      target = await StandInBed.start();
      proxy.cut();
    }
    if (event.kind === "lost" && event.request === 0) {
      void rollout(target, ["g1"]).catch(() => undefined);
    }
    if (event.kind === "finished") break;
  }
  const at = seen.findIndex(({ kind }) => kind === "lost");
  const lost = seen
    .slice(at, at + N)
    .map((event) => [event.kind, "request" in event && event.request]);
  expect(lost).toEqual(Array.from({ length: N }, (_, i) => ["lost", i]));
  expect(seen[at + N]).toMatchObject({ kind: "joined", request: 0, offset: 0 });
});

test("a reader that is slow gets everything", async () => {
  const { bed, url } = await behindProxy(null);
  const reader = new Reader();
  let asked: Promise<Response> | null = null;
  for await (const event of followTokens(url, { all: true })) {
    if (event.kind === "subscribed") {
      asked = rollout(bed, groupNames, SLOW_TOKENS);
      // More frames than the queue holds are sent meanwhile.
      await (await asked).text();
    }
    reader.read(event);
    if (reader.ended === 3 * N) break;
  }
  expectWhole(reader, groupNames, SLOW_TOKENS);
});

test("errors: no server within the deadline, no right, no such response; a signal is none", async () => {
  const failure = async (url: string, filter: StreamFilter, options: FollowOptions = {}) => {
    try {
      return await Array.fromAsync(followTokens(url, filter, options));
    } catch (error) {
      return error;
    }
  };
  const dead = await failure("http://127.0.0.1:1", { all: true }, { lostMsMax: 200 });
  expect(dead).toMatchObject({
    code: "unreachable",
    message: expect.stringContaining("ECONNREFUSED"),
  });
  expect(await failure("127.0.0.1:1", { all: true })).toMatchObject({ code: "usage" });
  const bed = await StandInBed.start(1, undefined, { serve: { apiToken: "secret" } });
  const url = bed.sidecar.url.href;
  expect(await failure(url, { all: true })).toMatchObject({ code: "unauthorized" });
  const signal = AbortSignal.timeout(100);
  expect(await failure(url, { all: true }, { token: "secret", signal })).toEqual([
    { kind: "subscribed", weightEpoch: 0 },
  ]);
});
