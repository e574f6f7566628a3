// The parts that every feature of the server is made of: engines, requests and weights, in the order in which each needs
// those before it.

import { type WeightEpoch, weightEpoch } from "../core/base/ids.ts";
import { loadCore } from "../core/wasm/load.ts";
import { LearnedEpochs } from "../fleet/learned-epochs.ts";
import { WorkerPool } from "../fleet/pool.ts";
import { WeightUpdates } from "../fleet/updates.ts";
import type { OpenWait } from "../fleet/waits.ts";
import type { EmbeddedKvPool } from "../host/embedded-pool.ts";
import type { RunJournals } from "../host/journal-file.ts";
import { randomWord, wallClock } from "../host/system.ts";
import { type Timers, timersOf } from "../host/timers.ts";
import { EngineEncoder, PoolCalls } from "../server/engine-calls.ts";
import type { PromptHistory } from "../server/history/prompt-history.ts";
import { ChatRenderer } from "../server/openai/rendering.ts";
import { type SavedRequest, savedRequest } from "../server/openai/request-journals.ts";
import { type SavedRollout, savedRollout } from "../server/rollouts/known.ts";
import { Sidecar } from "../server/sidecar.ts";
import type { WorkerRegistry } from "../server/worker-registry.ts";
import { type EncoderLimits, ThreadedEncoder } from "../text/encoder.ts";
import { KeptWeights } from "./kept-weights.ts";
import type { OperatorFeed, OperatorLog } from "./operator-log.ts";
import type { ComposeOptions } from "./options.ts";

const EPOCH = weightEpoch(0);
/** Limits of a text: a million tokens of English, and the time that the slower kind of tokenizer takes for them. */
const ENCODER_LIMITS: EncoderLimits = { charactersMax: 4 * 1024 * 1024, msMax: 30_000 };

/** Resources that are opened before the sidecar, and closed after it. */
export interface Resources {
  readonly kv: EmbeddedKvPool;
  readonly history: PromptHistory | null;
  readonly journals: RunJournals | null;
}

/** The HTTP server in front of the sidecar, as far as features need it. */
export interface Front {
  readonly registry: WorkerRegistry;
  /** The body whose turn to be read comes next; null: none waits. */
  readonly bodyWait: () => OpenWait | null;
}

/** Requests and rollouts of an earlier process. */
interface Saved {
  readonly requests: readonly SavedRequest[];
  readonly rollouts: readonly SavedRollout[];
}

export interface Parts extends Resources {
  readonly options: ComposeOptions;
  /** The HTTP server; null: there is none, and the sidecar is used in this process alone. */
  readonly front: Front | null;
  /** The log that gets every event for the operator. */
  readonly log: OperatorLog;
  readonly timers: Timers;
  readonly saved: Saved;
  readonly pool: WorkerPool;
  readonly sidecar: Sidecar;
  readonly weights: WeightUpdates;
  readonly kept: KeptWeights;
  readonly learned: LearnedEpochs;
  readonly engines: PoolCalls;
  readonly encoder: EngineEncoder | ThreadedEncoder;
  readonly chats: ChatRenderer;
}

/** Makes the parts of a sidecar. @throws AppError invalid_config: a journal is of something else. */
export function partsOf(
  options: ComposeOptions,
  opened: Resources & { readonly feed: OperatorFeed; readonly front: Front | null },
): Parts {
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
  const requests: SavedRequest[] = [];
  const rollouts: SavedRollout[] = [];
  for (const run of journals?.takeSaved() ?? []) {
    const request = savedRequest(run);
    if (request === null) rollouts.push(savedRollout(run));
    else requests.push(request);
  }
  return { requests, rollouts };
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
