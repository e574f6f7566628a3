// Data of the page besides the stream: the current iteration and the last ones with their pictures, what is waited for, drafts
// by worker, and the serving state, of which it reports every change.

import type { Clock, Later } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import { requestId, workerId } from "../../core/base/ids.ts";
import type { OpenWait } from "../../core/base/waits.ts";
import type { Group, RolloutRequest } from "../../core/request/buffer.ts";
import { type Figures, SHOWN_FIGURES } from "../../core/rollout/figures.ts";
import type { IterationSummary } from "../../core/rollout/iteration-span.ts";
import type { WorkerStats } from "../../core/rollout/worker.ts";
import type { WorkerPool } from "../../fleet/pool.ts";
import { figureOf, type RunFigure } from "../../observe/picture/figure.ts";
import { headlineOf, savedPage } from "../../observe/picture/page.ts";
import type { CompletedGroups } from "../completed-groups.ts";
import type { workersOf } from "../control/calls.ts";
import type { Sidecar } from "../sidecar.ts";
import { progressFields } from "../stream/subscription.ts";
import {
  type LastFinished,
  LastFinishedResponses,
  longestOpen,
  type ServingState,
  servingState,
  type Weights,
  waitingFor,
} from "./waiting.ts";

export interface LiveOptions {
  readonly sidecar: Sidecar;
  readonly pool: WorkerPool;
  readonly weights: Weights;
  /** The workers as GET /foretoken/workers lists them. */
  readonly workers: () => ReturnType<typeof workersOf>;
  readonly clock: Clock;
  readonly nowS: () => number;
  /** Waits for the JSON and tokenizer threads. */
  readonly threadWaits: () => readonly OpenWait[];
  readonly completed: CompletedGroups;
  readonly every: Later;
  /** Called when the state has changed, or has kept requests waiting for another minute. */
  readonly changed: (state: ServingState & { waiting: number; seconds: number }) => void;
}

/** An iteration that has ended: its figures (core/rollout/figures.ts), and values derived from them. Shares are 0 to 1. */
interface IterationRecord extends Readonly<Figures> {
  readonly number: number;
  /** Unix time of its end, seconds. */
  readonly ended_at_s: number;
  readonly weight_epoch: number;
  readonly wall_s: number;
  readonly tail_s: number;
  readonly tokens_per_s: number;
  readonly mean_acceptance_length: number;
}

interface EndedIteration {
  readonly record: IterationRecord;
  /** The data of its picture, and the responses that it waited for last: larger than its figures, and fetched apart. */
  readonly figure: RunFigure;
  readonly waited_for: readonly LastFinished[];
}

export const ITERATIONS_KEPT = 50;
const LOOK_MS = 1000;
const ESTIMATES_MAX = 16_384;
/** A picture of a running iteration is reused for this many times as long as drawing it took. */
const PICTURE_COST = 50;
/** Interval between reports of a state that keeps requests waiting. */
const REMIND_S = 60;

export type LiveAnswer = ReturnType<LiveView["answer"]>;

export class LiveView {
  readonly #options: LiveOptions;
  readonly #lastFinished = new LastFinishedResponses();
  /** The last iterations that have ended, the oldest first. */
  #ended: readonly EndedIteration[] = [];
  readonly close: () => void;
  #state: ServingState = { state: "serving", reason: null };
  #sinceMs: number;
  #remindedMs = 0;
  #picture = { page: "", iteration: 0, dueMs: Number.NEGATIVE_INFINITY };

  constructor(options: LiveOptions) {
    this.#options = options;
    this.#sinceMs = options.clock.nowMs();
    const finished = (request: RolloutRequest) => this.#lastFinished.finished(request);
    options.sidecar.observe({ finished });
    this.close = options.every(() => this.look(), LOOK_MS);
  }

  get state(): ServingState {
    return servingState(this.#options);
  }

  /** Number of the current iteration, or of the last one. 0: none has begun. */
  get iteration(): number {
    return this.#options.sidecar.rollout.meter.iteration;
  }

  /** The groups that have ended in the iteration, or go on in it. */
  #groupsOf(number: number) {
    const { completed, sidecar } = this.#options;
    const open = [...sidecar.rollout.requests].map(({ group }) => group);
    const groups = [...new Set([...completed.groups, ...open])];
    return groups.filter(({ endedIn }) => (endedIn ?? this.iteration) === number).map(columnsOf);
  }

  /** An unfinished or kept response by its number; null: neither. */
  request(id: number): RolloutRequest | null {
    const { completed, sidecar } = this.#options;
    return sidecar.rollout.request(requestId(id)) ?? completed.request(id);
  }

