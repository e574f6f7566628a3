// A simulated worker: it computes nothing and implements the worker port exactly, in steps that its owner triggers.
// Every token is a function of (request, position), so a test or the simulator knows the expected output, even if
// requests moved and messages were repeated or lost.

import { assert, present } from "../../../src/core/base/assert.ts";
import { fold32 } from "../../../src/core/base/hash.ts";
import type { RequestId, WeightEpoch, WorkerId } from "../../../src/core/base/ids.ts";
import type {
  FinishReason,
  RequestSpec,
  SamplingParams,
} from "../../../src/core/request/request.ts";
import type { ControlAnswer, EngineOperation } from "../../../src/core/rollout/operation.ts";
import type {
  EngineWorker,
  SamplingSupport,
  WorkerCapacity,
  WorkerCommand,
  WorkerEvent,
  WorkerListener,
  WorkerStats,
} from "../../../src/core/rollout/worker.ts";
import { NO_WORKER_STATS } from "../../suite/no-figures.ts";

/** Output tokens after which a request ends with a stop token. */
export type LengthOf = (request: RequestSpec) => number;

/** The token at a position under the weights of `epoch`. */
export type TokenOf = (request: RequestSpec, position: number, epoch: WeightEpoch) => number;

/** Text and weights that KV was computed from. */
interface KvOrigin {
  readonly text: readonly number[];
  readonly weights: number;
}

interface Resident {
  readonly spec: RequestSpec;
  position: number;
  chunkLeft: number;
  /** Tokens whose KV is stored. */
  kvTokens: number;
  /** Prompt and output, which that KV is of, and the weights that it was computed with. */
  readonly text: number[];
  readonly weights: number;
  /** All its tokens are wrong: its KV is of other tokens or weights, or it goes on although it cannot be divided. */
  isFalse: boolean;
}

/** Origins of the blobs that workers handed out last; a blob holds the number of its own. */
const origins: KvOrigin[] = [];
const ORIGINS_MAX = 65_536;
let blobs = 0;

function blobOf(origin: KvOrigin): ArrayBuffer {
  origins[blobs % ORIGINS_MAX] = origin;
  const bytes = Float64Array.of(blobs).buffer;
  blobs += 1;
  return bytes;
}

function originOf(bytes: ArrayBuffer): KvOrigin | null {
  return origins[(new Float64Array(bytes)[0] ?? 0) % ORIGINS_MAX] ?? null;
}

/** The one token that belongs to (request, position). */
export function simulatedToken(requestId: RequestId, position: number): number {
  return fold32(requestId, position) % 1000;
}

