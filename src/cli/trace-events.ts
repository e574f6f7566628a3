// Turns timelines into the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Of each run:
// a process for the iteration (its length, its tail, waiting requests), and one for each worker with a thread for each
// slot, on which chunks are slices, and counters of its load. A request that moves has an arrow from chunk to chunk.

import type { TracedChunk, TracedResponse, TracedRun, TracedTimeline } from "./trace-report.ts";

/** Times are whole microseconds. */
export interface TraceEvent {
  readonly ph: "X" | "C" | "M" | "i" | "b" | "e" | "s" | "f";
  readonly name: string;
  readonly pid: number;
  readonly tid: number;
  readonly ts: number;
  readonly cat?: string;
  readonly dur?: number;
  /** Perfetto refuses flows whose id is a text. */
  readonly id?: number;
  readonly s?: "g";
  readonly bp?: "e";
  readonly args?: Readonly<Record<string, unknown>>;
}

export interface TraceFile {
  readonly displayTimeUnit: "ms";
  readonly traceEvents: readonly TraceEvent[];
}

/** Process numbers of one run: more than it has workers. */
const RUN_PIDS = 100_000;
const ITERATION_TID = 1;
/** As in the reports (paper, Fig. 8). */
const TAIL_SHARE = 0.1;

/** A chunk with what the trace needs of its response. Times in whole microseconds. */
interface Slice {
  readonly response: TracedResponse;
  /** When the response joined. */
  readonly joined: number;
  readonly worker: number;
  readonly start: number;
  /** After `start`. */
  readonly end: number;
  readonly chunk: TracedChunk;
}

export function traceOf(runs: readonly TracedRun[]): TraceFile {
  let lastId = 0;
  const nextId = () => {
    lastId += 1;
    return lastId;
  };
  const traceEvents = runs.flatMap((run, i) =>
    new RunTrace(run, (i + 1) * RUN_PIDS, nextId).events(),
  );
  return { displayTimeUnit: "ms", traceEvents };
}

class RunTrace {
  readonly #run: TracedRun;
  readonly #timeline: TracedTimeline;
  readonly #pid: number;
  readonly #nextId: () => number;
  readonly #startMs: number;
  readonly #endMs: number;
  readonly #tailStart: number;
  readonly #events: TraceEvent[] = [];
  readonly #metadata: TraceEvent[] = [];

  constructor(run: TracedRun, pid: number, nextId: () => number) {
    this.#run = run;
    this.#nextId = nextId;
    this.#timeline = run.timeline;
    this.#pid = pid;
    const times = run.timeline.responses.flatMap(({ joined_ms, end_ms, chunks }) => [
      joined_ms,
      ...(end_ms === null ? [] : [end_ms]),
      ...chunks.map(([, startMs, endMs]) => endMs ?? startMs),
    ]);
    this.#startMs = times.reduce((least, at) => Math.min(least, at), times[0] ?? 0);
    this.#endMs = times.reduce((most, at) => Math.max(most, at), this.#startMs);
    this.#tailStart = this.#tailStartOf(run.timeline);
  }

