// The thread of one engine: takes commands between steps, runs steps while there is work, sleeps when
// there is none, and sends events in batches. Started by worker.ts with a message of kind `open`.

import { assert } from "../../core/base/assert.ts";
import { contain } from "../../core/base/contain.ts";
import { AppError, errorText } from "../../core/base/errors.ts";
import { AdaptiveLength, ConstantLength } from "../../core/draft/draft-length.ts";
import { Replica } from "../../core/draft/replica.ts";
import type { WorkerStats } from "../../core/rollout/worker.ts";
import { generateWith } from "./canary.ts";
import { LlamaEngine } from "./engine.ts";
import { threadCpuMs } from "./libc.ts";
import {
  type EngineAct,
  type FromEngine,
  kvBuffers,
  type LlamaEngineSettings,
  type Problem,
  type ToEngine,
} from "./messages.ts";
import { baseRowsOf, draftsPay } from "./step-cost.ts";
import { LlamaWeights, type SharedWeights } from "./weights.ts";

declare const self: Worker;

/** Tokens of several steps are sent together after about this time; all other events are sent after their step. */
const FLUSH_MS = 4;
/** Interval of statistics, which are also sent at the end of every chunk. */
const STATS_MS = 100;
/** Memory for draft replicas of one engine: some hundred groups of a few thousand tokens. */
const REPLICA_BYTES = 256 * 1024 * 1024;

/**
 * CPU time for which an engine measures its steps at start. All engines measure at the same time, so that they share the
 * CPU's caches as they will later.
 */
const PROFILE_MS = 1000;

const clock = { nowMs: () => performance.now() };

class EngineThread {
  readonly #engine: LlamaEngine;
  #loop: NodeJS.Immediate | null = null;
  #flushedMs = 0;
  #statsMs = 0;
  /** Requests and KV in the last statistics. */
  #statsKey = "";

  constructor(weights: SharedWeights, settings: LlamaEngineSettings) {
    this.#engine = new LlamaEngine({
      ...settings,
      model: new LlamaWeights(weights),
      cpuClock: { nowMs: threadCpuMs },
      speculation: {
        drafter: new Replica({ limitBytes: REPLICA_BYTES }),
        planner: settings.draftsAlways === true ? new ConstantLength() : new AdaptiveLength(),
      },
    });
    const times = this.#engine.profile(PROFILE_MS);
    const drafts = settings.draftsAlways === true || draftsPay(times, settings.slots);
    const measured = { baseRows: baseRowsOf(times), drafts };
    send({ kind: "opened", capacity: { ...this.#engine.capacity, ...measured } });
  }

  receive(message: Exclude<ToEngine, { kind: "open" }>): void {
    if (message.kind === "close") {
      this.stop();
      self.onmessage = null;
      send({ kind: "closed" });
      return;
    }
    if (message.kind === "commands") {
      for (const command of message.commands) this.#engine.command(command);
    } else {
      this.#flush();
      const problem = this.#perform(message);
      this.#flush();
      send({ kind: "done", problem });
    }
    this.#wake();
  }

  /** Frees the engine; nothing runs afterwards. */
  stop(): void {
    if (this.#loop !== null) clearImmediate(this.#loop);
    this.#loop = null;
    this.#engine.close();
  }

  /** Carries out an act; its problem, or null. Bugs are thrown. */
  #perform(act: EngineAct): Problem | null {
    const engine = this.#engine;
    try {
      if (act.kind === "canary") generateWith(engine.model);
      else if (act.kind === "reload") {
        const weights = new LlamaWeights(act.weights);
        // They are tested before they replace weights that work.
        generateWith(weights);
        engine.reload(weights, act.epoch);
      } else engine[act.kind]();
      return null;
    } catch (error) {
      // An engine that finds no memory to wake has failed.
      if (act.kind === "wake" || !(error instanceof AppError)) throw error;
      return { code: error.code, message: error.message };
    }
  }

  #wake(): void {
    this.#loop ??= setImmediate(() => guard(() => this.#turn()));
  }

  /** Runs one step. Messages that arrived during it are delivered before the next one. */
  #turn(): void {
    this.#loop = null;
    const worked = this.#engine.step();
    const nowMs = clock.nowMs();
    if (!worked || this.#engine.urgent || nowMs - this.#flushedMs >= FLUSH_MS) this.#flush(!worked);
    if (worked) this.#wake();
  }

  #flush(isIdle = true): void {
    const nowMs = clock.nowMs();
    const stats = this.#figuresDue(nowMs, isIdle);
    const events = this.#engine.drain();
    this.#flushedMs = nowMs;
    if (events.length === 0 && stats === null) return;
    if (stats !== null) {
      // First: the end of the last response ends an iteration, whose report has these figures.
      // Events of an epoch begin with `advanced`.
      const first = events[0]?.kind === "advanced" ? 1 : 0;
      events.splice(first, 0, { kind: "stats", stats });
    }
    send({ kind: "events", epoch: this.#engine.epoch, events }, kvBuffers(events));
  }

  /** Statistics, if they are due; else null. An engine that becomes idle sends its final state, as no step follows. */
  #figuresDue(nowMs: number, isIdle: boolean): WorkerStats | null {
    const isTime = this.#engine.urgent || nowMs - this.#statsMs >= STATS_MS;
    if (!isTime && !isIdle) return null;
    const stats = this.#engine.stats();
    const key = `${stats.running} ${stats.waiting} ${stats.kvTokensUsed}`;
    if (!isTime && key === this.#statsKey) return null;
    this.#statsMs = nowMs;
    this.#statsKey = key;
    return stats;
  }
}

function send(message: FromEngine, transfers: ArrayBuffer[] = []): void {
  self.postMessage(message, transfers);
}

/** Runs `act`. An error fails the engine: the rollout gets one `failed` event. */
function guard(act: () => void): void {
  contain(act, (error) => {
    self.onmessage = null;
    thread?.stop();
    const code = error instanceof AppError ? error.code : "worker_failed";
    send({ kind: "failed", code, message: errorText(error) });
  });
}

let thread: EngineThread | null = null;

self.onmessage = ({ data }: MessageEvent<ToEngine>) =>
  guard(() => {
    if (data.kind === "open") {
      assert(thread === null, "a thread has one engine");
      thread = new EngineThread(data.weights, data.settings);
      return;
    }
    assert(thread !== null, "an engine is opened first");
    thread.receive(data);
  });
