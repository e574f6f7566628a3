// The chunks of an iteration and the load of its workers over time, for its report and its trace. It keeps chunks of
// the responses that finished last, and a bounded number of samples of each worker. It changes nothing.

import type { WorkerId } from "../base/ids.ts";
import type { RolloutRequest } from "../request/buffer.ts";
import type { Chunk } from "../request/response.ts";
import type { EngineWorker, WorkerStats } from "./worker.ts";

/** An array of a chunk holds these, in this order. Times are milliseconds since the begin of the iteration. */
export const CHUNK_COLUMNS = [
  "worker",
  "start_ms",
  "end_ms",
  "first_token_ms",
  "tokens",
  "kv_tokens_loaded",
  "drafted_tokens",
  "accepted_tokens",
  "preemptions",
  "end",
] as const;

/** null: not known. `end_ms` and `end` null: it still ran. */
export type ChunkRow = readonly [
  worker: number,
  startMs: number,
  endMs: number | null,
  firstTokenMs: number | null,
  tokens: number,
  kvTokensLoaded: number | null,
  draftedTokens: number | null,
  acceptedTokens: number | null,
  preemptions: number | null,
  end: string | null,
];

export type Timeline = Readonly<ReturnType<TimelineRecorder["report"]>>;
export type ResponseTimeline = Timeline["responses"][number];
export type WorkerTimeline = Timeline["workers"][number];

/** Room for the trace of a whole iteration: 16,384 responses of 16 chunks. A response counts as one chunk more. */
const CHUNKS_MAX = 262_144 + 16_384;
export const SAMPLES_MAX = 1024;
const SAMPLE_MS = 10;

interface Sample
  extends Pick<WorkerStats, "running" | "waiting" | "kvTokensUsed" | "outputTokens"> {
  readonly atMs: number;
  readonly recomputingMs: number;
}

/** Samples of one worker: when they are full, every second one is dropped, and the next ones come half as often. */
class WorkerSamples {
  all: Sample[] = [];
  #everyMs = SAMPLE_MS;
  #recomputingMs = 0;
  #last: WorkerStats | null = null;