  /** Metadata first, then by time. */
  events(): TraceEvent[] {
    const slices = this.#timeline.responses.map((response) => this.#slicesOf(response));
    this.#iteration(slices);
    const lanes = this.#lanes(slices.flat());
    for (const ofOne of slices) this.#response(ofOne, lanes);
    for (const worker of this.#timeline.workers) this.#worker(worker, lanes);
    this.#events.sort((a, b) => a.ts - b.ts);
    return [...this.#metadata, ...this.#events];
  }

  #at(ms: number): number {
    return Math.round((ms - this.#startMs) * 1000);
  }

  #slicesOf(response: TracedResponse): Slice[] {
    return response.chunks.map((chunk) => {
      const [worker, startMs, endMs] = chunk;
      const start = this.#at(startMs);
      // One that still ran when the report was written ends with the trace; none is shorter than the unit of time.
      const end = Math.max(start + 1, this.#at(endMs ?? this.#endMs));
      return { response, joined: this.#at(response.joined_ms), worker, start, end, chunk };
    });
  }

  #pidOf(worker: number): number {
    return this.#pid + 1 + worker;
  }

  /** When all but the last tenth of the responses had finished. */
  #tailStartOf({ responses, responses_left_out: leftOut }: TracedTimeline): number {
    const ends = responses.flatMap(({ end_ms }) => end_ms ?? []).toSorted((a, b) => a - b);
    const total = responses.length + leftOut;
    const last = ends[total - Math.ceil(total * TAIL_SHARE) - 1 - leftOut];
    return this.#at(last ?? this.#startMs);
  }

  #iteration(slices: readonly (readonly Slice[])[]): void {
    const [pid, tid] = [this.#pid, ITERATION_TID];
    const { responses, responses_left_out: leftOut } = this.#timeline;
    this.#name(pid, `${this.#run.name}: iteration`, 0);
    this.#metadata.push(metadata("thread_name", pid, tid, { name: "iteration" }));
    const end = Math.max(1, this.#at(this.#endMs));
    const args = { responses: responses.length, responses_left_out: leftOut };
    const slice = { ph: "X", pid, tid, cat: "iteration" } as const;
    this.#events.push({ ...slice, name: "iteration", ts: 0, dur: end, args });
    const ts = Math.min(this.#tailStart, end - 1);
    this.#events.push({ ...slice, name: "tail", ts, dur: end - ts });
    this.#events.push({ ph: "i", s: "g", name: "tail begins", cat: "iteration", pid, tid, ts });
    const running = slices.flat().map(({ start, end }) => [start, end] as const);
    this.#level("running", running);
    this.#level(
      "waiting",
      slices.flatMap(waitsOf).map(({ from, to }) => [from, to]),
    );
  }

  /** A counter of how many of the intervals hold a time. Perfetto calls a counter by its name and that of the value. */
  #level(of: string, intervals: readonly (readonly [number, number])[]): void {
    const steps = intervals.flatMap(([from, to]) => [
      { ts: from, by: 1 },
      { ts: to, by: -1 },
    ]);
    steps.sort((a, b) => a.ts - b.ts);
    let level = 0;
    for (const [i, { ts, by }] of steps.entries()) {
      level += by;
      if (steps[i + 1]?.ts === ts) continue;
      const args = { [of]: level };
      this.#events.push({ ph: "C", name: "requests:", pid: this.#pid, tid: 0, ts, args });
    }
  }

  /** The slot of each chunk on its worker: the first that is free. Queues of engines make more lanes than slots. */
  #lanes(slices: Slice[]): ReadonlyMap<Slice, number> {
    const lanes = new Map<Slice, number>();
    const ends = new Map<number, number[]>();
    for (const slice of slices.toSorted((a, b) => a.start - b.start)) {
      const busy = ends.get(slice.worker) ?? [];
      ends.set(slice.worker, busy);
      const free = busy.findIndex((end) => end <= slice.start);
      const lane = free < 0 ? busy.length : free;
      busy[lane] = slice.end;
      lanes.set(slice, lane);
    }
    return lanes;
  }

  #response(slices: readonly Slice[], lanes: ReadonlyMap<Slice, number>): void {
    for (const [i, slice] of slices.entries()) {
      const { response, start, end } = slice;
      const place = { pid: this.#pidOf(slice.worker), tid: (lanes.get(slice) ?? 0) + 1 };
      const args = argsOf(slice, start >= this.#tailStart);
      const name = `${response.group}/${response.index}`;
      this.#events.push({
        ph: "X",
        cat: "chunk",
        name,
        ...place,
        ts: start,
        dur: end - start,
        args,
      });
      const before = slices[i - 1];
      if (before === undefined || before.worker === slice.worker) continue;
      const from = { pid: this.#pidOf(before.worker), tid: (lanes.get(before) ?? 0) + 1 };
      const flow = { name: "move", cat: "move", id: this.#nextId() };
      this.#events.push({ ph: "s", ...flow, ...from, ts: before.end - 1 });
      this.#events.push({ ph: "f", bp: "e", ...flow, ...place, ts: start });
    }
    for (const { response, from, to, after } of waitsOf(slices)) {
      const id = this.#nextId();
      const wait = { name: "waiting", cat: "waiting", id, pid: this.#pid, tid: 0 };
      const args = { group: response.group, index: response.index, after_worker: after };
      this.#events.push({ ph: "b", ...wait, ts: from, args }, { ph: "e", ...wait, ts: to });
    }
  }

  #worker(worker: TracedTimeline["workers"][number], lanes: ReadonlyMap<Slice, number>): void {
    const pid = this.#pidOf(worker.worker);
    this.#name(pid, `${this.#run.name}: ${worker.name}`, 1 + worker.worker);
    let used = 0;
    for (const [slice, lane] of lanes) {
      if (slice.worker === worker.worker) used = Math.max(used, lane + 1);
    }
    for (let tid = 1; tid <= used; tid += 1) {
      this.#metadata.push(metadata("thread_name", pid, tid, { name: `slot ${tid}` }));
      this.#metadata.push(metadata("thread_sort_index", pid, tid, { sort_index: tid }));
    }
    for (const [i, atMs] of worker.at_ms.entries()) {
      const at = { ph: "C", pid, tid: 0, ts: Math.max(0, this.#at(atMs)) } as const;
      const tokens = worker.kv_tokens_used[i] ?? 0;
      const share =
        worker.kv_tokens === 0 ? 0 : Math.round((1000 * tokens) / worker.kv_tokens) / 10;
      const [running, waiting] = [worker.running[i], worker.waiting[i]];
      this.#events.push({ ...at, name: "KV in use:", args: { tokens } });
      this.#events.push({ ...at, name: "KV in use:", args: { "% of the budget": share } });
      this.#events.push({ ...at, name: "engine:", args: { running, waiting } });
    }
  }

  #name(pid: number, name: string, order: number): void {
    this.#metadata.push(metadata("process_name", pid, 0, { name }));
    this.#metadata.push(metadata("process_sort_index", pid, 0, { sort_index: this.#pid + order }));
  }
}

function metadata(
  name: string,
  pid: number,
  tid: number,
  args: Readonly<Record<string, unknown>>,
): TraceEvent {
  return { ph: "M", name, pid, tid, ts: 0, args };
}

function argsOf({ response, chunk }: Slice, isTail: boolean): Record<string, unknown> {
  const [, startMs, , firstMs, tokens, kvTokens, drafted, accepted, preemptions, end] = chunk;
  const args = {
    group: response.group,
    index: response.index,
    request: response.request,
    tokens,
    response_tokens: response.tokens,
    kv_tokens_loaded: kvTokens,
    preemptions,
    in_tail: isTail,
  };
  return {
    ...args,
    ...(firstMs === null
      ? {}
      : { ms_to_first_token: Math.round((firstMs - startMs) * 1000) / 1000 }),
    ...(drafted === null ? {} : { drafted_tokens: drafted, accepted_tokens: accepted }),
    ...(end === null ? {} : { end }),
  };
}

interface Wait {
  readonly response: TracedResponse;
  readonly from: number;
  readonly to: number;
  /** On which the chunk before ran; null: it had not begun. */
  readonly after: number | null;
}

/** Before the first chunk, and between chunks. */
function waitsOf(slices: readonly Slice[]): Wait[] {
  return slices.flatMap((slice, i) => {
    const { response, joined, start: to } = slice;
    const before = slices[i - 1];
    const from = before?.end ?? joined;
    return to <= from ? [] : [{ response, from, to, after: before?.worker ?? null }];
  });
}