export class SimulatedWorker implements EngineWorker {
  readonly workerId: WorkerId;
  readonly name: string;
  readonly capacity: WorkerCapacity;
  readonly keepsKv = true;
  #epoch: WeightEpoch;
  readonly #lengthOf: LengthOf;
  readonly #tokenOf: TokenOf;
  readonly #isWhole: boolean;
  readonly #statsEvery: number;
  #listener: WorkerListener | null = null;
  /** Waiting requests in order of arrival (FCFS). */
  #waiting: Resident[] = [];
  #running: Resident[] = [];
  #parked = new Map<RequestId, Resident>();
  /** Answers to commands, sent with the next step. */
  #events: WorkerEvent[] = [];
  isDead = false;
  #isAsleep = false;
  #counters = {
    ...{ steps: 0, outputTokens: 0, prefillTokens: 0, recomputedTokens: 0, preemptions: 0 },
    kvLoads: 0,
  };

  constructor(options: {
    workerId: WorkerId;
    capacity: WorkerCapacity;
    epoch: WeightEpoch;
    lengthOf: LengthOf;
    /** Default: `simulatedToken`, the same under all weights. */
    tokenOf?: TokenOf;
    /** The worker takes responses in one piece only, so that they begin anew when it dies. */
    isWhole?: boolean;
    /** Steps between two reports of its counters; default: 1. */
    statsEvery?: number;
  }) {
    this.workerId = options.workerId;
    this.name = `simulated worker ${options.workerId}`;
    this.capacity = options.capacity;
    this.#epoch = options.epoch;
    this.#lengthOf = options.lengthOf;
    this.#tokenOf =
      options.tokenOf ?? (({ requestId }, position) => simulatedToken(requestId, position));
    this.#isWhole = options.isWhole ?? false;
    this.#statsEvery = options.statsEvery ?? 1;
  }

  listen(listener: WorkerListener): void {
    assert(this.#listener === null, "a worker has exactly one listener");
    this.#listener = listener;
    if (!this.isDead) return;
    queueMicrotask(() => listener(this.#epoch, [{ kind: "failed", message: "killed" }]));
  }

  /** Weights that KV is computed with now. */
  protected get weightsNow(): number {
    return this.#epoch;
  }

  supports(_sampling: SamplingParams): SamplingSupport {
    return { kind: this.#isWhole ? "whole" : "divided" };
  }

  async perform(operation: EngineOperation): Promise<ControlAnswer> {
    switch (operation.kind) {
      case "canary":
        return { status: 200, body: this.#isAsleep ? { asleep: true } : {} };
      case "sleep":
      case "wake":
        this.#isAsleep = operation.kind === "sleep";
        return { status: 200, body: {} };
      case "load":
        return { status: operation.path === "/absent" ? 400 : 200, body: {} };
      default:
        return {
          status: 404,
          body: { error: `not done by a simulated worker: ${operation.kind}` },
        };
    }
  }

  send(commands: readonly WorkerCommand[]): void {
    if (this.isDead) return;
    for (const command of commands) this.#obey(command);
  }

  /** KV tokens held now, running and parked. */
  get kvTokensUsed(): number {
    let used = this.#parkedKvTokens;
    for (const resident of this.#running) used += resident.kvTokens;
    return used;
  }

  get #parkedKvTokens(): number {
    let used = 0;
    for (const resident of this.#parked.values()) used += resident.kvTokens;
    return used;
  }

  get isIdle(): boolean {
    return this.#waiting.length + this.#running.length + this.#events.length === 0;
  }

  /** One engine step: admits, makes a token for every running request, and reports. */
  step(): void {
    if (this.isDead) return;
    this.#admit();
    this.#makeRoom();
    for (const resident of [...this.#running]) this.#decode(resident);
    this.#counters.steps += 1;
    const events = this.#events;
    this.#events = [];
    const isDue = this.#counters.steps % this.#statsEvery === 0;
    if (isDue || this.isIdle) events.push({ kind: "stats", stats: this.stats() });
    this.#listener?.(this.#epoch, events);
  }

  /** The worker dies; everything that it had not reported is lost. */
  kill(): void {
    if (this.isDead) return;
    this.isDead = true;
    this.#listener?.(this.#epoch, [{ kind: "failed", message: "killed" }]);
  }

  /** Drops the parked request that has been parked longest, as an engine short of KV does. */
  evictOne(): void {
    const [first] = this.#parked.keys();
    if (first === undefined) return;
    this.#parked.delete(first);
    this.#events.push({ kind: "evicted", requestId: first });
  }

  async close(): Promise<void> {
    this.isDead = true;
  }

  stats(): WorkerStats {
    return {
      ...NO_WORKER_STATS,
      running: this.#running.length,
      waiting: this.#waiting.length,
      kvTokensUsed: this.kvTokensUsed,
      busyMs: this.#counters.steps,
      ...this.#counters,
    };
  }

  #obey(command: WorkerCommand): void {
    switch (command.kind) {
      case "run": {
        const { request, output, chunkTokens, kv } = command;
        const parked = this.#parked.get(request.requestId);
        this.#parked.delete(request.requestId);
        if (kv !== null) this.#counters.kvLoads += 1;
        const text = [...request.prompt, ...output];
        const origin = parked ?? (kv === null ? null : originOf(kv.bytes));
        const kvTokens = parked?.kvTokens ?? kv?.tokens ?? 0;
        const weights = this.weightsNow;
        const isOf = origin === null || isOfText(origin, text.slice(0, kvTokens), weights);
        const isHalf = output.length > 0 && !request.divisible;
        const isFalse = !isOf || isHalf || parked?.isFalse === true;
        const rest = { position: output.length, chunkLeft: chunkTokens, kvTokens };
        this.#waiting.push({ spec: request, ...rest, text, weights, isFalse });
        return;
      }
      case "export": {
        this.#endEarly(command.requestId);
        const parked = this.#parked.get(command.requestId);
        this.#parked.delete(command.requestId);
        const hasKv = parked !== undefined && parked.kvTokens > 0;
        const kv = hasKv ? { tokens: parked.kvTokens, bytes: blobOf(parked) } : null;
        this.#events.push({ kind: "exported", requestId: command.requestId, kv });
        return;
      }
      case "park":
        this.#endEarly(command.requestId);
        return;
      case "adopt": {
        const parked = this.#parked.get(command.from);
        this.#parked.delete(command.from);
        if (parked === undefined) {
          this.#events.push({ kind: "evicted", requestId: command.requestId });
        } else {
          const kvTokens = Math.min(parked.kvTokens, command.tokens);
          this.#parked.set(command.requestId, { ...parked, kvTokens });
        }
        return;
      }
      case "release":
        this.#parked.delete(command.requestId);
        this.#running = this.#running.filter((r) => r.spec.requestId !== command.requestId);
        this.#waiting = this.#waiting.filter((r) => r.spec.requestId !== command.requestId);
        return;
      case "advance":
        this.#epoch = command.epoch;
        this.#waiting = [];
        this.#running = [];
        this.#parked.clear();
        this.#events = [{ kind: "advanced", epoch: command.epoch }];
        return;
      default:
        return;
    }
  }

  #endEarly(id: RequestId): void {
    const resident = [...this.#running, ...this.#waiting].find((r) => r.spec.requestId === id);
    if (resident === undefined || !resident.spec.divisible) return;
    this.#running = this.#running.filter((r) => r !== resident);
    this.#waiting = this.#waiting.filter((r) => r !== resident);
    this.#parked.set(id, resident);
    this.#events.push({ kind: "chunk_done", requestId: id, finish: null });
    // KV of one that waited had no room yet.
    while (this.kvTokensUsed > this.capacity.kvTokens) this.evictOne();
  }

  #admit(): void {
    while (this.#running.length < this.capacity.slots) {
      const next = this.#waiting[0];
      if (next === undefined) return;
      const context = next.spec.prompt.length + next.position;
      const excess = this.kvTokensUsed + context + 1 - this.capacity.kvTokens;
      if (excess > this.#parkedKvTokens) return;
      while (this.kvTokensUsed + context + 1 > this.capacity.kvTokens) this.evictOne();
      this.#waiting.shift();
      this.#counters.prefillTokens += context - next.kvTokens;
      if (next.position > 0) this.#counters.recomputedTokens += context - next.kvTokens;
      next.kvTokens = context;
      this.#running.push(next);
    }
  }

  /** vLLM's order: the youngest running request goes back to the head of the queue. */
  #makeRoom(): void {
    while (this.kvTokensUsed + this.#running.length > this.capacity.kvTokens) {
      if (this.#parked.size > 0) {
        this.evictOne();
        continue;
      }
      const youngest = present(this.#running.pop(), "KV is held by running requests");
      this.#counters.preemptions += 1;
      this.#events.push({
        kind: "preempted",
        requestId: youngest.spec.requestId,
        tokens: youngest.kvTokens,
      });
      youngest.kvTokens = 0;
      youngest.isFalse = false;
      this.#waiting.unshift(youngest);
    }
  }

  #decode(resident: Resident): void {
    const { requestId, sampling } = resident.spec;
    const right = this.#tokenOf(resident.spec, resident.position, this.#epoch);
    const token = resident.isFalse ? right + 1 : right;
    resident.text.push(token);
    this.#events.push({
      kind: "tokens",
      requestId,
      offset: resident.position,
      tokens: Int32Array.of(token),
      logprobs: Float32Array.of(-resident.position),
      top: null,
    });
    resident.position += 1;
    resident.chunkLeft -= 1;
    resident.kvTokens += 1;
    this.#counters.outputTokens += 1;
    let finish: FinishReason | null = null;
    const isStop = sampling.stopTokenIds.includes(token);
    if (isStop || resident.position >= this.#lengthOf(resident.spec)) finish = "stop";
    else if (resident.position >= sampling.tokensMax) finish = "length";
    if (finish === null && resident.chunkLeft > 0) return;
    this.#running = this.#running.filter((r) => r !== resident);
    const isKept = finish === null || resident.spec.keepsKv === true;
    if (isKept) this.#parked.set(requestId, resident);
    this.#events.push({ kind: "chunk_done", requestId, finish });
  }
}

function isOfText(origin: KvOrigin, text: readonly number[], weights: number): boolean {
  return origin.weights === weights && text.every((token, i) => origin.text[i] === token);
}
