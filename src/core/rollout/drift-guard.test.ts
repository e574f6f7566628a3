// The guard on engines whose faults are known: all draw plain positions right, some take every draft token.

import { expect, test } from "bun:test";
import { uniformAt } from "../base/hash.ts";
import { weightEpoch, workerId } from "../base/ids.ts";
import type { Request } from "../request/buffer.ts";
import { Response } from "../request/response.ts";
import { DriftGuard } from "./drift-guard.ts";

const ENGINE = workerId(3);
const TOP = 4;
/** At every position; token `i` has the i-th of them. */
const LOGPROBS = [0.5, 0.2, 0.15, 0.1, 0.05].map(Math.log);
const CHUNK = 64;

function drawn(place: number): number {
  let left = uniformAt({ hi: 77, lo: 5 }, place);
  for (const [token, logprob] of LOGPROBS.entries()) {
    left -= Math.exp(logprob);
    if (left < 0) return token;
  }
  return LOGPROBS.length - 1;
}

/** A chunk in which every second token had the likeliest as its draft. */
function chunk(number: number, takesDrafts: boolean): Request {
  const response = new Response(CHUNK, TOP);
  response.openChunk(ENGINE, weightEpoch(0), null, { startMs: 0, tokensMax: CHUNK, kvTokens: 0 });
  const verifications: number[] = [];
  for (let at = 0; at < CHUNK; at += 1) {
    const token = at % 2 === 1 && takesDrafts ? 0 : drawn(number * CHUNK + at);
    if (at % 2 === 1) verifications.push(at, 1, token === 0 ? 1 : 0);
    const top = {
      count: TOP,
      tokens: Int32Array.of(0, 1, 2, 3),
      logprobs: Float32Array.from(LOGPROBS),
    };
    const logprob = Float32Array.of(LOGPROBS[token] ?? 0);
    response.append(at, Int32Array.of(token), logprob, {
      ...top,
      logprobs: top.logprobs.slice(0, TOP),
    });
  }
  const run = response.lastChunk?.run;
  const [draftedTokens, acceptedTokens] = [CHUNK / 2, 0];
  if (run)
    run.drafts = { draftedTokens, acceptedTokens, verifications: Int32Array.from(verifications) };
  const sampling = { temperature: 1, shaping: null, engineFields: null };
  return { spec: { sampling }, response } as unknown as Request;
}

function guarded(takesDrafts: boolean) {
  const guard = new DriftGuard();
  const reasons: (string | null)[] = [];
  for (let i = 0; i < 400; i += 1) reasons.push(guard.ended(chunk(i, takesDrafts), true));
  return {
    guard,
    alarms: reasons.filter((reason) => reason !== null),
    engine: guard.engines.get(ENGINE),
  };
}

test("drift guard: an engine that takes wrong drafts gets none, and it is said once", () => {
  const { guard, alarms, engine } = guarded(true);
  expect(alarms).toHaveLength(1);
  expect(alarms[0]).toEndWith("without are not rejected");
  expect(guard.mayDraft(ENGINE)).toBe(false);
  expect(engine?.drafted.kl).toBeCloseTo(-Math.log(0.5), 6);
  expect(engine?.plain.kl).toBeLessThan(0.002);
  guard.forget(ENGINE);
  expect(guard.mayDraft(ENGINE)).toBe(true);
});

test("drift guard: a sound engine drafts on, though its likeliest tokens are drafted", () => {
  const { guard, alarms, engine } = guarded(false);
  expect(alarms).toEqual([]);
  expect(guard.mayDraft(ENGINE)).toBe(true);
  expect(engine?.drafted.test.draws).toBe(200 * CHUNK);
  expect(engine?.drafted.kl).toBeLessThan(0.002);
});