  iterationEnded(summary: IterationSummary): void {
    const { meter } = this.#options.sidecar.rollout;
    const number = this.iteration;
    const record: IterationRecord = {
      number,
      ...summary.figures,
      ended_at_s: Math.round(this.#options.nowS()),
      weight_epoch: summary.weightEpoch,
      wall_s: summary.seconds,
      tail_s: summary.tailS,
      tokens_per_s: summary.tokensPerS,
      mean_acceptance_length: meter.progress().meanAcceptanceLength,
    };
    const figure = this.#figure(number, { wallS: summary.seconds, tailS: summary.tailS });
    const waited_for = this.#lastFinished.report(this.nameOf);
    this.#lastFinished.clear();
    this.#ended = [...this.#ended, { record, figure, waited_for }].slice(-ITERATIONS_KEPT);
  }

  /** The answer of GET /foretoken/iterations/:number. @throws AppError not_found. */
  earlier(number: number) {
    const ended = this.#find(number);
    const groups = this.#groupsOf(number);
    if (ended === null) return { iteration: number, groups };
    const { record, figure, waited_for } = ended;
    return {
      iteration: number,
      ...record,
      figure,
      waited_for,
      groups,
      figures: shown(record),
    };
  }

  /** null: the iteration goes on. @throws AppError not_found. */
  #find(number: number): EndedIteration | null {
    const ended = this.#ended.find(({ record }) => record.number === number);
    if (ended !== undefined) return ended;
    if (number === this.iteration && number > 0) return null;
    const reason =
      number > this.iteration
        ? `has not begun: the current one is ${this.iteration}`
        : `is not kept: the last ${ITERATIONS_KEPT} are`;
    throw new AppError("not_found", `iteration ${number} ${reason}`);
  }

  /** The page of GET /foretoken/picture. `number` null: the current iteration. @throws AppError not_found. */
  picture(number: number | null): string {
    const ended = number === null ? null : this.#find(number);
    if (ended !== null) return pictured(ended.figure, ended.record);
    const { clock, sidecar } = this.#options;
    const nowMs = clock.nowMs();
    const { iteration } = this;
    const drawn = this.#picture;
    if (iteration === drawn.iteration && nowMs < drawn.dueMs) return drawn.page;
    const { meter } = sidecar.rollout;
    const page = pictured(this.#figure(iteration, meter.times), meter.figures());
    // A page that looks on costs a large iteration a fiftieth of the time at most.
    this.#picture = { page, iteration, dueMs: nowMs + PICTURE_COST * (clock.nowMs() - nowMs) };
    return page;
  }

  #figure(number: number, { wallS, tailS }: { wallS: number; tailS: number }): RunFigure {
    const { meter } = this.#options.sidecar.rollout;
    const { preemptions } = meter.figures();
    const about = { name: `iteration ${number}`, wall_s: wallS, tail_s: tailS, preemptions };
    return figureOf({ ...about, timeline: meter.timeline() });
  }

  answer() {
    const { rollout } = this.#options.sidecar;
    const { progress, state, longest, waiting } = this.#seen();
    return {
      ...state,
      progress: progressFields(progress, rollout.epoch),
      workers: this.#options.workers(),
      state_s: this.#stateS(state),
      waiting,
      iteration: this.iteration,
      weight_epoch: rollout.epoch,
      estimates: estimatesOf(rollout),
      iterations: this.#ended.map(({ record }) => record),
      longest,
      waited_for: rollout.unfinished > 0 ? [] : this.#lastWaitedFor(),
      figures: shown(rollout.meter.figures()),
      drafts: progress.workers.map(({ worker }) =>
        draftsOf(worker, rollout.meter.latest(workerId(worker))),
      ),
    };
  }

  waiting() {
    const { meter } = this.#options.sidecar.rollout;
    const { progress, longest, waiting } = this.#seen();
    return {
      iteration: this.iteration,
      unfinished: progress.requests - progress.requestsDone,
      estimate_s: progress.etaS,
      waiting,
      responses: longest,
      sessions: this.#options.sidecar.sessions.paused(),
      engines: meter.clocks().map((clock) => ({
        engine: clock.worker,
        name: this.nameOf(clock.worker),
        doing: clock.doing,
        running: clock.running,
        silent_s: clock.silentMs / 1000,
        step_ms: clock.stepMs,
        pace: clock.pace,
        state: clock.state,
      })),
    };
  }

