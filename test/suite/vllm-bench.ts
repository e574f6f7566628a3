// A worker of a stand-in for vLLM or SGLang, and what it says. Used by tests only.

import { present } from "../../src/core/base/assert.ts";
import { workerId } from "../../src/core/base/ids.ts";
import type { SamplingParams } from "../../src/core/request/request.ts";
import type { WorkerEvent } from "../../src/core/rollout/worker.ts";
import type { EngineNotice } from "../../src/engines/kind.ts";
import type { VllmLimits } from "../../src/engines/vllm/limits.ts";
import { openVllmWorker, type VllmWorkerOptions } from "../../src/engines/vllm/open.ts";
import type { VllmWorker } from "../../src/engines/vllm/worker.ts";
import { runCommand, samplingOf, specOf } from "./request-spec.ts";
import { Bench } from "./worker-suite.ts";

export const PROMPT = [5, 6, 7, 8];

/** Limits under which faults of a stand-in are over soon. */
const QUICK: Partial<VllmLimits> = { stallMs: 5, retryMs: 1, retryMsMax: 2, pollMs: 5 };

const closing: (() => Promise<void>)[] = [];

/** Closes workers and stand-ins of benches, the last one first. */
export async function closeBenches(): Promise<void> {
  for (const close of closing.splice(0).toReversed()) await close();
}

interface Server {
  readonly url: string;
  readonly isStopped: boolean;
  stop(): Promise<void>;
}

/** A stand-in that `closeBenches` stops. */
export async function started<S extends Server>(starting: Promise<S>): Promise<S> {
  const server = await starting;
  closing.push(async () => (server.isStopped ? undefined : await server.stop()));
  return server;
}

/** A worker of the stand-in. */
export async function benchOf<S extends Server>(
  server: S,
  options: Partial<VllmWorkerOptions> = {},
): Promise<VllmBench & { server: S }> {
  const notices: EngineNotice[] = [];
  const worker = await openVllmWorker({
    ...{ workerId: workerId(0), url: server.url, notice: (notice) => notices.push(notice) },
    ...options,
    limits: { ...QUICK, ...options.limits },
  });
  closing.push(() => worker.close());
  return Object.assign(new VllmBench(worker, notices), { server });
}

/** Listens to a worker of a stand-in. */
export class VllmBench extends Bench {
  declare readonly worker: VllmWorker;
  readonly notices: EngineNotice[];

  constructor(worker: VllmWorker, notices: EngineNotice[]) {
    super({ worker, close: () => worker.close() });
    this.notices = notices;
  }

  async kind<K extends WorkerEvent["kind"]>(kind: K): Promise<Extract<WorkerEvent, { kind: K }>> {
    await this.until(() => this.of(kind).length > 0, kind);
    return present(this.of(kind)[0], "it was there");
  }

  /** The end of the request's chunk, if it has come. */
  done(id = 1) {
    return this.of("chunk_done").find((event) => event.requestId === id);
  }

  run(
    options: {
      id?: number;
      prompt?: number[];
      output?: number[];
      chunkTokens?: number;
      sampling?: Partial<SamplingParams>;
      divisible?: boolean;
      expertsFrom?: number;
    } = {},
  ): void {
    const { id = 1, prompt = PROMPT, divisible = true, ...rest } = options;
    const sampling = samplingOf({ seed: 1, tokensMax: 40, ...options.sampling });
    const request = specOf(id, { prompt: Int32Array.from(prompt), sampling, divisible });
    const { output = [], chunkTokens = 40, expertsFrom } = rest;
    const experts = expertsFrom === undefined ? {} : { expertsFrom };
    this.send(runCommand(request, { output, chunkTokens, ...experts }));
  }
}
