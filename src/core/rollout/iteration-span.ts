// One iteration: its start, the counts before it, the ends of its requests, and its tail. Meter begins and ends it;
// reports, the log, the page and /metrics read iterations from here.

import type { WeightEpoch } from "../base/ids.ts";
import { type Figures, since } from "./figures.ts";

/** Tail: the last 10 % of requests (paper, Fig. 8). */
const TAIL_SHARE = 0.1;
/** Times of finished requests kept, at least: more than the tail of REQUESTS_MAX requests. */
const ENDS_KEPT = 32_768;

export type IterationSummary = Readonly<ReturnType<IterationSpan["summary"]>>;

/** Times of ends, in order. Only the last ones are kept, so a sidecar that never ends has a bound. */
export class Ends {
  #count = 0;
  #ms: number[] = [];

  add(ms: number): void {
    this.#count += 1;
    this.#ms.push(ms);
    if (this.#ms.length >= 2 * ENDS_KEPT) this.#ms = this.#ms.slice(-ENDS_KEPT);
  }

  get count(): number {
    return this.#count;
  }

  /** null: nothing has ended. */
  get lastMs(): number | null {
    return this.#ms.at(-1) ?? null;
  }

  /** The tail of `of` requests begins when all but the last TAIL_SHARE have ended; `endMs`: they have not. */
  tailStartMs(of: number, { startMs, endMs }: { startMs: number; endMs: number }): number {
    const before = of - Math.ceil(of * TAIL_SHARE);
    if (before === 0) return startMs;
    const forgotten = this.#count - this.#ms.length;
    return this.#ms[Math.max(0, before - 1 - forgotten)] ?? endMs;
  }
}

export class IterationSpan {
  /** The first is 1. */
  readonly number: number;
  readonly startMs: number;
  readonly ends = new Ends();
  readonly #epoch: WeightEpoch;
  readonly #before: Readonly<Figures>;

  /** `counted`: up to now. Unfinished requests of an earlier iteration are carried into this one. */
  constructor(begin: { number: number; epoch: WeightEpoch; startMs: number; counted: Figures }) {
    const { counted } = begin;
    this.number = begin.number;
    this.startMs = begin.startMs;
    this.#epoch = begin.epoch;
    const { finished_groups: groups, finished_requests: requests } = counted;
    this.#before = { ...counted, groups, requests };
  }

  /** Figures of the iteration alone; `counted`: up to now. */
  figures(counted: Readonly<Figures>): Figures {
    return since(counted, this.#before);
  }

  isTail({ requests, finished_requests: finished }: Readonly<Figures>): boolean {
    const left = requests - finished;
    return left > 0 && left <= Math.ceil(requests * TAIL_SHARE);
  }

  summary(counted: Readonly<Figures>, nowMs: number) {
    const figures = this.figures(counted);
    const { startMs, ends } = this;
    const endMs = ends.lastMs ?? nowMs;
    const seconds = (endMs - startMs) / 1000;
    return {
      /** Epoch under which its requests began. */
      weightEpoch: this.#epoch as number,
      /** From its first request to the end of its last response. */
      seconds,
      tokensPerS: seconds > 0 ? figures.output_tokens / seconds : 0,
      /** From the end of all but the last 10 % of its responses to the end of the last one. */
      tailS: (endMs - ends.tailStartMs(ends.count, { startMs, endMs })) / 1000,
      unfinished: figures.requests - figures.finished_requests,
      /** Requests that were carried into the iteration are among its requests. */
      figures,
    };
  }
}