  /** State, progress, and the lines of what the server waits for, at one moment. */
  #seen() {
    const { sidecar, pool, clock } = this.#options;
    const { meter, requests } = sidecar.rollout;
    const { state, nameOf } = this;
    const progress = meter.progress();
    const nowMs = clock.nowMs();
    const why = state.state === "serving" ? " for a slot" : `: ${state.state.replace("_", " ")}`;
    const waitsFor = `it waits${why}`;
    const longest = longestOpen(requests, { nowMs, workers: progress.workers, nameOf, waitsFor });
    const waiting = waitingFor({
      progress,
      state,
      longest,
      nameOf,
      nowMs,
      hasStarted: pool.hasStarted,
      stateS: this.#stateS(state),
      iteration: this.iteration,
      members: pool.members,
      clocks: meter.clocks(),
      waits: [...sidecar.waits.open, ...sidecar.rollout.waits, ...this.#options.threadWaits()],
    });
    return { progress, state, longest, waiting };
  }

  /** Seconds for which the state has lasted; it may have changed since the last `look`. */
  #stateS({ state }: ServingState): number {
    if (state !== this.#state.state) return 0;
    return Math.round((this.#options.clock.nowMs() - this.#sinceMs) / 1000);
  }

  /** The responses that the current iteration waited for last; if none has finished, those of the iteration before. */
  #lastWaitedFor(): readonly LastFinished[] {
    const current = this.#lastFinished.report(this.nameOf);
    if (current.length > 0) return current;
    return this.#ended.at(-1)?.waited_for ?? [];
  }

  readonly nameOf = (worker: number): string => {
    const { members } = this.#options.pool;
    return members.find(({ workerId }) => workerId === worker)?.source.name ?? `worker ${worker}`;
  };

  /** Reports a change of the state, and keeps the rate and the time left current. */
  look(): void {
    const { clock, sidecar, changed } = this.#options;
    if (sidecar.rollout.unfinished > 0) sidecar.rollout.meter.progress();
    const now = servingState(this.#options);
    const nowMs = clock.nowMs();
    const waiting = sidecar.rollout.unfinished;
    const isNews = now.state !== this.#state.state;
    if (isNews) this.#sinceMs = nowMs;
    this.#state = now;
    const isDue =
      now.state !== "serving" && waiting > 0 && nowMs - this.#remindedMs >= REMIND_S * 1000;
    if (!isNews && !isDue) return;
    this.#remindedMs = nowMs;
    changed({ ...now, waiting, seconds: Math.round((nowMs - this.#sinceMs) / 1000) });
  }
}

/** Responses of a group in columns, one value for each. */
function columnsOf({ groupId, requests }: Group) {
  return {
    group: groupId,
    requests: requests.map(({ spec }) => spec.requestId),
    lengths: requests.map(({ response }) => response.length),
    finish_reasons: requests.map(({ response }) => response.finish),
  };
}

function pictured(
  figure: RunFigure,
  { requests, finished_requests: done }: Pick<Figures, "requests" | "finished_requests">,
): string {
  const of = done === requests ? "" : `${done.toLocaleString("en-US")} of `;
  const headline = `${of}${headlineOf([{ ...figure, requests }], false)}`;
  return savedPage({ title: figure.name, headline, runs: [figure], facts: [] });
}

/** Figures with their names, for people. */
function shown(figures: Readonly<Figures>) {
  return SHOWN_FIGURES.map((figure) => ({ ...figure, value: figures[figure.key] }));
}

/** Length estimates of incomplete groups that have one, in columns. */
function estimatesOf(rollout: Sidecar["rollout"]) {
  const groups: string[] = [];
  const tokens: number[] = [];
  for (const { spec, group } of rollout.requests) {
    if (spec.sampleIndex > 0) continue;
    const estimate = rollout.lengthEstimate(group);
    if (estimate === null) continue;
    groups.push(spec.groupId);
    tokens.push(estimate);
    if (groups.length === ESTIMATES_MAX) break;
  }
  return { groups, tokens };
}

/** Draft figures since the worker was opened. Each accepted token saves its share of a step's time at most. */
function draftsOf(worker: number, stats: WorkerStats | null) {
  const {
    drafts = 0,
    draftedTokens = 0,
    acceptedTokens = 0,
    draftMs = 0,
    busyMs = 0,
    outputTokens = 0,
  } = stats ?? {};
  const savedMs = outputTokens === 0 ? 0 : (acceptedTokens * busyMs) / outputTokens;
  return {
    worker,
    drafted_tokens: draftedTokens,
    accepted_tokens: acceptedTokens,
    mean_acceptance_length: drafts === 0 ? 1 : 1 + acceptedTokens / drafts,
    drafting_s: draftMs / 1000,
    saved_s: stats?.draftSavedMs === undefined ? null : stats.draftSavedMs / 1000,
    saved_s_max: (savedMs - draftMs) / 1000,
  };
}
