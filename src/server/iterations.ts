// What one iteration of a trainer was, for the log. Trainers send requests and update weights, but do not announce
// iterations: one begins with the first request after the last one's end, and ends when the weights advance, or when
// nothing has run for a while.

import type { Clock } from "../core/base/clock.ts";
import type { WorkerStats } from "../core/rollout/worker.ts";
import type { Sidecar } from "./sidecar.ts";

export interface IterationSummary {
  /** Under which its requests began. */
  readonly weightEpoch: number;
  readonly requests: number;
  readonly tokens: number;
  /** From its first request to the end of its last response. */
  readonly seconds: number;
  readonly tokensPerS: number;
  /** From the end of all but the last 10 % of its responses to the end of the last one. */
  readonly tailS: number;
  readonly preemptions: number;
  /** Responses that restarted. */
  readonly restarts: number;
  /** Responses that ended with an error, and those that their clients gave up. */
  readonly failures: number;
  readonly aborted: number;
  /** Of its requests, when it ended. */
  readonly unfinished: number;
}

export interface IterationOptions {
  readonly sidecar: Sidecar;
  readonly clock: Clock;
  /** Runs something after a while; returns what cancels it. */
  readonly later: (act: () => void, ms: number) => () => void;
  readonly ended: (summary: IterationSummary) => void;
}

/** Time without a request after which an iteration is over, even without a weight update. */
const IDLE_MS = 60_000;
const TAIL_SHARE = 0.1;
/** Times of ends kept: more than the tail of the largest iteration has. */
const ENDS_MAX = 32_768;

export class Iterations {
  readonly #options: IterationOptions;
  #isOpen = false;
  #epoch = 0;
  #startMs = 0;
  #requests = 0;
  #finished = 0;
  #tokens = 0;
  #restarts = 0;
  #failures = 0;
  #aborted = 0;
  /** When the last responses ended, in order. */
  #endsMs: number[] = [];
  /** The last counter that each worker reported. */
  #preemptions = 0;
  readonly #reported = new Map<number, number>();
  #cancelIdle: (() => void) | null = null;

  constructor(options: IterationOptions) {
    this.#options = options;
    options.sidecar.observe({
      joined: () => this.#joined(),
      restarted: () => {
        this.#restarts += 1;
      },
      finished: ({ response }) => {
        if (response.refusal !== null) this.#failures += 1;
        else if (response.finish === "abort") this.#aborted += 1;
        this.#ended(response.length);
      },
      stats: (workerId, stats) => this.#stats(workerId, stats),
      advanced: () => this.end(),
    });
  }

  /** Nothing of it follows. */
  end(): void {
    this.#cancelIdle?.();
    this.#cancelIdle = null;
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#options.sidecar.rollout.meter.iterationEnded();
    this.#options.ended(this.#summary());
  }

  #joined(): void {
    this.#cancelIdle?.();
    this.#cancelIdle = null;
    if (!this.#isOpen) this.#begin();
    this.#requests += 1;
  }

  #begin(): void {
    const { sidecar, clock } = this.#options;
    this.#isOpen = true;
    this.#epoch = sidecar.rollout.epoch;
    this.#startMs = clock.nowMs();
    this.#requests = 0;
    this.#finished = 0;
    this.#tokens = 0;
    this.#restarts = 0;
    this.#failures = 0;
    this.#aborted = 0;
    this.#preemptions = 0;
    this.#endsMs = [];
  }

  #ended(tokens: number): void {
    if (!this.#isOpen) return;
    this.#finished += 1;
    this.#tokens += tokens;
    this.#endsMs.push(this.#options.clock.nowMs());
    if (this.#endsMs.length >= 2 * ENDS_MAX) this.#endsMs = this.#endsMs.slice(-ENDS_MAX);
    if (this.#finished >= this.#requests) {
      this.#cancelIdle = this.#options.later(() => this.end(), IDLE_MS);
    }
  }

  #stats(workerId: number, { preemptions }: WorkerStats): void {
    const before = this.#reported.get(workerId) ?? 0;
    this.#reported.set(workerId, preemptions);
    // A newly opened worker counts from zero.
    this.#preemptions += preemptions < before ? preemptions : preemptions - before;
  }

  #summary(): IterationSummary {
    const lastMs = this.#endsMs.at(-1) ?? this.#options.clock.nowMs();
    const tail = Math.ceil(this.#finished * TAIL_SHARE);
    const tailMs = this.#endsMs.at(-1 - tail) ?? this.#startMs;
    const seconds = (lastMs - this.#startMs) / 1000;
    return {
      weightEpoch: this.#epoch,
      requests: this.#requests,
      tokens: this.#tokens,
      seconds,
      tokensPerS: seconds > 0 ? this.#tokens / seconds : 0,
      tailS: (lastMs - tailMs) / 1000,
      preemptions: this.#preemptions,
      restarts: this.#restarts,
      failures: this.#failures,
      aborted: this.#aborted,
      unfinished: this.#requests - this.#finished,
    };
  }
}
