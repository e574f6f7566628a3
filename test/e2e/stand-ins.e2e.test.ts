// The whole sidecar over stand-ins for vLLM that show every fault there is: thousands of seeded responses, asked for
// over HTTP by every kind of client, each token accounted for. Repeat a seed with SEED=n bun test <this file>.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { fold32 } from "../../src/core/base/hash.ts";
import type { VllmLimits } from "../../src/engines/vllm/limits.ts";
import type { RunningSidecar } from "../../src/serve-options.ts";
import { StandInBed, stopBeds } from "../faults/attacks/stand-in-bed.ts";
import { FAULT_KINDS, seededFaults } from "../faults/stand-in/faults.ts";
import { EOS, standInResponse } from "../faults/stand-in/tokens.ts";

setDefaultTimeout(240_000);

const SEEDS = process.env.SEED === undefined ? [1, 2, 3] : [Number(process.env.SEED)];
const ASKS = 110;
const GROUP_SIZE_MAX = 16;
const TOKENS_MAX = 20;

const LIMITS: Partial<VllmLimits> = {
  stallMs: 100,
  silenceMsMax: 1_000,
  retryMs: 1,
  retryMsMax: 4,
  pollMs: 100,
  failedAttemptsMax: 50,
  healthFailuresMax: 50,
  checkMsMax: 5_000,
};

/** One prompt of which `n` responses are wanted. Its own number stands in it, so that no two are alike. */
interface Wanted {
  readonly prompt: readonly number[];
  readonly n: number;
  readonly tokensMax: number;
}

function wantedOf(seed: number, ask: number): Wanted {
  const dice = (purpose: number) => fold32(fold32(seed, ask), purpose);
  const length = dice(1) % 40;
  const rest = Array.from({ length }, (_, i) => dice(10 + i) % 1000);
  return {
    prompt: [ask, seed, ...rest],
    n: 1 + (dice(2) % GROUP_SIZE_MAX),
    tokensMax: 1 + (dice(3) % TOKENS_MAX),
  };
}

function expectedOf({ prompt, n, tokensMax }: Wanted): number[][] {
  return Array.from({ length: n }, (_, sample) =>
    standInResponse({ prompt, sample, tokensMin: 0, tokensMax, stopTokenIds: [EOS] }),
  );
}

async function post(sidecar: RunningSidecar, path: string, body: object): Promise<Response> {
  const response = await fetch(new URL(path, sidecar.url), {
    method: "POST",
    body: JSON.stringify(body),
  });
  expect(response.status).toBe(200);
  return response;
}

interface Choice {
  readonly index: number;
  readonly token_ids: number[];
}

type Client = (sidecar: RunningSidecar, wanted: Wanted) => Promise<number[][]>;

const whole: Client = async (sidecar, { prompt, n, tokensMax }) => {
  const body = { prompt, n, max_tokens: tokensMax, return_token_ids: true };
  const answer = await (await post(sidecar, "/v1/completions", body)).json();
  const { choices } = answer as { choices: Choice[] };
  return choices.map((choice) => choice.token_ids);
};

const streaming: Client = async (sidecar, { prompt, n, tokensMax }) => {
  const params = { n, max_tokens: tokensMax, logprobs: 0 };
  const body = { token_ids: prompt, sampling_params: params, stream: true };
  const text = await (await post(sidecar, "/inference/v1/generate", body)).text();
  const responses: number[][] = Array.from({ length: n }, () => []);
  const data = text.split("\n\n").map((event) => event.slice("data: ".length));
  expect(data.slice(-2)).toEqual(["[DONE]", ""]);
  for (const event of data.slice(0, -2)) {
    const { choices } = JSON.parse(event) as { choices: Choice[] };
    for (const { index, token_ids: ids } of choices) responses[index]?.push(...ids);
  }
  return responses;
};

