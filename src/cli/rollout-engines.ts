// The engines of `foretoken rollout`: embedded ones on a GGUF file, or those that --worker names. Both are opened anew
// for every run; servers are waited for while they load.

import type { OpenWorkers } from "../app.ts";
import { enginesOf } from "../compose/engines.ts";
import type { Settings } from "../config/fields.ts";
import { AppError, errorText } from "../core/base/errors.ts";
import { weightEpoch, workerId } from "../core/base/ids.ts";
import type { Worker } from "../core/rollout/worker.ts";
import { MemoryFile } from "../engines/llama/memory-file.ts";
import { type LlamaModel, openLlamaModel } from "../engines/llama/open.ts";
import type { WorkerSource } from "../fleet/engines.ts";
import { BUNDLED_MODEL } from "../host/installation.ts";
import type { Text } from "../text/text.ts";
import { createLog } from "./log.ts";
import { operatorLog } from "./operator-log.ts";
import { PRICED, writePricedGguf } from "./priced-model.ts";

export const ENGINE_FIELDS = [
  "worker",
  "workerToken",
  "tokenizer",
  "startS",
  "model",
  "llama",
  "slots",
  "kvTokens",
  "deterministic",
] as const;

/** Fields of embedded engines alone. */
export const EMBEDDED_ONLY = ["llama", "slots", "kvTokens", "deterministic"] as const;

export type EngineSettings = Settings<(typeof ENGINE_FIELDS)[number]>;

/** Seconds that servers get to load, where --start-s is not given. */
export const START_S = 60;

export interface RolloutEngines {
  /** The model's name in the report. */
  readonly model: string;
  readonly text: Text;
  readonly stopTokenIds: readonly number[];
  /** Context of the smallest worker. */
  readonly contextTokens: number;
  readonly kvTokens: number;
  readonly deterministic: boolean;
  readonly open: OpenWorkers;
  close(): Promise<void>;
}

/** The tool runs one iteration on the weights it has opened: the first epoch. */
export const EPOCH = weightEpoch(0);
const RETRY_MS = 500;

/** @throws AppError: no model can be read, or a server cannot be opened. */
export async function openEngines(
  settings: EngineSettings,
  signal: AbortSignal,
): Promise<RolloutEngines> {
  return settings.worker.length === 0
    ? await embeddedEngines(settings)
    : await remoteEngines(settings, signal);
}

async function embeddedEngines(settings: EngineSettings): Promise<RolloutEngines> {
  const { slots, kvTokens, deterministic } = settings;
  const workers = engineCount(settings.llama);
  const { model, name } = await openGguf(settings.model, deterministic);
  return {
    model: name,
    text: model.text,
    stopTokenIds: model.stopTokenIds,
    contextTokens: model.contextTokens,
    kvTokens,
    deterministic,
    open: (contextTokens) =>
      model.openWorkers({
        ...{ workers, slots, kvTokens, contextTokens },
        epoch: EPOCH,
      }),
    close: async () => model.close(),
  };
}

/** @throws AppError usage: none is to run. */
export function engineCount(llama: number): number {
  if (llama > 0) return llama;
  throw new AppError("usage", "--llama is 0; at least 1 engine must run, and at most 64");
}

/** `path` null: the bundled model. */
async function openGguf(
  path: string | null,
  deterministic: boolean,
): Promise<{ model: LlamaModel; name: string }> {
  if (path !== PRICED) {
    const model = await openLlamaModel({ path: path ?? BUNDLED_MODEL, deterministic });
    return { model, name: path ?? "foretoken-3m-q8_0.gguf (bundled)" };
  }
  const file = MemoryFile.create();
  try {
    const parameters = writePricedGguf(BUNDLED_MODEL, file.path);
    const millions = Math.round(parameters / 1e6);
    const name = `the bundled model, widened to ${millions} M parameters in float32: the same text at a real model's price, a step waits for its weights`;
    // A child process reads it.
    const shared = `/proc/${process.pid}/fd/${file.descriptor}`;
    return { model: await openLlamaModel({ path: shared, deterministic }), name };
  } finally {
    file.close();
  }
}

