// A sidecar out of its parts and features, with or without a server in front of it: it opens its engines, runs, and ends
// in order. The parts are engines, requests and weights, in the order in which each needs those before it.

import { type WeightEpoch, weightEpoch } from "../core/base/ids.ts";
import { waitMsMax } from "../core/base/waits.ts";
import { loadCore } from "../core/wasm/load.ts";
import { LearnedEpochs } from "../fleet/learned-epochs.ts";
import { WorkerPool } from "../fleet/pool.ts";
import { WeightUpdates } from "../fleet/updates.ts";
import { openPool } from "../host/embedded-pool.ts";
import { openRunFiles, type RunJournals } from "../host/journal-file.ts";
import { randomWord, wallClock } from "../host/system.ts";
import { timersOf } from "../host/timers.ts";
import { EngineEncoder, PoolCalls } from "../server/engine-calls.ts";
import { PromptHistory } from "../server/history/prompt-history.ts";
import { ChatRenderer } from "../server/openai/rendering.ts";
import { savedRequest } from "../server/openai/request-journals.ts";
import { savedRollout } from "../server/rollouts/known.ts";
import { Sidecar } from "../server/sidecar.ts";
import { type EncoderLimits, ThreadedEncoder } from "../text/encoder.ts";
import { featuresOf } from "./features.ts";
import { KeptWeights } from "./kept-weights.ts";
import { OperatorFeed } from "./operator-log.ts";
import type { ComposeOptions, Front, Parts, Resources, RunningSidecar, Saved } from "./options.ts";

const EPOCH = weightEpoch(0);
/** Limits of a text: a million tokens of English, and the time that the slower kind of tokenizer takes for them. */
const ENCODER_LIMITS: EncoderLimits = {
  charactersMax: 4 * 1024 * 1024,
  msMax: waitMsMax("thread"),
};

/** What surrounds a sidecar: the operator that it reports to, and the server in front of it. */
interface Around {
  readonly feed: OperatorFeed;
  /** The HTTP server; null: there is none, and the sidecar is used in this process alone. */
  readonly front: Front | null;
}

/**
 * Opens a sidecar, which opens its engines from now on. `around`: default: nothing is in front of it.
 * @throws AppError invalid_config: a file or a folder cannot be used; and as `composeSidecar`.
 */
export async function openSidecar(
  options: ComposeOptions,
  around: Around = { feed: new OperatorFeed(options.events), front: null },
): Promise<RunningSidecar> {
  const {
    historyBytes: limitBytes = 0,
    poolMemoryBytes = 0,
    poolDiskBytes = 0,
    poolDir = null,
    journal = null,
  } = options;
  const { log } = around.feed;
  const journals = journal === null ? null : openRunFiles(journal, log.journalFailed);
  try {
    const history =
      limitBytes === 0 ? null : new PromptHistory({ limitBytes, model: options.model.names[0] });
    const kv = openPool({ poolMemoryBytes, poolDiskBytes, poolDir });
    return composeSidecar(options, { ...around, kv, history, journals });
  } catch (error) {
    await journals?.release();
    throw error;
  }
}

/** Builds a sidecar and starts it. @throws AppError: the core cannot be loaded, or a journal is of something else. */
export function composeSidecar(
  options: ComposeOptions,
  opened: Resources & Around,
): RunningSidecar {
  const parts = partsOf(options, opened);
  const { sidecar, pool, encoder, timers, kv, journals } = parts;
  const { features, rollouts } = featuresOf(parts);
  for (const { observer, log } of features) {
    if (observer !== undefined) sidecar.observe(observer);
    if (log !== undefined) opened.feed.add(log);
  }
  const all = pool.open();
  opened.front?.registry.attach(pool);
  // Callers that await it get the error; an unhandled rejection would end the process.
  all.catch(() => undefined);
  return {
    sidecar,
    rollouts,
    kv,
    encoder,
    chats: parts.chats,
    served: {
      routes: features.flatMap((feature) => feature.routes ?? []),
      sockets: Object.assign({}, ...features.map((feature) => feature.sockets)),
    },
    opened: all,
    hasStarted: () => pool.hasStarted,
    drain: async () => {
      await sidecar.drain();
      for (const { drained } of features) drained?.();
    },
    stop: async (hangUp = async () => {}) => {
      for (const { close } of features) close?.();
      sidecar.rollout.stop();
      await Promise.all(features.map(({ stopped }) => stopped?.()));
      await journals?.release();
      await hangUp();
      encoder.close();
      await pool.close();
      await kv.close();
      timers.stop();
    },
  };
}

