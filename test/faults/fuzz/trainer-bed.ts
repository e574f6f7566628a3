// A sidecar for the trainer of trainer.ts: two engines from the start, others that join, faults that it is asked for.

import { present } from "../../../src/core/base/assert.ts";
import type { ControlAnswer, EngineOperation } from "../../../src/core/rollout/operation.ts";
import type { WorkerSource } from "../../../src/fleet/engines.ts";
import { tellingToken } from "./generated.ts";
import { SidecarBed, SteppingWorker } from "./sidecar-bed.ts";

/** An open update is given up after this long without a request, which no sequence may take. */
const UPDATE_MS_MAX = 300_000;

class FaultyWorker extends SteppingWorker {
  failsControl = false;

  override async perform(operation: EngineOperation): Promise<ControlAnswer> {
    if (!this.failsControl || operation.kind === "canary") return await super.perform(operation);
    this.failsControl = false;
    return { status: 500, body: { error: "out of memory" } };
  }
}

export async function openTrainerBed() {
  /** The newest of each name. */
  const workers = new Map<string, FaultyWorker>();
  const made = { tokens: 0 };
  const source = (name: string): WorkerSource => ({
    name,
    keepsWeights: true,
    open: async ({ workerId, epoch }) => {
      const worker = new FaultyWorker({
        workerId,
        capacity: { slots: 8, kvTokens: 4_096, contextTokens: 2_000, kvBytesPerToken: 8 },
        epoch,
        lengthOf: () => Number.POSITIVE_INFINITY,
        tokenOf: (_request, position, at) => {
          made.tokens += 1;
          return tellingToken(position, at);
        },
      });
      workers.set(name, worker);
      return worker;
    },
  });
  const bed = await SidecarBed.open({
    sources: [source("http://one:1"), source("http://two:1")],
    joining: { sourceOf: ({ url }) => source(url), hasFixed: true, drainMs: 100 },
    weightsTimeoutMs: UPDATE_MS_MAX,
    chunkTokens: 3,
  });
  const workerOf = (choice: number) =>
    present([...workers.values()][choice % workers.size], "there are workers");
  const call = (method: string, path: string, body: unknown) =>
    bed.request(path, { method, body: body === null ? null : JSON.stringify(body) });
  return {
    get epoch(): number {
      return bed.sidecar.sidecar.rollout.epoch;
    },
    /** Output tokens of all engines that ever existed. */
    get outputTokens(): number {
      return made.tokens;
    },
    call,
    answer: async (method: string, path: string, body: unknown) => {
      const answer = await call(method, path, body);
      return { status: answer.status, text: await answer.text() };
    },
    /** Waits for turns of the event loop, in which everything else continues. */
    turns: async (count: number) => {
      for (let i = 0; i < count; i += 1) await new Promise((resolve) => setImmediate(resolve));
    },
    kill: (choice: number) => workerOf(choice).kill(),
    /** The next control request fails there. */
    failControl: (choice: number) => {
      workerOf(choice).failsControl = true;
    },
    /** @throws what the sidecar reported as its own error. */
    check: () => bed.check(),
    close: () => bed.close(),
  };
}

export type TrainerBed = Awaited<ReturnType<typeof openTrainerBed>>;
