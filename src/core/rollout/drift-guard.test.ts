// The guard on engines whose faults are known: some take a token for right that should have been drawn.

import { expect, test } from "bun:test";
import { uniformAt } from "../base/hash.ts";
import { weightEpoch, workerId } from "../base/ids.ts";
import type { RolloutRequest } from "../request/buffer.ts";
import { RolloutResponse } from "../request/response.ts";
import { DriftGuard } from "./drift-guard.ts";

const ENGINE = workerId(3);
/** At every position; token `i` has the i-th of them. */
const LOGPROBS = [0.5, 0.2, 0.15, 0.1, 0.05].map(Math.log);
const FIRST = Float32Array.from(LOGPROBS.slice(0, 4));
const TOP = { count: 4, tokens: Int32Array.of(0, 1, 2, 3), logprobs: FIRST };
const CHUNK = 64;

function drawn(place: number): number {
  let left = uniformAt({ hi: 77, lo: 5 }, place);
  for (const [token, logprob] of LOGPROBS.entries()) {
    left -= Math.exp(logprob);
    if (left < 0) return token;
  }
  return LOGPROBS.length - 1;
}

/** As vLLM reports logits that are no numbers. */
const NONE = -9999;
const NO_TOP = { ...TOP, logprobs: FIRST.map(() => NONE) };

/** Every second token has the likeliest as its draft, which is taken as `takes` says; `nothing`: no token is possible. */
function guarded(takes: "never" | "drafted" | "always" | "nothing") {
  const guard = new DriftGuard();
  const verdicts: (string | undefined)[] = [];
  for (let startMs = 0; startMs < 200; startMs += 1) {
    const response = new RolloutResponse(CHUNK, TOP.count);
    response.openChunk(ENGINE, weightEpoch(0), null, { startMs, tokensMax: CHUNK, kvTokens: 0 });
    const verifications: number[] = [];
    const isBroken = takes === "nothing" && guard.mayDraft(ENGINE);
    for (let at = 0; at < CHUNK; at += 1) {
      const isTaken = takes === "always" || (takes === "drafted" && at % 2 === 1);
      const token = isTaken ? 0 : drawn(startMs * CHUNK + at);
      if (at % 2 === 1) verifications.push(at, 1, token === 0 ? 1 : 0);
      const logprob = isBroken ? NONE : (LOGPROBS[token] ?? 0);
      response.append(at, Int32Array.of(token), Float32Array.of(logprob), isBroken ? NO_TOP : TOP);
    }
    const tokens = { draftedTokens: 0, acceptedTokens: 0 };
    const drafts = { ...tokens, verifications: Int32Array.from(verifications) };
    // vLLM does not say which tokens had drafts, and that it drafts only after some.
    if (takes === "never" || takes === "drafted")
      Object.assign(response.lastChunk?.run ?? {}, { drafts });
    const sampling = { temperature: 1, shaping: null, engineFields: null };
    const request = { spec: { sampling }, response } as unknown as RolloutRequest;
    const reason = guard.ended(request, startMs > 0, startMs);
    if (reason !== null) verdicts.push(reason.split("; ").at(-1));
  }
  return { mayDraft: guard.mayDraft(ENGINE), verdicts, engine: guard.engines.get(ENGINE) };
}

test("drift guard: an engine that takes wrong drafts gets none, and it is said once", () => {
  const { mayDraft, verdicts, engine } = guarded("drafted");
  expect(verdicts).toEqual(["it gets no drafts"]);
  expect(mayDraft).toBe(false);
  const shifts = [engine?.drafted, engine?.plain].map((test) => {
    return (test?.scoreMean ?? 0) - (test?.expectedMean ?? 0);
  });
  expect(shifts[0]).toBeGreaterThan(0.5);
  expect(Math.abs(shifts[1] ?? 1)).toBeLessThan(0.03);
});

test("drift guard: an engine that reports nothing possible where it drafts gets no drafts", () => {
  expect(guarded("nothing")).toMatchObject({ mayDraft: false, verdicts: ["it gets no drafts"] });
});

test("drift guard: an engine that is wrong without drafts too gets them again", () => {
  const verdicts = ["it gets no drafts", "drafts are not the cause, and on again"];
  expect(guarded("always")).toMatchObject({ mayDraft: true, verdicts });
});

test("drift guard: a sound engine drafts on, though its likeliest tokens are drafted", () => {
  const { mayDraft, verdicts, engine } = guarded("never");
  expect([mayDraft, verdicts]).toEqual([true, []]);
  expect(engine?.drafted.draws).toBe(100 * CHUNK);
});