/** Makes the parts of a sidecar. @throws AppError invalid_config: a journal is of something else. */
function partsOf(options: ComposeOptions, opened: Resources & Around): Parts {
  const { feed, front, kv, history, journals } = opened;
  const { log } = feed;
  const timers = timersOf(log.failed);
  const later = timers.afterwards;
  const saved = savedIn(journals);
  const kept = new KeptWeights(journals?.weights ?? null, [...saved.requests, ...saved.rollouts]);
  const { before } = kept;
  const { sources, weightsTimeoutMs: timeoutMs, workersMin = 1 } = options;
  const changed = log.workerChanged;
  const epoch = before?.epoch ?? EPOCH;
  const sidecar = sidecarOf(options, { kv, history, timers, epoch, log });
  const pool = new WorkerPool({
    sidecar,
    before,
    sources,
    later,
    changed,
    workersMin,
    controlMsMax: timeoutMs,
  });
  const weights = new WeightUpdates({
    sidecar,
    pool,
    clock: wallClock,
    later,
    timeoutMs,
    modelNames: options.model.names,
    notice: log.weightsNotice,
    held: log.weightsHeld,
    ...(journals && {
      keep: (self: WeightUpdates) => kept.write({ sidecar, pool, weights: self }),
    }),
  });
  kept.restore({ sidecar, pool, weights }, log.failed);
  if (before !== null) log.weightsChanged(before.epoch, before.version);
  const learned = new LearnedEpochs({
    sidecar,
    pool,
    weights,
    clock: wallClock,
    notice: log.weightsNotice,
  });
  const engines = new PoolCalls({ pool, sidecar, later });
  const { text, openTextThread: openThread } = options.model;
  const encoder =
    openThread === null
      ? new EngineEncoder(engines, ENCODER_LIMITS)
      : new ThreadedEncoder({ text, openThread, limits: ENCODER_LIMITS });
  const chats = new ChatRenderer({ engines, encoder, rendered: log.chatRendered });
  const served = { sidecar, pool, weights, kept, learned, engines, encoder, chats };
  return { options, front, log, timers, saved, kv, history, journals, ...served };
}

/** The requests and rollouts that journals hold. @throws AppError invalid_config: a journal is of something else. */
function savedIn(journals: RunJournals | null): Saved {
  const runs = (journals?.takeSaved() ?? []).map((run) => ({ run, request: savedRequest(run) }));
  return {
    requests: runs.flatMap(({ request }) => request ?? []),
    rollouts: runs.flatMap(({ run, request }) => (request === null ? savedRollout(run) : [])),
  };
}

function sidecarOf(
  options: ComposeOptions,
  parts: Pick<Parts, "kv" | "history" | "timers" | "log"> & { readonly epoch: WeightEpoch },
): Sidecar {
  const { kv, history, timers, epoch, log } = parts;
  const { policy, draft, chunkTokens } = options;
  return new Sidecar({
    rollout: {
      policy,
      draft,
      chunkTokens,
      epoch,
      pool: kv,
      clock: wallClock,
      core: loadCore(),
      later: timers.afterwards,
      ...(history && { history }),
    },
    vocabularySize: options.model.text.vocabularySize,
    ...(options.limits && { limits: options.limits }),
    random: randomWord,
    failed: log.failed,
  });
}
