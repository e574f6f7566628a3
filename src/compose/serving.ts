// The life of a serving process: it listens first, then finds out what the model is and opens the engines, serves until
// it is asked to stop, and drains.

import { AppError } from "../core/base/errors.ts";
import type { EngineSources } from "./engines.ts";
import type { ModelSide, ModelWait } from "./model.ts";
import type { Ending, OperatorLog } from "./operator-log.ts";
import type { BindOptions, BoundServer, RunningServer } from "./options.ts";
import { bindServer } from "./server.ts";

export interface ServingOptions {
  readonly engines: EngineSources;
  readonly options: Omit<BindOptions, "joining" | "events">;
  readonly events: OperatorLog;
  /** Requests to stop: the first drains, the second ends everything. */
  readonly stopping: { readonly first: Promise<void>; readonly second: Promise<void> };
  /** Rejects when a bug has stopped the rollout. */
  readonly broken: Promise<never>;
  readonly drainS: number;
}

/** Serves to the end. @throws AppError: the address is in use, or no retry could open an engine; and what `broken` rejects with. */
export async function serveUntilStopped(serving: ServingOptions): Promise<Ending> {
  const { engines, options, events, broken, drainS } = serving;
  const joining = {
    sourceOf: engines.sourceOf,
    hasFixed: engines.hasFixed,
    drainMs: drainS * 1000,
  };
  const bound = bindServer({ ...options, ...engines.pool, joining, events });
  events.listening(bound.url);
  try {
    const model = await modelOf(bound, serving);
    if (model === null) return "interrupted";
    try {
      const running = await bound.serve(model, engines.sources(model));
      const opened = running.opened.then(() => events.ready(bound.url));
      const failing = opened.then(() => new Promise<never>(() => {}));
      try {
        const stopped = untilStopped(running, serving);
        return await Promise.race([stopped, failing, broken]);
      } finally {
        await running.stop();
      }
    } finally {
      model.llama?.close();
    }
  } finally {
    await bound.stop();
  }
}

const NO_WORKER = 'no worker: POST /workers {"url": "http://HOST:PORT"} adds one';

/** The engines' model; null: serving was stopped before it was known. */
async function modelOf(
  bound: BoundServer,
  { engines, events, stopping }: ServingOptions,
): Promise<ModelSide | null> {
  const stopped = new AbortController();
  const { registry } = bound;
  if (!engines.hasFixed) {
    bound.waitFor(NO_WORKER);
    events.ready(bound.url);
    const came = await Promise.race([registry.first.then(() => true), stopping.first]);
    if (came !== true) return null;
    bound.waitFor("the model");
  }
  const wait: ModelWait = {
    tried: (problems) => {
      for (const problem of problems) events.modelUnknown(problem);
      const reason = `no server has reported its model: ${problems.join("; ")}`;
      bound.waitFor(problems.length === 0 ? NO_WORKER : reason);
      events.ready(bound.url);
    },
    signal: stopped.signal,
  };
  const model = engines.model(wait, () => registry.early);
  const first = await Promise.race([model, stopping.first.then(() => "stopped" as const)]);
  if (first !== "stopped") return first;
  events.stopping("waiting for the model");
  stopped.abort(new AppError("interrupted", "stopped by a signal"));
  const late = await model.catch(() => null);
  late?.llama?.close();
  return null;
}

async function untilStopped(
  running: RunningServer,
  { stopping, events, drainS }: ServingOptions,
): Promise<Ending> {
  await stopping.first;
  if (!running.hasStarted()) {
    events.stopping("opening workers");
    return "interrupted";
  }
  events.draining(running.sidecar.rollout.unfinished, drainS);
  const timeUp = new Promise<"time_up">((resolve) => {
    setTimeout(() => resolve("time_up"), drainS * 1000).unref();
  });
  const ending = await Promise.race([
    running.drain().then(
      () => "drained" as const,
      (error: unknown) => ({ error }),
    ),
    stopping.second.then(() => "second_signal" as const),
    timeUp,
  ]);
  events.stopped(ending, running.sidecar.rollout.unfinished, running.streams());
  return ending;
}