/** As SkyRL and prime-rl ask: every response is a request of its own. */
const single: Client = async (sidecar, { prompt, n, tokensMax }) => {
  const body = { token_ids: prompt, sampling_params: { max_tokens: tokensMax } };
  const answers = await Promise.all(
    Array.from({ length: n }, () => post(sidecar, "/inference/v1/generate", body)),
  );
  const all = await Promise.all(answers.map((answer) => answer.json()));
  return all.map((answer) => (answer as { choices: Choice[] }).choices[0]?.token_ids ?? []);
};

const sglang: Client = async (sidecar, { prompt, n, tokensMax }) => {
  const body = { input_ids: prompt, sampling_params: { n, max_new_tokens: tokensMax } };
  const answer = (await (await post(sidecar, "/generate", body)).json()) as
    | { output_ids: number[] }
    | { output_ids: number[] }[];
  return [answer].flat().map(({ output_ids: ids }) => ids);
};

const rollout: Client = async (sidecar, { prompt, n, tokensMax }) => {
  const groups = [{ id: "g", token_ids: prompt, n }];
  const body = { groups, sampling_params: { max_tokens: tokensMax } };
  const lines = (await (await post(sidecar, "/v1/rollouts", body)).text()).trim().split("\n");
  return lines.slice(0, -1).map((line) => (JSON.parse(line) as Choice).token_ids);
};

const CLIENTS: readonly Client[] = [whole, streaming, single, sglang, rollout];

interface Told {
  readonly joined?: { request: number; group: string; index: number }[];
  readonly restarted?: { request: number }[];
  readonly tokens?: { request: number; offset: number; token_ids: number[] }[];
  readonly finished?: { request: number; length: number }[];
}

/** Follows everything over /v1/stream, from before the first response on. */
class Follower {
  readonly tokens = new Map<number, number[]>();
  readonly finished = new Set<number>();
  readonly #socket: WebSocket;

  private constructor(socket: WebSocket) {
    this.#socket = socket;
  }

  static async start(sidecar: RunningSidecar): Promise<Follower> {
    const socket = new WebSocket(new URL("/v1/stream", sidecar.url.href.replace("http", "ws")));
    const follower = new Follower(socket);
    const { promise, resolve } = Promise.withResolvers<void>();
    socket.onopen = () => socket.send(JSON.stringify({ subscribe: { all: true } }));
    socket.onmessage = ({ data }) => {
      follower.#take(JSON.parse(String(data)));
      resolve();
    };
    await promise;
    return follower;
  }

  #take({ joined = [], restarted = [], tokens = [], finished = [] }: Told): void {
    for (const { request } of [...joined, ...restarted]) this.tokens.set(request, []);
    for (const { request, offset, token_ids: ids } of tokens) {
      const there = this.tokens.get(request) ?? [];
      expect(offset).toBe(there.length);
      there.push(...ids);
    }
    for (const { request, length } of finished) {
      expect(this.tokens.get(request)?.length).toBe(length);
      this.finished.add(request);
    }
  }

  async until(finished: number): Promise<void> {
    while (this.finished.size < finished) await Bun.sleep(5);
    this.#socket.close();
  }
}

async function play(seed: number): Promise<{ responses: number; shown: Map<string, number> }> {
  const restarts = { left: 1 };
  const bed = await StandInBed.start(
    3,
    (i) => {
      const options = { share: 0.1, tokensMax: 10, kinds: FAULT_KINDS, restarts };
      const faults = seededFaults(fold32(seed, i), options);
      return {
        slots: 64 + 32 * i,
        generate: i === 2 ? "disabled" : "enabled",
        // The probe's own request is the first to arrive.
        faults: (arrival, prompt) => (arrival < 2 ? null : faults(arrival, prompt)),
        silenceMs: 30,
        downMs: 5,
      };
    },
    { limits: LIMITS, serve: { retryGraceMs: 30_000, weightsTimeoutMs: 60_000 } },
  );
  const { sidecar } = bed;
  try {
    const follower = await Follower.start(sidecar);
    const asks = Array.from({ length: ASKS }, (_, ask) => wantedOf(seed, ask));
    const answers = await Promise.all(
      asks.map((wanted, i) => CLIENTS[i % CLIENTS.length]?.(sidecar, wanted) ?? []),
    );
    const expected = asks.map(expectedOf);
    // Single requests become samples in the order in which the server takes them.
    expect(answers.map(inOrder)).toEqual(expected.map(inOrder));
    const responses = expected.flat();
    await follower.until(responses.length);
    expect(inOrder([...follower.tokens.values()])).toEqual(inOrder(responses));
    const shown = new Map<string, number>();
    for (const one of bed.standIns) {
      for (const [kind, times] of one.shown) shown.set(kind, (shown.get(kind) ?? 0) + times);
    }
    return { responses: responses.length, shown };
  } finally {
    await bed.stop();
  }
}

