// One rollout on a sidecar of its own in this process, as POST /v1/rollouts runs it: `foretoken rollout` and `verify`.

import { createHash } from "node:crypto";
import packageJson from "../../package.json" with { type: "json" };
import { present } from "../core/base/assert.ts";
import { AppError } from "../core/base/errors.ts";
import { REQUESTS_MAX, type RolloutRequest } from "../core/request/buffer.ts";
import type { Progress } from "../core/rollout/meter.ts";
import type { RunReport } from "../core/rollout/report.ts";
import type { Member } from "../fleet/engines.ts";
import type { RolloutPlan } from "../server/rollouts/plan.ts";
import type { RolloutRun, RunGroup } from "../server/rollouts/run.ts";
import type { ComposeOptions, RunningSidecar } from "./options.ts";
import { openSidecar } from "./sidecar.ts";

type Composed =
  | ("model" | "sources" | "policy" | "draft" | "chunkTokens" | "events" | "journal")
  | ("poolMemoryBytes" | "poolDiskBytes");

export interface RolloutJob extends Pick<ComposeOptions, Composed> {
  /** Makes the plan, when all engines serve. An error that it throws ends the rollout. */
  readonly plan: (engines: RunningSidecar) => Promise<RolloutPlan>;
  /** Seconds for which opening engines is retried; null: each is tried once. */
  readonly startS: number | null;
  /**
   * Called once for each group, as it finishes; after `signal` also for groups of which only some requests have
   * finished. An error that it throws ends the rollout.
   */
  readonly onGroup: (group: string, finished: readonly RolloutRequest[]) => void;
  /** Called about `PROGRESS_HZ` times a second. */
  readonly onProgress: (progress: Progress) => void;
  readonly note: (text: string) => void;
  /** Ends the rollout at once: finished requests are handed out, the rest is dropped. */
  readonly signal: AbortSignal;
}

/** Id of the rollout: a journal's folder holds just one. */
const ID = "rollout";
const PROGRESS_HZ = 5;
const CONTROL_MS = 600_000;

/**
 * @throws AppError: an engine cannot be opened, or refuses the sampling; none is left; the journal is of another job;
 * interrupted: by `signal`, before the engines serve.
 */
export async function runRollout(job: RolloutJob): Promise<RunReport> {
  const failed = Promise.withResolvers<never>();
  // Whoever waits for it gets the error.
  failed.promise.catch(() => undefined);
  const engines = new Engines(job, failed.reject);
  const running = await openSidecar({
    ...job,
    retryGraceMs: 0,
    weightsTimeoutMs: CONTROL_MS,
    version: packageJson.version,
    limits: { requestsMax: REQUESTS_MAX },
    rolloutLimits: { keptBytesMax: Number.POSITIVE_INFINITY },
    workersMin: job.sources.length,
    events: {
      ...job.events,
      workerChanged: (member) => engines.changed(member),
      broken: (error) => {
        job.events.broken(error);
        failed.reject(error);
      },
    },
  });
  try {
    const report = engines.serve(running).then(() => rolledOut(job, running, failed));
    return await Promise.race([report, failed.promise]);
  } finally {
    engines.release();
    await running.stop();
  }
}

/** Watches the engines: when all of them serve, and when none is left. `fail` ends the rollout. */
class Engines {
  readonly #job: RolloutJob;
  readonly #fail: (error: unknown) => void;
  readonly #serving = Promise.withResolvers<void>();
  #running: RunningSidecar | null = null;
  #problem = "no engine has answered";
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #stopped = () => this.#fail(new AppError("interrupted", "stopped by a signal"));

  constructor(job: RolloutJob, fail: (error: unknown) => void) {
    this.#job = job;
    this.#fail = fail;
  }

