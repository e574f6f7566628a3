// Wrong output of a worker fails the response concerned alone: the worker continues, and so do all others.

import { expect, test } from "bun:test";
import { EPOCH, type OpenWorker, world } from "../../../test/suite/rollout-bed.ts";
import { present } from "../base/assert.ts";
import { weightEpoch } from "../base/ids.ts";
import type { WorkerEvent } from "./worker.ts";

type Tokens = Extract<WorkerEvent, { kind: "tokens" }>;

/** Changes what a worker says of request 0, from its third token on. */
function lying(worker: OpenWorker, lie: (event: Tokens) => Tokens): OpenWorker {
  const { listen } = worker;
  worker.listen = (listener) =>
    listen.call(worker, (epoch, events) => {
      const told = events.map((event) =>
        event.kind === "tokens" && Number(event.requestId) === 0 && event.offset >= 2
          ? lie(event)
          : event,
      );
      listener(epoch, told);
    });
  return worker;
}

const LIES: Record<string, [(event: Tokens) => Tokens, RegExp]> = {
  "a token beyond the vocabulary": [
    (event) => ({ ...event, tokens: Int32Array.of(1000) }),
    /simulated worker 0 gave token 1000 at position 2, not in 0\.\.999/,
  ],
  "a negative token": [(event) => ({ ...event, tokens: Int32Array.of(-1) }), /token -1/],
  "a logprob that is none": [
    (event) => ({ ...event, logprobs: Float32Array.of(Number.NaN) }),
    /logprob NaN at position 2/,
  ],
  "too few logprobs": [
    (event) => ({ ...event, logprobs: new Float32Array(0) }),
    /0 logprobs with 1 tokens/,
  ],
  "a negative offset": [(event) => ({ ...event, offset: -1 }), /offset -1/],
  "more tokens than were asked for": [
    (event) => ({ ...event, tokens: new Int32Array(99), logprobs: new Float32Array(99) }),
    /101 tokens, more than the 40/,
  ],
  "an alternative beyond the vocabulary": [
    (event) => ({
      ...event,
      top: { count: 1, tokens: Int32Array.of(5000), logprobs: Float32Array.of(-1) },
    }),
    /alternative token 5000/,
  ],
  "too many alternatives": [
    (event) => ({
      ...event,
      top: { count: 1, tokens: new Int32Array(9), logprobs: new Float32Array(9) },
    }),
    /9 alternatives with 1 tokens/,
  ],
};

for (const [name, [lie, problem]] of Object.entries(LIES)) {
  test(`tokens: ${name} ends the one response as refused, and nothing else`, async () => {
    const { rollout, join, submit, steps, failed, threw } = world({
      vocabularySize: 1000,
      slots: 4,
    });
    const worker = lying(join(), lie);
    rollout.addWorker(worker);
    const { requests } = submit("g", 3);
    await steps(60);
    expect([...failed, ...threw]).toEqual([]);
    const [bad, ...good] = requests;
    expect(bad?.response.finish).toBe("abort");
    expect(bad?.response.refusal?.status).toBe(502);
    expect(bad?.response.refusal?.message).toMatch(problem);
    expect(good.map(({ response }) => [response.length, response.finish])).toEqual([
      [20, "stop"],
      [20, "stop"],
    ]);
    // The response's place on the worker is given back.
    expect(rollout.isQuiet).toBe(true);
    expect(worker.kvTokensUsed).toBe(0);
  });
}

test("tokens: those of earlier weights, which were on their way, are dropped", async () => {
  const { rollout, join, submit, steps } = world({});
  const worker = join();
  rollout.addWorker(worker);
  const [request] = submit("a").requests;
  await steps(4);
  const { spec, response } = present(request, "the group has one");
  const made = response.length;
  expect(made).toBeGreaterThan(0);
  rollout.advance(weightEpoch(1));
  // It runs again, and nothing has come of that.
  await Promise.resolve();
  expect(worker.sent.filter((kind) => kind === "run")).toHaveLength(2);
  const late = { tokens: Int32Array.of(7), logprobs: Float32Array.of(-1), top: null };
  worker.say(EPOCH, [{ kind: "tokens", requestId: spec.requestId, offset: made, ...late }]);
  expect(response.length).toBe(made);
  rollout.stop();
});
