// An iteration that was recorded, as a simulation needs it: who asked for what and when, the engines, and what their steps
// took. Everything is from the report's chunks; step times are fitted as the scheduler fits them (`core/schedule/pace.ts`).

import { AppError, InvalidFieldError } from "../../core/base/errors.ts";
import { type WorkerId, workerId } from "../../core/base/ids.ts";
import type { ChunkRow, ResponseTimeline } from "../../core/rollout/timeline.ts";
import { Paces, type Span } from "../../core/schedule/pace.ts";
import type { TracedRun } from "../trace/report.ts";
import type { EngineTimes, Speculation } from "./engine.ts";
import { type EngineModel, type GroupModel, meanOf } from "./simulation.ts";

export interface Recording {
  readonly name: string;
  readonly wallS: number;
  /** In the order in which they arrived. */
  readonly groups: readonly GroupModel[];
  readonly engines: readonly EngineModel[];
  readonly tokensMax: number;
  /** Whether a request that moved found its KV on the other engine. */
  readonly movesKv: boolean;
  /** Median deviation of the recorded steps from the fitted step times, relative to these. */
  readonly error: number;
  /** Mean over the engines of the time of a step with one row, and what each further row adds. */
  readonly stepMs: number;
  readonly rowMs: number;
  /** Output tokens that a step made of a request, on average: above 1 drafts were accepted. */
  readonly tokensPerStep: number;
  /** Responses that had not finished, which count as far as they had come. */
  readonly unfinished: number;
}

/** A chunk from its first token on. */
interface Decoding {
  readonly startMs: number;
  readonly endMs: number;
  readonly steps: number;
  readonly drafted: number;
}

/** Time from a chunk's dispatch to its first token, and the tokens whose KV was computed or loaded in it. */
interface Begin {
  readonly ms: number;
  readonly tokens: number;
}

/** Chunks by what is learnt from them. */
interface Learned {
  readonly decoding: Map<WorkerId, Decoding[]>;
  readonly computed: Begin[];
  readonly loaded: Begin[];
  steps: number;
  tokens: number;
  drafted: number;
}

/** @throws InvalidFieldError, AppError usage: it cannot be simulated. */
export function recordingOf({ name, timeline }: TracedRun, where: string): Recording {
  const { responses, responses_left_out: leftOut, workers } = timeline;
  if (leftOut > 0) {
    const problem = `is ${leftOut}: a report that keeps all chunks of the iteration is required`;
    throw new InvalidFieldError({ where, field: "responses_left_out", problem });
  }
  const ran = responses.filter(({ tokens }) => tokens > 0);
  const [first] = ran;
  if (first === undefined) throw new AppError("usage", `${where}: ${name} has no response`);
  if (!Number.isInteger(first.prompt_tokens)) {
    const problem = "is missing: this version and later ones record it";
    throw new InvalidFieldError({ where, field: "prompt_tokens", problem });
  }
  const learned = learnedFrom(ran);
  const paces = new Paces();
  for (const [id, chunks] of learned.decoding) {
    for (const span of spansOf(chunks)) paces.observe(id, span);
  }
  if (paces.error === 0) {
    throw new AppError("usage", `${where}: ${name} is too short to learn the engines' step times`);
  }
  const rows = 1 + learned.drafted / learned.steps;
  const rate = learned.tokens / learned.steps;
  const movesKv = learned.loaded.length > 0;
  const prefillMs = msPerToken(learned.computed);
  const transferMs = msPerToken(learned.loaded);
  const speculation = rate > 1 ? constantDrafts(rate, rows) : null;
  const known = workerId(learned.decoding.keys().next().value ?? 0);
  const typicalMs = (paces.stepMs(known, 0) ?? 0) / paces.of(known);
  const engines = workers.map(({ worker, slots, kv_tokens: kvTokens }) => {
    const rowMs = paces.rowMs(workerId(worker));
    const baseMs = typicalMs * paces.of(workerId(worker));
    const times: EngineTimes = {
      kvBytesPerToken: 0,
      stepMs: (_, stepRows) => baseMs + stepRows * rowMs,
      prefillMs: (tokens) => tokens * prefillMs,
      transferMs: (tokens) => tokens * transferMs,
    };
    return { slots, kvTokens, times, speculation };
  });
  return {
    name,
    wallS: Math.max(...ran.map(lastMs)) / 1000,
    groups: groupsOf(ran),
    engines,
    tokensMax: ran.reduce((most, { tokens_max: tokens }) => Math.max(most, tokens), 1),
    movesKv,
    error: paces.error,
    stepMs: meanOf(engines.map(({ times }) => times.stepMs(1, 1, 0))),
    rowMs: meanOf(workers.map(({ worker }) => paces.rowMs(workerId(worker)))),
    tokensPerStep: rate,
    unfinished: ran.filter(({ end_ms: end }) => end === null).length,
  };
}

