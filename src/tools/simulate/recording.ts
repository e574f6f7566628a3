// An iteration that was recorded, as a simulation needs it: who asked for what and when, the engines, and what their steps
// took. Everything is from the report's chunks; step times are fitted as the scheduler fits them (`core/schedule/pace.ts`).

import { AppError, InvalidFieldError } from "../../core/base/errors.ts";
import { type WorkerId, workerId } from "../../core/base/ids.ts";
import type { ChunkRow, ResponseTimeline, WorkerTimeline } from "../../core/rollout/timeline.ts";
import { Paces, type Span } from "../../core/schedule/pace.ts";
import type { TracedRun } from "../trace/report.ts";
import type { EngineModel, EngineTimes, Speculation } from "./engine.ts";
import type { GroupModel } from "./simulation.ts";

/** Description of the recording in a report. The keys are a public format. */
export interface Recorded {
  readonly name: string;
  readonly wall_s: number;
  readonly responses: number;
  /** Number of responses that had not finished; they count with the tokens that they had. */
  readonly unfinished: number;
  readonly engines: number;
  /** Time of a step with one row on the median engine, and what each further row adds. */
  readonly step_ms: number;
  readonly row_ms: number;
  /** Median deviation of the recorded steps from the fitted step times, relative to these. */
  readonly step_error: number;
  /** Output tokens per step and request, on average: above 1 drafts were accepted. */
  readonly tokens_per_step: number;
  /** Whether a request that moved found its KV on the other engine. */
  readonly moves_kv: boolean;
}

export interface RecordedIteration {
  readonly recorded: Recorded;
  /** Groups in the order of their arrival. */
  readonly groups: readonly GroupModel[];
  readonly engines: readonly EngineModel[];
  readonly tokensMax: number;
  readonly movesKv: boolean;
}

/** A piece of an engine's time. `tokens`: those that it decoded, or that got KV, in it. */
interface Piece {
  readonly startMs: number;
  readonly endMs: number;
  readonly tokens: number;
}

/** A chunk from its first token on. */
interface Decoding extends Piece {
  readonly steps: number;
  readonly drafted: number;
}

/** What the chunks of one engine say. */
interface Learned {
  readonly decoding: Decoding[];
  /** Times from the dispatch of a chunk to its first token, where its KV was computed, and where it was loaded. */
  readonly computed: Piece[];
  readonly loaded: Piece[];
  /** As `computed`, with the prefills of preempted requests, whose time is only known to lie within their chunk's. */
  readonly prefills: Piece[];
}

/** Makes a simulation's input of a run. @throws InvalidFieldError, AppError usage: the run cannot be simulated. */
export function recordingOf({ name, timeline }: TracedRun, where: string): RecordedIteration {
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
  const all = [...learned.values()];
  const prefillMs = msPerToken(all.flatMap(({ computed }) => merged(computed)));
  const transferMs = msPerToken(all.flatMap(({ loaded }) => merged(loaded)));
  const spans = workers.flatMap((samples) => {
    const engine = learned.get(samples.worker);
    const found = engine === undefined ? [] : spansOf(engine, samples, prefillMs);
    return found.map((span) => ({ id: workerId(samples.worker), span }));
  });
  const steps = stepTimesOf(spans);
  if (steps === null) {
    throw new AppError("usage", `${where}: ${name} is too short to learn the engines' step times`);
  }
  const { baseMs, rowMs, paces } = steps;
  const decoding = all.flatMap((engine) => engine.decoding);
  const sum = (key: "steps" | "tokens" | "drafted") =>
    decoding.reduce((total, chunk) => total + chunk[key], 0);
  const rows = 1 + sum("drafted") / sum("steps");
  const rate = sum("tokens") / sum("steps");
  const movesKv = all.some(({ loaded }) => loaded.length > 0);
  const speculation = rate > 1 ? constantDrafts(rate, rows) : null;
  const engines = workers.map(({ worker, slots, kv_tokens: kvTokens }) => {
    const pace = paces.of(workerId(worker));
    const times: EngineTimes = {
      kvBytesPerToken: 0,
      stepMs: (_, stepRows) => pace * (baseMs + stepRows * rowMs),
      prefillMs: (tokens) => tokens * prefillMs,
      transferMs: (tokens) => tokens * transferMs,
    };
    return { slots, kvTokens, times, speculation };
  });
  return {
    recorded: {
      name,
      wall_s: Math.max(...ran.map(lastMs)) / 1000,
      responses: ran.length,
      unfinished: ran.filter(({ end_ms: end }) => end === null).length,
      engines: engines.length,
      step_ms: baseMs + rowMs,
      row_ms: rowMs,
      step_error: paces.error,
      tokens_per_step: rate,
      moves_kv: movesKv,
    },
    groups: groupsOf(ran),
    engines,
    tokensMax: tokensMaxOf(ran, workers, where),
    movesKv,
  };
}