  async serve(running: RunningSidecar): Promise<void> {
    const { startS, signal } = this.#job;
    this.#running = running;
    signal.addEventListener("abort", this.#stopped);
    if (signal.aborted) this.#stopped();
    if (startS !== null) this.#timer = setTimeout(() => this.#giveUp(), startS * 1000);
    running.opened.then(() => startS === null && this.#giveUp(), this.#fail);
    if (running.hasStarted()) this.#serving.resolve();
    await this.#serving.promise;
    this.release();
  }

  release(): void {
    clearTimeout(this.#timer);
    this.#job.signal.removeEventListener("abort", this.#stopped);
  }

  changed({ source, state, reason }: Member): void {
    const problem = `${source.name}: ${reason}`;
    if (this.#running?.hasStarted()) {
      this.#serving.resolve();
      if (this.#running.sidecar.rollout.workers.length > 0) return;
      this.#fail(new AppError("no_worker", `${problem}; no other engine is left`));
    } else if (state === "fenced") this.#fail(new AppError("invalid_config", problem));
    else if (state !== "ready" && problem !== this.#problem) {
      this.#problem = problem;
      this.#job.note(`waiting for ${problem}`);
    }
  }

  #giveUp(): void {
    if (this.#running?.hasStarted()) return;
    const { startS } = this.#job;
    const how = startS === null ? "" : ` (after ${startS} s; --start-s)`;
    this.#fail(new AppError("worker_failed", `${this.#problem}${how}`));
  }
}

/** `failed` ends it as well: nothing of it runs on then, as its progress would keep the process from ending. */
async function rolledOut(
  job: RolloutJob,
  running: RunningSidecar,
  failed: PromiseWithResolvers<never>,
): Promise<RunReport> {
  const { signal } = job;
  const { rollout } = running.sidecar;
  const run = await begun(job, running);
  const over = Promise.withResolvers<void>();
  const ending = (act: () => void) => () => {
    try {
      act();
    } catch (error) {
      failed.reject(error);
    }
  };
  const handedOut = new Set<RunGroup>();
  const handOut = (group: RunGroup, finished: readonly RolloutRequest[]) => {
    if (handedOut.has(group) || finished.length === 0) return;
    handedOut.add(group);
    job.onGroup(group.id, finished);
  };
  let seen = 0;
  const news = ending(() => {
    // Called for each group, of which there may be hundreds of thousands.
    for (; seen < run.finishedGroups.length; seen += 1) {
      const group = present(run.finishedGroups[seen], "a finished group stays");
      handOut(group, group.taken);
    }
    if (run.state === "failed" && handedOut.size < run.groups.length) {
      throw new AppError("worker_failed", run.problem ?? "the rollout failed");
    }
    if (run.state !== "running") over.resolve();
  });
  const interrupt = ending(() => {
    rollout.stop();
    for (const group of run.groups) handOut(group, group.requests.filter(isWhole));
    // The same job goes on from its journal.
    void running.rollouts.close();
    run.cancel();
  });
  const show = () => job.onProgress(rollout.meter.progress());
  const timer = setInterval(show, 1000 / PROGRESS_HZ);
  signal.addEventListener("abort", interrupt);
  run.attach(news);
  try {
    if (signal.aborted) interrupt();
    news();
    await Promise.race([over.promise, failed.promise]);
    show();
    return reportOf(job, run, running);
  } finally {
    clearInterval(timer);
    signal.removeEventListener("abort", interrupt);
  }
}

/** Begins or resumes the rollout. @throws AppError invalid_config: the journal holds another; and as KnownRollouts.begin. */
async function begun(job: RolloutJob, running: RunningSidecar): Promise<RolloutRun> {
  const { sidecar, rollouts } = running;
  const plan = await job.plan(running);
  const hash = digestOf(plan);
  const isOther = (run: RolloutRun) => run.id !== ID || run.hash !== hash;
  // A server that updated its engines left its own weights in its folder.
  if (sidecar.rollout.epoch > 0 || rollouts.runs().some(isOther)) {
    const problem = "holds another run: its prompts, their number or its sampling differ";
    throw new AppError("invalid_config", `--journal ${job.journal}: ${problem}; use another one`);
  }
  const run = rollouts.begin({ ...plan, id: ID }, hash);
  const { resumed_tokens: tokens } = sidecar.rollout.meter.counts;
  if (tokens > 0) {
    const ended = `${run.finishedRequests} of ${run.requests} responses had ended`;
    const kept = `${tokens.toLocaleString("en-US")} tokens are kept`;
    job.note(`resumed from ${job.journal}: ${ended}, ${kept}`);
  }
  return run;
}

/** Digest of all that decides which tokens are drawn, except the weights. */
function digestOf({ groups }: RolloutPlan): string {
  const hash = createHash("sha256");
  for (const { id, prompt, n, sampling, finishFirst } of groups) {
    hash.update(JSON.stringify([id, n, prompt.length, sampling, finishFirst]));
    hash.update(new Uint8Array(prompt.buffer, prompt.byteOffset, prompt.byteLength));
  }
  return hash.digest("hex");
}

const isWhole = ({ response: { finish } }: RolloutRequest) => finish !== null && finish !== "abort";

function reportOf(job: RolloutJob, run: RolloutRun, { sidecar, kv }: RunningSidecar): RunReport {
  const { startMs } = run;
  const own = present(run.report, "a rollout that is over has a report");
  const endMs = startMs + own.wall_s * 1000;
  const { timeline, ...engines } = sidecar.rollout.meter.report({
    startMs,
    endMs,
    pool: kv.stats(),
  });
  // The sidecar's names of groups have the rollout's in front.
  const named = timeline.responses.map((response) => ({
    ...response,
    group: response.group.slice(response.group.indexOf("/") + 1),
  }));
  return {
    ...own,
    ...engines,
    timeline: { ...timeline, responses: named },
    policy: job.policy,
    draft: job.draft,
    deterministic: job.model.llama?.deterministic ?? false,
  };
}