function learnedFrom(responses: readonly ResponseTimeline[]): Learned {
  const computed: Begin[] = [];
  const loaded: Begin[] = [];
  const learned: Learned = {
    decoding: new Map(),
    computed,
    loaded,
    steps: 0,
    tokens: 0,
    drafted: 0,
  };
  for (const { prompt_tokens: promptTokens, chunks } of responses) {
    let context = promptTokens;
    let before: number | null = null;
    for (const chunk of chunks) {
      const [worker, startMs, , firstMs, tokens, kvTokens] = chunk;
      learnChunk(learned, chunk);
      if (worker !== before && firstMs !== null) {
        const missing = context - (kvTokens ?? 0);
        const isLoaded = missing < context / 2;
        const begin = { ms: firstMs - startMs, tokens: isLoaded ? context : missing };
        (isLoaded ? loaded : computed).push(begin);
      }
      before = worker;
      context += tokens;
    }
  }
  return learned;
}

function learnChunk(learned: Learned, chunk: ChunkRow): void {
  const [worker, , endMs, firstMs, tokens, , draftedTokens, acceptedTokens] = chunk;
  if (firstMs === null || endMs === null || endMs <= firstMs) return;
  // The first token is there when decoding begins.
  const made = tokens - 1;
  const steps = made - Math.min(made, acceptedTokens ?? 0);
  if (steps <= 0) return;
  const drafted = draftedTokens ?? 0;
  learned.steps += steps;
  learned.tokens += made;
  learned.drafted += drafted;
  const decoding = { startMs: firstMs, endMs, steps, drafted };
  learned.decoding.getOrInsertComputed(workerId(worker), () => []).push(decoding);
}

/** Spans of an engine: as many as `Paces` keeps. */
const SPANS = 16;

/** The work of an engine in even parts of its time. */
function spansOf(chunks: readonly Decoding[]): Span[] {
  const fromMs = Math.min(...chunks.map(({ startMs }) => startMs));
  const toMs = Math.max(...chunks.map(({ endMs }) => endMs));
  const spanMs = (toMs - fromMs) / SPANS;
  const spans = Array.from({ length: SPANS }, (_, i) => {
    const beginMs = fromMs + i * spanMs;
    return { beginMs, coveredMs: beginMs, busyMs: 0, requestMs: 0, steps: 0, drafted: 0 };
  });
  for (const { startMs, endMs, steps, drafted } of chunks.toSorted(byStart)) {
    for (const span of spans) {
      const begin = Math.max(startMs, span.beginMs);
      const end = Math.min(endMs, span.beginMs + spanMs);
      if (begin >= end) continue;
      const part = (end - begin) / (endMs - startMs);
      span.requestMs += end - begin;
      span.steps += part * steps;
      span.drafted += part * drafted;
      span.busyMs += Math.max(0, end - Math.max(begin, span.coveredMs));
      span.coveredMs = Math.max(end, span.coveredMs);
    }
  }
  return spans.filter(({ steps }) => steps >= 1);
}

const byStart = (a: Decoding, b: Decoding): number => a.startMs - b.startMs;

/** A token's time in the quarter that was fastest, counted in tokens: in the others something else was waited for. */
function msPerToken(begins: readonly Begin[]): number {
  const sorted = begins.toSorted((a, b) => a.ms / a.tokens - b.ms / b.tokens);
  const all = sorted.reduce((sum, { tokens }) => sum + tokens, 0);
  let counted = 0;
  for (const { ms, tokens } of sorted) {
    counted += tokens;
    if (counted >= all / 4) return ms / tokens;
  }
  return 0;
}

/** Every step makes as many tokens of a request, and verifies as many rows, as the recorded ones did on average. */
function constantDrafts(rate: number, rows: number): Speculation {
  return {
    plan: (running) => {
      for (const run of running) {
        run.rate = rate;
        run.rows = rows;
      }
      return 0;
    },
  };
}

/** In the order in which they were submitted. What was carried into the iteration was there at its begin. */
function groupsOf(responses: readonly ResponseTimeline[]): GroupModel[] {
  const submitted = responses.toSorted((a, b) => a.request - b.request);
  const groups = Map.groupBy(submitted, ({ group }) => group);
  const models = [...groups.values()].map((members) => ({
    promptTokens: members[0]?.prompt_tokens ?? 0,
    lengths: members.map(({ tokens }) => tokens),
    atMs: Math.max(0, Math.min(...members.map(({ joined_ms: joined }) => joined))),
  }));
  return models.sort((a, b) => a.atMs - b.atMs);
}

/** When the response ended, or its last chunk that has. */
function lastMs({ end_ms: endMs, chunks }: ResponseTimeline): number {
  return endMs ?? Math.max(0, ...chunks.map(([, , end]) => end ?? 0));
}