function learnedFrom(responses: readonly ResponseTimeline[]): Map<number, Learned> {
  const learned = new Map<number, Learned>();
  const nothing = (): Learned => ({ decoding: [], computed: [], loaded: [], prefills: [] });
  for (const { prompt_tokens: promptTokens, chunks } of responses) {
    let context = promptTokens;
    let before: number | null = null;
    for (const chunk of chunks) {
      const [worker, startMs, endMs, firstMs, tokens, kvTokens, , , preemptions] = chunk;
      const engine = learned.getOrInsertComputed(worker, nothing);
      engine.decoding.push(...decodingOf(chunk));
      if (worker !== before && firstMs !== null) {
        const missing = context - (kvTokens ?? 0);
        const isLoaded = missing < context / 2;
        const begin = { startMs, endMs: firstMs, tokens: isLoaded ? context : missing };
        (isLoaded ? engine.loaded : engine.computed).push(begin);
        engine.prefills.push({ ...begin, tokens: missing });
      }
      const again = preemptions ?? 0;
      if (again > 0 && endMs !== null) {
        engine.prefills.push({ startMs, endMs, tokens: again * (context + tokens / 2) });
      }
      before = worker;
      context += tokens;
    }
  }
  return learned;
}

/** The decoding part of a chunk; empty: the chunk did not run all the time, because its engine took its KV. */
function decodingOf([, , endMs, firstMs, made, , drafted, accepted, preemptions]: ChunkRow) {
  if (firstMs === null || endMs === null || endMs <= firstMs || (preemptions ?? 0) > 0) return [];
  // The first token is there when decoding begins.
  const tokens = made - 1;
  const steps = tokens - Math.min(tokens, accepted ?? 0);
  if (steps <= 0) return [];
  return [{ startMs: firstMs, endMs, steps, tokens, drafted: drafted ?? 0 }];
}

/** Number of spans per engine: as many as `Paces` keeps. */
const SPANS = 16;
/** Minimum share of decoding in a span's time: prefill's time is an estimate. */
const DECODING_LEAST = 1 / 4;

/**
 * The decoding of an engine in equal parts of its time. Numbers of running requests come from its samples; estimated
 * prefill time is subtracted.
 */
function spansOf(
  { decoding, prefills }: Learned,
  samples: WorkerTimeline,
  prefillMs: number,
): Span[] {
  const fromMs = Math.min(...decoding.map(({ startMs }) => startMs));
  const spanMs = (Math.max(...decoding.map(({ endMs }) => endMs)) - fromMs) / SPANS;
  return Array.from({ length: SPANS }, (_, i) => fromMs + i * spanMs).flatMap((startMs) => {
    const endMs = startMs + spanMs;
    /** Sum over the pieces, each as far as it lies in the span. */
    const sum = <P extends Piece>(pieces: readonly P[], amountOf: (piece: P) => number) =>
      pieces.reduce((total, piece) => {
        const inside = Math.min(piece.endMs, endMs) - Math.max(piece.startMs, startMs);
        if (inside <= 0) return total;
        return total + (inside / (piece.endMs - piece.startMs)) * amountOf(piece);
      }, 0);
    const steps = sum(decoding, (chunk) => chunk.steps);
    const running = runningIn(samples, startMs, endMs);
    if (steps < 1 || running === 0) return [];
    const prefillTokens = sum(prefills, ({ tokens }) => tokens);
    const left = Math.max(DECODING_LEAST, 1 - (prefillTokens * prefillMs) / spanMs);
    const requestMs = left * sum(decoding, (chunk) => chunk.endMs - chunk.startMs);
    const drafted = sum(decoding, (chunk) => chunk.drafted);
    return { steps, drafted, prefilled: 0, requestMs, busyMs: requestMs / running };
  });
}

