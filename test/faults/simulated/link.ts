// A simulated worker behind a link with latency that may be cut, lose a frame or deliver one twice. Frames of one direction
// keep their order, as on any stream. A link that lost a frame reports `failed` after a while, because the receiver of a
// stream detects the gap.

import {
  type GroupId,
  type RequestId,
  type WeightEpoch,
  type WorkerId,
  weightEpoch,
} from "../../../src/core/base/ids.ts";
import type { SamplingParams } from "../../../src/core/request/request.ts";
import type { ControlAnswer, EngineOperation } from "../../../src/core/rollout/operation.ts";
import type {
  EngineWorker,
  SamplingSupport,
  WorkerCapacity,
  WorkerCommand,
  WorkerEvent,
  WorkerListener,
} from "../../../src/core/rollout/worker.ts";
import type { VirtualTime } from "./virtual-time.ts";
import type { SimulatedWorker } from "./worker.ts";

/** Time after which a link notices a lost message. */
const DETECT_MS = 40;

/** end: of the next frame with an end of a chunk, that and what follows. */
export type LostPart = "up" | "down" | "end";

export class FaultyLink implements EngineWorker {
  readonly workerId: WorkerId;
  readonly name: string;
  readonly capacity: WorkerCapacity;
  readonly inner: SimulatedWorker;
  readonly #time: VirtualTime;
  readonly #fastMs: number;
  #latencyMs: number;
  #listener: WorkerListener | null = null;
  #upMs = 0;
  #downMs = 0;
  #epoch = weightEpoch(0);
  #isCut = false;
  #isGone = false;
  #loseUp = false;
  #loseEnd = false;
  #loseDown = false;
  #repeatUp = false;

  constructor(inner: SimulatedWorker, time: VirtualTime, latencyMs: number) {
    this.inner = inner;
    this.workerId = inner.workerId;
    this.name = inner.name;
    this.capacity = inner.capacity;
    this.#time = time;
    this.#fastMs = latencyMs;
    this.#latencyMs = latencyMs;
    inner.listen((epoch, events) => this.#up(epoch, events));
  }

  /** The worker is lost: nothing comes from it any more. */
  get isGone(): boolean {
    return this.#isGone || this.inner.isDead;
  }

  listen(listener: WorkerListener): void {
    this.#listener = listener;
  }

  get keepsKv(): boolean {
    return this.inner.keepsKv;
  }

  supports(sampling: SamplingParams): SamplingSupport {
    return this.inner.supports(sampling);
  }

  /** A link that is cut brings no answer; what waits for one learns of the failure. */
  async perform(operation: EngineOperation): Promise<ControlAnswer> {
    if (this.isGone) return { status: 502, body: null };
    const answer = this.#isCut ? null : await this.inner.perform(operation);
    return answer === null || this.#isCut ? await new Promise<never>(() => {}) : answer;
  }

  async close(): Promise<void> {
    await this.inner.close();
  }

  send(commands: readonly WorkerCommand[]): void {
    if (this.#isCut || this.#isGone) return;
    if (this.#loseDown) {
      this.#loseDown = false;
      this.#noticeLater();
      return;
    }
    this.#downMs = Math.max(this.#downMs, this.#time.nowMs + this.#latencyMs);
    this.#time.after(this.#downMs - this.#time.nowMs, () => {
      if (!this.#isCut) this.inner.send(commands);
    });
  }

  slow(latencyMs: number): void {
    this.#latencyMs = this.#fastMs + latencyMs;
  }

  cut(): void {
    if (this.#isCut || this.isGone) return;
    this.#isCut = true;
    this.#noticeLater();
  }

  /** The sidecar dies, and the worker with it: nothing is reported. */
  drop(): void {
    this.#isGone = true;
    void this.inner.close();
  }

  lose(direction: LostPart): void {
    if (direction === "up") this.#loseUp = true;
    else if (direction === "end") this.#loseEnd = true;
    else this.#loseDown = true;
  }

  repeat(): void {
    this.#repeatUp = true;
  }

  /** The draft replica there has forgotten what it was sent of these. */
  forgetDrafts(
    requests: readonly { readonly groupId: GroupId; readonly sampleIndex: number }[],
  ): void {
    const events = requests.map(
      ({ groupId, sampleIndex }): WorkerEvent => ({ kind: "gap", groupId, sampleIndex, offset: 0 }),
    );
    if (events.length > 0) this.#up(this.#epoch, events);
  }

  #up(epoch: WeightEpoch, all: readonly WorkerEvent[]): void {
    this.#epoch = epoch;
    if (this.#isCut || this.#isGone) return;
    const end = this.#loseEnd ? all.findIndex(({ kind }) => kind === "chunk_done") : -1;
    const events = end < 0 ? all : all.slice(0, end);
    if (end >= 0) {
      this.#loseEnd = false;
      this.#noticeLater();
    }
    if (this.#loseUp) {
      this.#loseUp = false;
      this.#noticeLater();
      return;
    }
    this.#upMs = Math.max(this.#upMs, this.#time.nowMs + this.#latencyMs);
    this.#time.after(this.#upMs - this.#time.nowMs, () => this.#deliver(epoch, events));
    if (!this.#repeatUp) return;
    const tokens = tokensAlone(events);
    if (tokens.length === 0) return;
    this.#repeatUp = false;
    this.#time.after(this.#upMs - this.#time.nowMs, () => this.#deliver(epoch, tokens));
  }

  #deliver(epoch: WeightEpoch, events: readonly WorkerEvent[]): void {
    if (this.#isCut || this.#isGone) return;
    this.#listener?.(epoch, events);
  }

  #noticeLater(): void {
    this.#time.after(DETECT_MS, () => {
      if (this.#isGone) return;
      this.#isGone = true;
      void this.inner.close();
      this.#listener?.(this.#epoch, [{ kind: "failed", message: "the link broke" }]);
    });
  }
}

/** The token events of a batch. Only these may be repeated, because their offsets show a repetition. */
function tokensAlone(events: readonly WorkerEvent[]): WorkerEvent[] {
  const ended = new Set<RequestId>();
  for (const event of events) if (event.kind === "chunk_done") ended.add(event.requestId);
  return events.filter((event) => event.kind === "tokens" && !ended.has(event.requestId));
}