async function remoteEngines(
  settings: EngineSettings,
  signal: AbortSignal,
): Promise<RolloutEngines> {
  const { worker, workerToken, model, tokenizer } = settings;
  const waits = waitsFor(settings.startS, signal);
  const log = createLog("text", { level: "warn", write: (line) => process.stderr.write(line) });
  const named = { worker, workerToken, tokenizer, servedModelName: null };
  const events = operatorLog(log, () => {});
  const engines = enginesOf({ ...named, model, embedded: null }, events);
  const wait = {
    tried: (problems: readonly string[]) => waits.tried(problems.join("; ")),
    signal: waits.signal,
  };
  const side = await engines.model(wait, () => []);
  const sources = engines.sources(side);
  // Their capacity is known only once they are open: the first run takes these.
  let reach: Parameters<OpenWorkers>[1] = () => {};
  const openAll = () =>
    openSources(sources, waits, (worker, isReachable) => reach(worker, isReachable));
  let ready: readonly Worker[] | null = await openAll();
  const capacities = ready.map(({ capacity }) => capacity);
  return {
    model: side.names[0],
    text: side.text,
    stopTokenIds: side.eosTokenIds,
    contextTokens: Math.min(...capacities.map(({ contextTokens }) => contextTokens)),
    kvTokens: Math.min(...capacities.map(({ kvTokens }) => kvTokens)),
    deterministic: false,
    open: async (_contextTokens, listener) => {
      reach = listener;
      const workers = ready ?? (await openAll());
      ready = null;
      return workers;
    },
    close: async () => {
      await Promise.all((ready ?? []).map((worker) => worker.close()));
      side.llama?.close();
    },
  };
}

/** @throws AppError: one cannot be opened, or their weights differ; then none stays open. */
async function openSources(
  sources: readonly WorkerSource[],
  waits: Waits,
  reach: Parameters<OpenWorkers>[1],
): Promise<readonly Worker[]> {
  const results = await Promise.allSettled(
    sources.map((source, index) => openOne(source, { index, waits, reach })),
  );
  const opened = results.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
  try {
    for (const one of results) if (one.status === "rejected") throw one.reason;
    checkAlike(opened);
    return opened;
  } catch (error) {
    await Promise.all(opened.map((worker) => worker.close()));
    throw error;
  }
}

async function openOne(
  source: WorkerSource,
  { index, waits, reach }: { index: number; waits: Waits; reach: Parameters<OpenWorkers>[1] },
): Promise<Worker> {
  for (;;) {
    let opened: Worker | null = null;
    try {
      opened = await source.open({
        workerId: workerId(index),
        epoch: EPOCH,
        reach: (lost) => {
          if (opened !== null) reach(opened, lost === null);
        },
      });
      return opened;
    } catch (error) {
      if (!(error instanceof AppError) || error.code !== "worker_failed") throw error;
      await waits.again(`${source.name}: ${errorText(error)}`);
    }
  }
}

function checkAlike(workers: readonly Worker[]): void {
  const named = workers.filter(({ weights }) => (weights ?? null) !== null);
  const [first] = named;
  const other = named.find(({ weights }) => weights !== first?.weights);
  if (first === undefined || other === undefined) return;
  const message = `${other.name} has the weights ${other.weights}, ${first.name} ${first.weights}: one iteration has one policy`;
  throw new AppError("invalid_config", message);
}

type Waits = ReturnType<typeof waitsFor>;

/** Waits for servers that load, up to a deadline; what they lack is printed once. */
function waitsFor(seconds: number, stopped: AbortSignal) {
  const timeUp = AbortSignal.timeout(seconds * 1000);
  let shown = "";
  const tried = (problem: string) => {
    if (problem !== shown) console.warn(`waiting for ${problem}`);
    shown = problem;
  };
  return {
    signal: AbortSignal.any([stopped, timeUp]),
    tried,
    /** @throws AppError: the time is over, or the user has ended it. */
    again: async (problem: string) => {
      if (timeUp.aborted) {
        throw new AppError("worker_failed", `${problem} (after ${seconds} s; --start-s)`);
      }
      tried(problem);
      await Bun.sleep(RETRY_MS);
      if (stopped.aborted) throw new AppError("interrupted", "stopped by a signal");
    },
  };
}
