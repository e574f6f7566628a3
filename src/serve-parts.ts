// The interface of a feature of the server, and the parts that every feature gets: engines, requests and weights.

import { randomWord, wallClock } from "./app.ts";
import { type WeightEpoch, weightEpoch } from "./core/base/ids.ts";
import { type HeldWeights, lastWeights, savedWeights } from "./core/journal/held-weights.ts";
import type { IterationSummary } from "./core/rollout/iteration-span.ts";
import { loadCore } from "./core/wasm/load.ts";
import { LearnedEpochs } from "./fleet/learned-epochs.ts";
import { type Member, WorkerPool } from "./fleet/pool.ts";
import { WeightUpdates } from "./fleet/updates.ts";
import type { EmbeddedKvPool } from "./host/embedded-pool.ts";
import type { RunJournals } from "./host/journal-file.ts";
import { type Timers, timersOf } from "./host/timers.ts";
import type { ServeOptions } from "./serve-options.ts";
import { EngineEncoder, PoolCalls } from "./server/engine-calls.ts";
import type { PromptHistory } from "./server/history/prompt-history.ts";
import type { AccessEntry, HttpServer, Served } from "./server/http.ts";
import type { Kept } from "./server/kept.ts";
import { ChatRenderer, type RenderedBy } from "./server/openai/rendering.ts";
import { type SavedRequest, savedRequest } from "./server/openai/request-journals.ts";
import { type SavedRollout, savedRollout } from "./server/rollouts/known.ts";
import type { Route } from "./server/route.ts";
import { Sidecar, type SidecarObserver } from "./server/sidecar.ts";
import type { WorkerRegistry } from "./server/worker-registry.ts";
import { type EncoderLimits, ThreadedEncoder } from "./text/encoder.ts";

const EPOCH = weightEpoch(0);
/** A million tokens of English, and what the slower of the two kinds of tokenizer takes for them. */
const ENCODER_LIMITS: EncoderLimits = { charactersMax: 4 * 1024 * 1024, msMax: 30_000 };

export interface Feature {
  readonly routes?: readonly Route[];
  readonly sockets?: Served["sockets"];
  readonly observer?: SidecarObserver;
  readonly workerChanged?: (member: Member) => void;
  /** Called after a weight update with the seconds for which it held generation. */
  readonly weightsHeld?: (seconds: number) => void;
  /** Called with each chat that has become a prompt. */
  readonly chatRendered?: (by: RenderedBy, seconds: number) => void;
  readonly iterationEnded?: (summary: IterationSummary) => void;
  readonly answered?: (entry: AccessEntry) => void;
  /** Memory kept for finished work, by kind: /metrics shows it. */
  readonly kept?: Readonly<Record<string, () => Kept>>;
  /** All requests have ended, and no new one comes. */
  readonly drained?: () => void;
  /** The server stops: before the rollout does. */
  readonly close?: () => void;
  /** The rollout has stopped, and connections are open. */
  readonly stopped?: () => Promise<void>;
}

/** Resources that are opened before the server serves, and closed after it. */
export interface Opened {
  readonly http: HttpServer;
  readonly kv: EmbeddedKvPool;
  readonly registry: WorkerRegistry;
  readonly history: PromptHistory | null;
  readonly journals: RunJournals | null;
}

export type Parts = ReturnType<typeof partsOf>;

