// The control plane over two real servers: abort, sleep, cache reset, new weights; and a
// server that is killed in the middle of a rollout.

import { expect, test } from "bun:test";
import type { LateBed } from "./bed.ts";
import { heldAgainst } from "./compare.ts";
import type { Choice, Fleet } from "./fleet.ts";

const LONG = { temperature: 1, ignore_eos: true, max_tokens: 256 };
/** Length of a response that is ended before it ends by itself. */
const ENDLESS = { max_tokens: 1_900 };

/** Starts long responses; resolves when they have begun to come. */
async function begun(
  { fleet, prompts }: ReturnType<LateBed>,
  more: (i: number) => object = () => ({}),
): Promise<{ done: Promise<Choice[][]> }> {
  const before = await fleet.metric("vllm:generation_tokens_total", "sidecar");
  const done = Promise.all(
    prompts.slice(0, 4).map((prompt, i) => fleet.complete({ prompt, ...LONG, ...more(i) })),
  );
  await fleet.until(
    async () => (await fleet.metric("vllm:generation_tokens_total", "sidecar")) > before + 40,
  );
  return { done };
}

async function post(fleet: Fleet, path: string, body: object = {}): Promise<unknown> {
  const answer = await fleet.call("POST", path, body);
  const text = await answer.text();
  expect({ path, status: answer.status, text }).toMatchObject({ status: 200 });
  return text === "" ? null : JSON.parse(text);
}

const lengths = (responses: readonly Choice[][]) => responses.map(([c]) => c?.token_ids.length);
const reasons = (responses: readonly Choice[][]) => responses.map(([c]) => c?.finish_reason);

export function controlTests(bed: LateBed): void {
  test("abort: a request ends as it stands, and the servers stop working on it", async () => {
    const { fleet } = bed();
    const ids = [0, 1, 2, 3].map((i) => `given-up-${i}`);
    const [one, others] = [
      await begun(bed(), (i) => ({ ...ENDLESS, request_id: ids[i] })),
      await begun(bed()),
    ];
    await post(fleet, "/abort_requests", { request_ids: ids });
    const aborted = await one.done;
    expect(new Set(reasons(aborted))).toEqual(new Set(["abort"]));
    for (const length of lengths(aborted)) expect(length).toBeLessThan(ENDLESS.max_tokens);
    expect(new Set(lengths(await others.done))).toEqual(new Set([LONG.max_tokens]));
    await fleet.until(
      async () => (await fleet.metric("vllm:num_requests_running", "servers")) === 0,
    );
  });

  test("sleep: nothing is made until wake_up, and nothing is lost", async () => {
    const { fleet, prompts } = bed();
    const greedy = { prompt: prompts[3], temperature: 0, max_tokens: 96 };
    const [before] = await fleet.complete(greedy);
    const { done } = await begun(bed());
    await post(fleet, "/sleep?level=1");
    for (const index of [0, 1]) {
      const { body } = await fleet.plain(index).call("GET", "/is_sleeping");
      expect(body).toEqual({ is_sleeping: true });
    }
    await post(fleet, "/wake_up");
    expect(new Set(lengths(await done))).toEqual(new Set([LONG.max_tokens]));
    const [after] = await fleet.complete(greedy);
    expect(after?.token_ids).toEqual(before?.token_ids);
  });

  test("reset_prefix_cache: no server finds what it had cached", async () => {
    const { fleet, prompts } = bed();
    const tokens = Array.from({ length: 300 }, (_, i) => prompts.flat()[i] ?? 0);
    const cachedIn = async (index: number) => {
      const outcome = await fleet.plain(index).generate({ tokens, maxTokens: 1, temperature: 0 });
      return outcome.kind === "made" ? outcome.cachedTokens : outcome.message;
    };
    const both = async () => [await cachedIn(0), await cachedIn(1)];
    await both();
    expect(await both()).toEqual([288, 288]);
    await post(fleet, "/reset_prefix_cache");
    expect(await both()).toEqual([0, 0]);
  });
}

/** Leaves the fleet with the weights of `folder`. */
export function weightTests(bed: LateBed, folder: () => string): void {
  test("reload_weights over both in the middle of a rollout: no token of the old weights after it", async () => {
    const { fleet, prompts } = bed();
    const before = await fleet.metric("vllm:generation_tokens_total", "sidecar");
    const drawn = Promise.all(prompts.map((prompt) => fleet.complete({ prompt, ...LONG, n: 2 })));
    await fleet.until(
      async () => (await fleet.metric("vllm:generation_tokens_total", "sidecar")) > before + 3000,
    );
    const body = { method: "reload_weights", kwargs: { weights_path: folder() } };
    await post(fleet, "/collective_rpc", body);
    const split = (await drawn).flatMap((choices, i) =>
      choices.map((choice) => {
        const versions = choice.weight_versions.map(({ version }) => version);
        // Some may have ended before.
        expect(["0", "0,1"]).toContain(versions.join());
        const [, recent] = choice.weight_versions;
        return {
          prompt: prompts[i] ?? [],
          tokens: choice.token_ids,
          logprobs: choice.logprobs?.token_logprobs ?? [],
          from: recent?.start ?? choice.token_ids.length,
        };
      }),
    );
    const drawnAnew = split.filter(({ tokens, from }) => from < tokens.length);
    const recent = await heldAgainst(fleet.plain(0), drawnAnew);
    expect(recent.test.draws).toBeGreaterThan(0);
    expect(recent.test.isRejected).toBe(false);
    expect(recent.distance).toBeLessThan(1e-3);
    // The test could tell: what came before is not of these weights.
    const old = await heldAgainst(
      fleet.plain(1),
      split.map(({ prompt, tokens, logprobs, from }) => ({
        prompt,
        tokens: tokens.slice(0, from),
        logprobs: logprobs.slice(0, from),
      })),
    );
    expect(old.test.isRejected).toBe(true);
  });
}

/** Leaves the fleet with the weights of `folder`. */
export function cacheTests(bed: LateBed, folder: () => string): void {
  test("new weights: a prompt finds no KV of the weights before", async () => {
    const { fleet, prompts } = bed();
    const prompt = Array.from({ length: 300 }, (_, i) => prompts.flat()[i] ?? 0);
    const cached = async () => {
      const answer = await fleet.call("POST", "/v1/completions", { prompt, max_tokens: 1 });
      const { usage } = (await answer.json()) as {
        usage: { prompt_tokens_details: { cached_tokens: number } };
      };
      return usage.prompt_tokens_details.cached_tokens;
    };
    const hits = () => fleet.metric("vllm:prefix_cache_hits_total", "servers");
    // On both servers.
    await Promise.all([cached(), cached(), cached(), cached()]);
    expect(await cached()).toBe(288);
    const body = { method: "reload_weights", kwargs: { weights_path: folder() } };
    await post(fleet, "/collective_rpc", body);
    const before = await hits();
    expect(await cached()).toBe(0);
    expect(await hits()).toBe(before);
    // The test could tell.
    await Promise.all([cached(), cached(), cached(), cached()]);
    expect(await cached()).toBe(288);
    expect(await hits()).toBeGreaterThan(before);
  });
}