/** Mean number of running requests in a time span, while any ran: each sample holds until the next one; 0: not known. */
function runningIn({ at_ms: times, running }: WorkerTimeline, startMs: number, endMs: number) {
  let busyMs = 0;
  let requestMs = 0;
  for (const [k, atMs] of times.entries()) {
    const ms = Math.min(endMs, times[k + 1] ?? endMs) - Math.max(startMs, atMs);
    const count = running[k] ?? 0;
    if (ms <= 0 || count === 0) continue;
    busyMs += ms;
    requestMs += ms * count;
  }
  return busyMs === 0 ? 0 : requestMs / busyMs;
}

/**
 * Step times: the ratio of row to base time and the paces are those that the scheduler would learn, which ignores outliers;
 * the scale makes all steps together take the recorded time. null: there are too few spans.
 */
function stepTimesOf(spans: readonly { readonly id: WorkerId; readonly span: Span }[]) {
  const paces = new Paces();
  for (const { id, span } of spans) paces.observe(id, span);
  const [first] = spans;
  if (paces.error === 0 || first === undefined) return null;
  const baseMs = (paces.stepMs(first.id, 0) ?? 0) / paces.of(first.id);
  const rowMs = paces.rowMs(first.id) / paces.of(first.id);
  let recorded = 0;
  let expected = 0;
  for (const { id, span } of spans) {
    const rows = (span.requestMs / span.busyMs) * (1 + span.drafted / span.steps);
    recorded += span.requestMs;
    expected += span.steps * paces.of(id) * (baseMs + rowMs * rows);
  }
  const size = recorded / expected;
  return { baseMs: size * baseMs, rowMs: size * rowMs, paces };
}

/** Maximum time between first tokens of one step. */
const TOGETHER_MS = 1;

/** Times between first tokens: an engine prefills, or loads, one after the other; first tokens of one step count as one. */
function merged(begins: readonly Piece[]): Piece[] {
  const all: Piece[] = [];
  for (const { startMs, endMs, tokens } of begins.toSorted((a, b) => a.endMs - b.endMs)) {
    const last = all.at(-1);
    if (last !== undefined && endMs - last.endMs < TOGETHER_MS) {
      all[all.length - 1] = { ...last, tokens: last.tokens + tokens };
    } else {
      all.push({ startMs: Math.max(startMs, last?.endMs ?? 0), endMs, tokens });
    }
  }
  return all;
}

/** Time per token in the fastest quarter, counted in tokens: in the others the engine waited for something else. */
function msPerToken(begins: readonly Piece[]): number {
  const timeOf = ({ startMs, endMs, tokens }: Piece): number => (endMs - startMs) / tokens;
  const sorted = begins.toSorted((a, b) => timeOf(a) - timeOf(b));
  let left = sorted.reduce((sum, { tokens }) => sum + tokens, 0) / 4;
  const quarter = sorted.find(({ tokens }) => {
    left -= tokens;
    return left <= 0;
  });
  return quarter === undefined ? 0 : timeOf(quarter);
}

/** Drafting in which every step makes as many tokens of a request, and verifies as many rows, as recorded on average. */
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

/** Limit of a response's tokens, as far as every engine has KV for it; the longest response has to fit. */
function tokensMaxOf(
  responses: readonly ResponseTimeline[],
  workers: readonly WorkerTimeline[],
  where: string,
): number {
  const most = (key: "prompt_tokens" | "tokens" | "tokens_max") =>
    responses.reduce((found, response) => Math.max(found, response[key]), 1);
  const kvTokens = Math.min(...workers.map(({ kv_tokens: tokens }) => tokens));
  const room = kvTokens - most("prompt_tokens") - 1;
  if (room >= most("tokens")) return Math.min(room, most("tokens_max"));
  const needed = most("prompt_tokens") + most("tokens") + 1;
  const problem = `is ${kvTokens}; the longest prompt and response need ${needed}`;
  throw new InvalidFieldError({ where, field: "kv_tokens", problem });
}

/** Groups in the order of their arrival. Responses carried into the iteration arrive at its start. */
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

/** Time at which the response ended, or its last chunk that has ended. */
function lastMs({ end_ms: endMs, chunks }: ResponseTimeline): number {
  return endMs ?? Math.max(0, ...chunks.map(([, , end]) => end ?? 0));
}