/** Events go to `features`, which may be added until the workers are opened. @throws AppError: the core cannot be loaded. */
export function partsOf(options: ServeOptions, opened: Opened, features: readonly Feature[]) {
  const { journals, history } = opened;
  const timers = timersOf(options.events.failed);
  const later = timers.afterwards;
  const saved = savedIn(journals);
  // The weights that were current when an earlier process ended.
  const held = journals?.weights.held ?? null;
  // The first record of an epoch counts: the weights file's, as journals of runs do not know what became of the engines.
  const journaled = [
    ...(held === null ? [] : [{ ...held, run: { epochs: [] } }]),
    ...[...saved.requests, ...saved.rollouts],
  ];
  const before = lastWeights(journaled);
  const pool = new WorkerPool({
    before,
    sources: options.sources,
    later,
    controlMsMax: options.weightsTimeoutMs,
    changed: (member) => {
      for (const { workerChanged } of features) workerChanged?.(member);
    },
    workersMin: options.workersMin ?? 1,
  });
  pool.canaries.restore(held?.canaries, held?.epoch === before?.epoch);
  const epoch = before?.epoch ?? EPOCH;
  const sidecar = sidecarOf(options, { kv: opened.kv, history, timers, epoch });
  const heldNow = (): HeldWeights => {
    const { epoch } = sidecar.rollout;
    const now = { epoch, version: weights.version(epoch), ...pool.held };
    if (!weights.isUpdating) return now;
    return { ...now, base: now.base === "first" ? "unknown" : now.base, doubted: "all" };
  };
  const keepWeights = () => {
    const canaries = pool.canaries.stateIn(sidecar.rollout.epoch);
    const { isAwake } = pool;
    journals?.weights.write({ ...heldNow(), canaries, isAwake, isOpen: weights.isOpen });
  };
  const weights: WeightUpdates = new WeightUpdates({
    ...{ sidecar, pool, clock: wallClock, later },
    modelNames: options.model.names,
    ...(before === null ? {} : { base: before.base }),
    timeoutMs: options.weightsTimeoutMs,
    notice: (notice) => options.events.weightsNotice(notice),
    held: (seconds) => {
      for (const { weightsHeld } of features) weightsHeld?.(seconds);
    },
    ...(journals && {
      kept: () => journals.weights.settled(),
      changed: keepWeights,
    }),
  });
  for (const one of savedWeights(journaled)) weights.name(one.epoch, one.version);
  if (before !== null) options.events.weightsChanged(before.epoch, before.version);
  // It resolves at once, as nothing runs.
  weights.restore(held?.isAwake ?? null, held?.isOpen === true).catch(options.events.failed);
  const learned = new LearnedEpochs({
    ...{ sidecar, pool, weights, clock: wallClock, later },
    notice: (notice) => options.events.weightsNotice(notice),
  });
  const engines = new PoolCalls({ pool, sidecar, later });
  const texts = textsOf(options, engines, features);
  return {
    ...{ ...opened, ...texts, options, timers, saved, pool, sidecar, weights, learned, engines },
    /** The weights in service, for journals. */
    held: heldNow,
    /** Writes them where another process finds them. */
    keepWeights,
  };
}

/** Requests and rollouts of an earlier process. @throws AppError invalid_config: a journal is of something else. */
function savedIn(journals: RunJournals | null) {
  const requests: SavedRequest[] = [];
  const rollouts: SavedRollout[] = [];
  for (const run of journals?.takeSaved() ?? []) {
    const request = savedRequest(run);
    if (request === null) rollouts.push(savedRollout(run));
    else requests.push(request);
  }
  return { requests, rollouts };
}

/** Makers of tokens from texts, and of prompts from chats. */
function textsOf({ model }: ServeOptions, engines: PoolCalls, features: readonly Feature[]) {
  const { text, openTextThread: openThread } = model;
  const encoder =
    openThread === null
      ? new EngineEncoder(engines, ENCODER_LIMITS)
      : new ThreadedEncoder({ text, openThread, limits: ENCODER_LIMITS });
  const rendered = (by: RenderedBy, seconds: number) => {
    for (const { chatRendered } of features) chatRendered?.(by, seconds);
  };
  return { encoder, chats: new ChatRenderer({ engines, encoder, rendered }) };
}

function sidecarOf(
  options: ServeOptions,
  parts: Pick<Opened, "kv" | "history"> & { timers: Timers; epoch: WeightEpoch },
): Sidecar {
  const { kv, history, timers, epoch } = parts;
  const { policy, draft, chunkTokens } = options;
  return new Sidecar({
    rollout: {
      ...{ policy, draft, chunkTokens, epoch, pool: kv, clock: wallClock, core: loadCore() },
      later: timers.afterwards,
      ...(history && { lengthPrior: history.prior }),
    },
    vocabularySize: options.model.text.vocabularySize,
    ...(options.limits && { limits: options.limits }),
    random: randomWord,
    failed: options.events.failed,
  });
}
