// Whether generation may run: the trainer's pause, and the hold of a weight update. They are independent: an update
// holds generation whatever the trainer does meanwhile, and a pause of the trainer's outlasts it.

import { AppError } from "../core/base/errors.ts";
import type { PauseMode } from "../core/rollout/pause.ts";
import type { EngineWorker } from "../core/rollout/worker.ts";
import type { UpdateTimes } from "./engines.ts";
import type { Wait } from "./waits.ts";

export interface GenerationHoldOptions extends UpdateTimes {
  /** Called after an update with the seconds for which it held generation. */
  readonly held?: (seconds: number) => void;
}

export interface PauseState {
  readonly is_paused: boolean;
  /** null: it runs. */
  readonly reason: string | null;
  /** Duration of the pause, s; null: generation is not paused. */
  readonly paused_s: number | null;
  /** Generation resumes by itself when the update ends. */
  readonly resumes: boolean;
}

export class GenerationHold {
  readonly #options: GenerationHoldOptions;
  /** Start of the update that holds generation; null: none does. */
  #heldMs: number | null = null;
  /** Generation resumes after the update, since the trainer has not paused it. */
  #resumes = false;
  /** Start of the trainer's pause; null: it has not paused. */
  #pausedMs: number | null = null;

  constructor(options: GenerationHoldOptions) {
    this.#options = options;
  }

  get isHeld(): boolean {
    return this.#heldMs !== null;
  }

  /** How long the current update has held generation; 0: none does. */
  get heldSeconds(): number {
    return this.#heldMs === null ? 0 : (this.#nowMs - this.#heldMs) / 1000;
  }

  /**
   * The trainer's pause, which outlasts an update under way.
   * @throws AppError conflict: a resume came before it took hold, or it would wait for requests that an update holds back.
   */
  async pause(mode: PauseMode): Promise<void> {
    if (this.#heldMs !== null && mode === "wait") {
      throw new AppError("conflict", "the weights are being updated: nothing can end meanwhile");
    }
    this.#resumes = false;
    this.#pausedMs ??= this.#nowMs;
    const { rollout, waits } = this.#options.sidecar;
    if (await waits.during(this.#quiet("pause", null), () => rollout.pause(mode))) return;
    throw new AppError("conflict", "resumed before the pause had taken hold");
  }

  /** The trainer's resume. false: it takes effect at the end of the current update. */
  resume(): boolean {
    this.#pausedMs = null;
    if (this.#heldMs === null) {
      this.#options.sidecar.rollout.resume();
      return true;
    }
    this.#resumes = true;
    return false;
  }

  /** `holdReason`: returns the reason if an update holds generation. */
  state(holdReason: () => string): PauseState {
    const { pauseMode } = this.#options.sidecar.rollout;
    if (!this.isHeld && pauseMode === null) {
      return { is_paused: false, reason: null, paused_s: null, resumes: false };
    }
    const reason = this.isHeld ? holdReason() : `paused with mode ${pauseMode}`;
    const sinceMs = this.#pausedMs ?? this.#heldMs ?? this.#nowMs;
    const paused_s = Math.floor((this.#nowMs - sinceMs) / 1000);
    return { is_paused: true, reason, paused_s, resumes: this.isHeld && this.#resumes };
  }

  /**
   * Stops generation until `release`, or until the trainer resumes if it has paused by itself. Resolves when nothing
   * runs any more. `giveUp` ends the wait. `reopen` is called with engines that have not stopped in time, and takes
   * them out of the rollout. @throws AppError deadline_exceeded: the trainer's own pause waits for requests that do not end.
   */
  async hold(
    giveUp: AbortSignal,
    reopen: (busy: ReadonlySet<EngineWorker>, reason: string) => void,
  ): Promise<void> {
    const { sidecar, timeoutMs } = this.#options;
    const { rollout } = sidecar;
    if (this.#heldMs === null) {
      this.#resumes = rollout.pauseMode === null;
      this.#heldMs = this.#nowMs;
    }
    const mode = rollout.pauseMode ?? "keep";
    // The trainer's own pause may not have taken hold yet.
    const quiet = rollout.pause(mode);
    const wait = this.#quiet("weight update", timeoutMs);
    if (await sidecar.waits.during(wait, () => this.#inTime(quiet, giveUp))) return;
    const busy = new Set(rollout.busyWorkers);
    const reason = `has not stopped for a weight update within ${timeoutMs / 1000} s`;
    if (mode !== "keep" || giveUp.aborted) {
      const names = [...busy].map(({ name }) => name).join(", ");
      const what = giveUp.aborted ? "the update was aborted" : reason;
      throw new AppError("deadline_exceeded", `${names}: ${what}; nothing has changed`);
    }
    reopen(busy, reason);
    await quiet;
  }

  release(): void {
    if (this.#heldMs === null) return;
    this.#options.held?.(this.heldSeconds);
    this.#heldMs = null;
    if (this.#resumes) this.#options.sidecar.rollout.resume();
  }

  #quiet(what: string, msMax: number | null): Wait {
    const { busyWorkers } = this.#options.sidecar.rollout;
    const forWhom = `engine ${busyWorkers.map(({ workerId }) => workerId).join(", ")}`;
    return { what, forWhom, reason: "responses still run there", msMax };
  }

  get #nowMs(): number {
    return this.#options.clock.nowMs();
  }

  /** Waits for `done`; false: the deadline passed, or the wait was given up. */
  async #inTime(done: Promise<unknown>, giveUp: AbortSignal): Promise<boolean> {
    const { later, timeoutMs } = this.#options;
    const { promise, resolve } = Promise.withResolvers<false>();
    const late = () => resolve(false);
    const cancel = later(late, timeoutMs);
    giveUp.addEventListener("abort", late, { once: true });
    try {
      return await Promise.race([done.then(() => true), promise]);
    } finally {
      cancel();
      giveUp.removeEventListener("abort", late);
    }
  }
}
