// The guard on engines whose faults are known: some take a token for right that should have been drawn.

import { expect, test } from "bun:test";
import { uniformAt } from "../base/hash.ts";
import { weightEpoch, workerId } from "../base/ids.ts";
import type { Request } from "../request/buffer.ts";
import { Response } from "../request/response.ts";
import { DriftGuard } from "./drift-guard.ts";

const ENGINE = workerId(3);
/** At every position; token `i` has the i-th of them. */
const LOGPROBS = [0.5, 0.2, 0.15, 0.1, 0.05].map(Math.log);
const TOP = {
  count: 4,
  tokens: Int32Array.of(0, 1, 2, 3),
  logprobs: Float32Array.from(LOGPROBS.slice(0, 4)),
};
const CHUNK = 64;

function drawn(place: number): number {
  let left = uniformAt({ hi: 77, lo: 5 }, place);
  for (const [token, logprob] of LOGPROBS.entries()) {
    left -= Math.exp(logprob);
    if (left < 0) return token;
  }
  return LOGPROBS.length - 1;
}

/** Every second token has the likeliest as its draft, which is taken as `takes` says. */
function guarded(takes: "never" | "drafted" | "always") {
  const guard = new DriftGuard();
  const verdicts: (string | undefined)[] = [];
  for (let startMs = 0; startMs < 200; startMs += 1) {
    const response = new Response(CHUNK, TOP.count);
    response.openChunk(ENGINE, weightEpoch(0), null, { startMs, tokensMax: CHUNK, kvTokens: 0 });
    const verifications: number[] = [];
    for (let at = 0; at < CHUNK; at += 1) {
      const isTaken = takes === "always" || (takes === "drafted" && at % 2 === 1);
      const token = isTaken ? 0 : drawn(startMs * CHUNK + at);
      if (at % 2 === 1) verifications.push(at, 1, token === 0 ? 1 : 0);
      response.append(at, Int32Array.of(token), Float32Array.of(LOGPROBS[token] ?? 0), TOP);
    }
    const drafts = {
      draftedTokens: 0,
      acceptedTokens: 0,
      verifications: Int32Array.from(verifications),
    };
    // An engine that takes what it likes does not say which tokens had drafts.
    if (takes !== "always") Object.assign(response.lastChunk?.run ?? {}, { drafts });
    const sampling = { temperature: 1, shaping: null, engineFields: null };
    const reason = guard.ended(
      { spec: { sampling }, response } as unknown as Request,
      true,
      startMs,
    );
    if (reason !== null) verdicts.push(reason.split("; ").at(-1));
  }
  return { mayDraft: guard.mayDraft(ENGINE), verdicts, engine: guard.engines.get(ENGINE) };
}

test("drift guard: an engine that takes wrong drafts gets none, and it is said once", () => {
  const { mayDraft, verdicts, engine } = guarded("drafted");
  expect(verdicts).toEqual(["it gets no drafts"]);
  expect(mayDraft).toBe(false);
  expect(engine?.drafted.kl).toBeCloseTo(-Math.log(0.5), 6);
  expect(engine?.plain.kl).toBeLessThan(0.002);
});

test("drift guard: an engine that is wrong without drafts too gets them again", () => {
  const { mayDraft, verdicts } = guarded("always");
  expect(verdicts).toEqual(["it gets no drafts", "drafts are not the cause, and on again"]);
  expect(mayDraft).toBe(true);
});

test("drift guard: a sound engine drafts on, though its likeliest tokens are drafted", () => {
  const { mayDraft, verdicts, engine } = guarded("never");
  expect([mayDraft, verdicts]).toEqual([true, []]);
  expect(engine?.drafted.test.draws).toBe(100 * CHUNK);
  expect(engine?.drafted.kl).toBeLessThan(0.002);
});