  add(atMs: number, stats: WorkerStats, baseRows: number): void {
    if (this.#last !== null) this.#recomputingMs += recomputedMs(this.#last, stats, baseRows);
    this.#last = stats;
    if (atMs - (this.all.at(-1)?.atMs ?? Number.NEGATIVE_INFINITY) < this.#everyMs) return;
    const { running, waiting, kvTokensUsed, outputTokens } = stats;
    const recomputingMs = this.#recomputingMs;
    this.all.push({ atMs, running, waiting, kvTokensUsed, recomputingMs, outputTokens });
    if (this.all.length < SAMPLES_MAX) return;
    this.all = this.all.filter((_, i) => i % 2 === 0);
    this.#everyMs *= 2;
  }
}

/** Time of rows computed again between two reports. A step takes its rows and `baseRows` more; unknown: twice its rows. */
function recomputedMs(before: WorkerStats, now: WorkerStats, baseRows: number): number {
  const again = Math.max(0, now.recomputedTokens - before.recomputedTokens);
  const since = (key: "prefillTokens" | "outputTokens" | "draftedTokens" | "acceptedTokens") =>
    Math.max(0, now[key] - before[key]);
  const decoded = Math.max(0, since("outputTokens") - since("acceptedTokens"));
  const rows = since("prefillTokens") + decoded + since("draftedTokens");
  const base = baseRows < Number.MAX_SAFE_INTEGER ? baseRows * (now.steps - before.steps) : rows;
  const busyMs = Math.max(0, now.busyMs - before.busyMs);
  return (busyMs * again) / Math.max(1, again, base + rows);
}

export class TimelineRecorder {
  readonly #chunksMax: number;
  #finished: ReturnType<typeof kept>[] = [];
  /** Responses before this index of `#finished` are left out. */
  #first = 0;
  /** And responses: one that was aborted before it ran has no chunk. */
  #chunks = 0;
  #leftOut = 0;
  readonly #samples = new Map<WorkerId, WorkerSamples>();

  constructor(chunksMax = CHUNKS_MAX) {
    this.#chunksMax = chunksMax;
  }

  clear(): void {
    this.#finished = [];
    this.#first = 0;
    this.#chunks = 0;
    this.#leftOut = 0;
    this.#samples.clear();
  }

  finished(request: RolloutRequest): void {
    this.#finished.push(kept(request));
    this.#chunks += 1 + request.response.chunks.length;
    while (this.#chunks > this.#chunksMax) {
      this.#chunks -= 1 + (this.#finished[this.#first]?.chunks.length ?? 0);
      this.#first += 1;
      this.#leftOut += 1;
    }
    if (this.#first <= this.#finished.length / 2) return;
    this.#finished = this.#finished.slice(this.#first);
    this.#first = 0;
  }

  forget(workerId: WorkerId): void {
    this.#samples.delete(workerId);
  }

  /** `baseRows`: the part of a step that does not depend on its rows, as a number of rows. */
  sample(id: WorkerId, nowMs: number, stats: WorkerStats, baseRows: number): void {
    const samples = this.#samples.getOrInsertComputed(id, () => new WorkerSamples());
    samples.add(nowMs, stats, baseRows);
  }

  /** `open`: requests of which some may not have finished. */
  report(about: {
    readonly startMs: number;
    readonly open: Iterable<RolloutRequest>;
    readonly workers: readonly Pick<EngineWorker, "workerId" | "name" | "capacity">[];
  }) {
    const { startMs, open, workers } = about;
    const since = (ms: number) => Math.round((ms - startMs) * 1000) / 1000;
    const begun = [...open].filter(
      ({ status, response }) => status !== "finished" && response.chunks.length > 0,
    );
    const all = [...this.#finished.slice(this.#first), ...begun.map(kept)];
    return {
      chunk_columns: CHUNK_COLUMNS as readonly string[],
      /** In the order in which they finished; unfinished ones follow. */
      responses: all.map(({ joinedMs, endMs, chunks, ...response }) => ({
        ...response,
        joined_ms: since(joinedMs),
        /** null: it has not finished. */
        end_ms: endMs === null ? null : since(endMs),
        chunks: chunks.flatMap((chunk) => rowOf(chunk, since)),
      })),
      /** Responses that finished before them, whose chunks are not kept. */
      responses_left_out: this.#leftOut,
      workers: workers.map(({ workerId, name, capacity }) => {
        const samples = this.#samples.get(workerId)?.all ?? [];
        return {
          worker: workerId as number,
          name,
          slots: capacity.slots,
          kv_tokens: capacity.kvTokens,
          at_ms: samples.map(({ atMs }) => since(atMs)),
          running: samples.map((sample) => sample.running),
          waiting: samples.map((sample) => sample.waiting),
          kv_tokens_used: samples.map((sample) => sample.kvTokensUsed),
          /** Time in which KV was computed again, up to here: the part of the engine's busy time that such rows took. */
          recomputing_ms: samples.map((sample) => Math.round(sample.recomputingMs)),
          /** Tokens that the engine has made, up to here. */
          output_tokens: samples.map((sample) => sample.outputTokens),
        };
      }),
    };
  }
}

/** The record of a finished response; its tokens are not kept. */
function kept({ spec, response }: RolloutRequest) {
  return {
    group: spec.groupId as string,
    index: spec.sampleIndex,
    request: spec.requestId as number,
    prompt_tokens: spec.prompt.length,
    tokens_max: response.tokensMax,
    finish_reason: response.finish as string | null,
    tokens: response.length,
    joinedMs: response.joinedMs ?? 0,
    endMs: response.finishedMs,
    chunks: response.chunks,
  };
}

/** Chunks that an earlier process ran have no times. */
function rowOf(chunk: Chunk, since: (ms: number) => number): ChunkRow[] {
  const { run, workerId, tokens } = chunk;
  if (run === undefined) return [];
  const at = (ms: number | null) => (ms === null ? null : since(ms));
  const { draftedTokens = null, acceptedTokens = null } = run.drafts ?? {};
  const times = [since(run.startMs), at(run.endMs), at(run.firstTokenMs)] as const;
  const drafts = [draftedTokens, acceptedTokens] as const;
  return [[workerId, ...times, tokens, run.kvTokens, ...drafts, run.preemptions, run.end]];
}