function inOrder(responses: readonly (readonly number[])[]): string[] {
  return responses.map((tokens) => tokens.join(",")).toSorted();
}

test("serve: every client gets every token once, in order, whatever the engines do", async () => {
  const seen = new Set<string>();
  let responses = 0;
  for (const seed of SEEDS) {
    const played = await play(seed);
    responses += played.responses;
    for (const kind of played.shown.keys()) seen.add(kind);
  }
  if (process.env.SEED !== undefined) return;
  expect(responses).toBeGreaterThan(2500);
  expect([...seen].toSorted()).toEqual([...FAULT_KINDS].toSorted());
});

describe("an engine's 4xx", () => {
  /** The sidecar's vocabulary has one token more than the engine's. */
  const REFUSED = 1000;
  const MESSAGE = "Token id 1000 is out of vocabulary";
  const params = { max_tokens: 4 };
  let bed: StandInBed;

  beforeAll(async () => {
    bed = await StandInBed.start();
  });

  afterAll(stopBeds);

  test("refused: the client gets the engine's message, and the server continues", async () => {
    const body = { token_ids: [1, REFUSED], sampling_params: { ...params, n: 3 } };
    const answer = await bed.post("/inference/v1/generate", body);
    expect(answer.status).toBe(400);
    expect(await answer.json()).toEqual({
      error: { message: MESSAGE, type: "BadRequestError", param: null, code: 400 },
    });
    expect(bed.sidecar.sidecar.rollout.unfinished).toBe(0);
    const good = { token_ids: [1, 2], sampling_params: params };
    expect((await bed.post("/inference/v1/generate", good)).status).toBe(200);
  });

  test("usage: tells how much of the prompt the engine had in its cache", async () => {
    const prompt = Array.from({ length: 40 }, (_, i) => i);
    const details = async (path: string, body: object) => {
      const answer = (await (await bed.post(path, body)).json()) as {
        usage: Record<string, unknown>;
      };
      return answer.usage.prompt_tokens_details;
    };
    const first = { token_ids: prompt, sampling_params: params };
    expect(await details("/inference/v1/generate", first)).toEqual({ cached_tokens: 0 });
    // Whole blocks of 16 tokens.
    const again = { prompt, max_tokens: 4, n: 2 };
    expect(await details("/v1/completions", again)).toEqual({ cached_tokens: 32 });
  });

  test("refused: a stream ends with the engine's words, without [DONE]", async () => {
    const body = { token_ids: [2, REFUSED], sampling_params: params, stream: true };
    const text = await (await bed.post("/inference/v1/generate", body)).text();
    const { error } = JSON.parse(text.slice("data: ".length)) as { error: { message: string } };
    expect(error.message).toBe(MESSAGE);
  });

  test("refused: a rollout's line has the reason; its other groups continue", async () => {
    const groups = [
      { id: "good", token_ids: [3, 4] },
      { id: "bad", token_ids: [3, REFUSED] },
    ];
    const text = await (await bed.post("/v1/rollouts", { groups, sampling_params: params })).text();
    const lines = text.trim().split("\n").slice(0, -1);
    const told = lines.map((line) => {
      const { group, finish_reason: reason, error } = JSON.parse(line);
      return [group, reason, error?.message ?? null];
    });
    expect(told.toSorted()).toEqual([
      ["bad", "abort", MESSAGE],
      ["good", "length", null],
    ]);
  });
});
