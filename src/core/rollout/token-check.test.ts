// Wrong output of a worker fails the response concerned alone: the worker continues, and so do all others.

import { expect, test } from "bun:test";
import { SimulatedWorker } from "../../../test/faults/simulated/worker.ts";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { groupId, weightEpoch, workerId } from "../base/ids.ts";
import { EmbeddedKvPool } from "../kv/embedded-pool.ts";
import { drawKey, SAMPLING_DEFAULTS } from "../request/request.ts";
import { loadCore } from "../wasm/load.ts";
import { Rollout } from "./rollout.ts";
import type { WorkerEvent, WorkerListener } from "./worker.ts";

type Tokens = Extract<WorkerEvent, { kind: "tokens" }>;

/** Changes what it says of request 0, from its third token on. */
class Liar extends SimulatedWorker {
  readonly #lie: (event: Tokens) => Tokens;

  constructor(lie: (event: Tokens) => Tokens) {
    const capacity = { slots: 4, kvTokens: 400, contextTokens: 100, kvBytesPerToken: 8 };
    super({ workerId: workerId(0), capacity, epoch: weightEpoch(0), lengthOf: () => 20 });
    this.#lie = lie;
  }

  override listen(listener: WorkerListener): void {
    super.listen((epoch, events) => {
      const told = events.map((event) =>
        event.kind === "tokens" && Number(event.requestId) === 0 && event.offset >= 2
          ? this.#lie(event)
          : event,
      );
      listener(epoch, told);
    });
  }
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
    /101 tokens, more than the 50/,
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
    const clock = new ManualClock();
    const failures: string[] = [];
    const rollout = new Rollout({
      policy: "seer",
      draft: "grouped",
      chunkTokens: 7,
      epoch: weightEpoch(0),
      vocabularySize: 1000,
      pool: new EmbeddedKvPool({ clock, memoryBytesMax: 1000, disk: null }),
      clock,
      core: loadCore(),
      listener: {
        tokens() {},
        finished() {},
        groupFinished() {},
        restarted() {},
        stats() {},
        workerFailed: (_, message) => failures.push(message),
        quarantined() {},
        threw: (error) => failures.push(String(error)),
        broken: (error) => failures.push(String(error)),
      },
    });
    const worker = new Liar(lie);
    rollout.addWorker(worker);
    const group = rollout.open(groupId("g"), Int32Array.of(1, 2));
    const sampling = { temperature: 1, seed: 0, tokensMax: 50, stopTokenIds: [] };
    const requests = [0, 1, 2].map((index) =>
      rollout.join(group, {
        sampling: { ...sampling, ...SAMPLING_DEFAULTS },
        draw: drawKey(0, "g", index),
        divisible: true,
        priority: 0,
      }),
    );
    for (let step = 0; step < 200 && rollout.unfinished > 0; step += 1) {
      for (let i = 0; i < 8; i += 1) await Promise.resolve();
      clock.advance(5);
      worker.step();
    }
    expect(failures).toEqual([]);
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
