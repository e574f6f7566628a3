// Turns timelines into the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Of each run:
// a process for the iteration (its length, its tail, waiting requests), and one for each worker with a thread for each
// slot, on which chunks are slices, and counters of its load. A request that moves has an arrow from chunk to chunk.

import type { ChunkRow, ResponseTimeline, WorkerTimeline } from "../../core/rollout/timeline.ts";
import type { TracedRun } from "./report.ts";

/** An event of the format; times are whole microseconds. */
export interface TraceEvent {
  readonly ph: "X" | "C" | "M" | "b" | "e" | "s" | "f";
  readonly name: string;
  readonly pid: number;
  readonly tid: number;
  readonly ts: number;
  readonly cat?: string;
  readonly dur?: number;
  /** Perfetto refuses flows whose id is a text. */
  readonly id?: number;
  readonly bp?: "e";
  readonly args?: Readonly<Record<string, unknown>>;
}

export interface TraceFile {
  readonly displayTimeUnit: "ms";
  readonly traceEvents: readonly TraceEvent[];
}

/** Range of process numbers for one run: more than it has workers. */
const RUN_PIDS = 100_000;
const ITERATION_TID = 1;
/** Share of responses in the tail, as in the reports (paper, Fig. 8). */
const TAIL_SHARE = 0.1;

/** A chunk with what the trace needs of its response. Times in whole microseconds. */
interface Slice {
  readonly response: ResponseTimeline;
  readonly chunk: ChunkRow;
  /** Time at which the response joined. */
  readonly joined: number;
  readonly start: number;
  /** End of the chunk, after `start`. */
  readonly end: number;
  /** The worker as a process, and one of its slots as a thread. */
  readonly place: { readonly pid: number; tid: number };
}

export function traceOf(runs: readonly TracedRun[]): TraceFile {
  let lastId = 0;
  const nextId = () => {
    lastId += 1;
    return lastId;
  };
  const traceEvents = runs.flatMap((run, i) => eventsOf(run, (i + 1) * RUN_PIDS, nextId));
  return { displayTimeUnit: "ms", traceEvents };
}

/** The events of one run: metadata first, then by time. */
function eventsOf({ name, timeline }: TracedRun, pid: number, nextId: () => number): TraceEvent[] {
  const { responses, workers } = timeline;
  const times = responses.flatMap(({ joined_ms, end_ms, chunks }) => [
    ...[joined_ms, end_ms ?? joined_ms],
    ...chunks.map(([, startMs, endMs]) => endMs ?? startMs),
  ]);
  const startMs = times.reduce((least, at) => Math.min(least, at), times[0] ?? 0);
  const endMs = times.reduce((most, at) => Math.max(most, at), startMs);
  const at = (ms: number) => Math.round((ms - startMs) * 1000);
  const slices = responses.map((response) => slicesOf(response, { pid, at, endMs }));
  takeSlots(slices.flat());
  const tail = at(tailStartOf(timeline) ?? startMs);
  const metadata = [
    ...named(pid, `${name}: iteration`, pid),
    meta("thread_name", { pid, tid: ITERATION_TID }, { name: "iteration" }),
    ...workers.flatMap((worker) => workerMetadata(worker, { name, pid, slices: slices.flat() })),
  ];
  const end = Math.max(1, at(endMs));
  const ts = Math.min(tail, end - 1);
  const whole = { ph: "X", pid, tid: ITERATION_TID, cat: "iteration" } as const;
  const args = { responses: responses.length, responses_left_out: timeline.responses_left_out };
  const events: TraceEvent[] = [
    { ...whole, name: "iteration", ts: 0, dur: end, args },
    { ...whole, name: "tail", ts, dur: end - ts },
    ...slices.flatMap((ofOne) => responseEvents(ofOne, { pid, tail, nextId })),
    ...workers.flatMap((worker) => loadEvents(worker, pidOf(pid, worker.worker), at)),
  ];
  return [...metadata, ...events.sort((a, b) => a.ts - b.ts)];
}

function pidOf(pid: number, worker: number): number {
  return pid + 1 + worker;
}

function slicesOf(
  response: ResponseTimeline,
  { pid, at, endMs }: { pid: number; at: (ms: number) => number; endMs: number },
): Slice[] {
  return response.chunks.map((chunk) => {
    const start = at(chunk[1]);
    // One that still ran when the report was written ends with the trace; none is shorter than the unit of time.
    const end = Math.max(start + 1, at(chunk[2] ?? endMs));
    const place = { pid: pidOf(pid, chunk[0]), tid: 0 };
    return { response, chunk, joined: at(response.joined_ms), start, end, place };
  });
}

/** Assigns each chunk the first free slot of its worker. Engines with queues may need more of them than they have. */
function takeSlots(slices: Slice[]): void {
  const ends = new Map<number, number[]>();
  for (const { start, end, place } of slices.toSorted((a, b) => a.start - b.start)) {
    const busy = ends.getOrInsertComputed(place.pid, () => []);
    const free = busy.findIndex((until) => until <= start);
    const slot = free < 0 ? busy.length : free;
    busy[slot] = end;
    place.tid = slot + 1;
  }
}

/** Time at which all but the last tenth of the responses had finished. */
function tailStartOf({
  responses,
  responses_left_out: leftOut,
}: TracedRun["timeline"]): number | null {
  const ends = responses.flatMap(({ end_ms }) => end_ms ?? []).toSorted((a, b) => a - b);
  const total = responses.length + leftOut;
  return ends[total - Math.ceil(total * TAIL_SHARE) - 1 - leftOut] ?? null;
}

function responseEvents(
  slices: readonly Slice[],
  { pid, tail, nextId }: { pid: number; tail: number; nextId: () => number },
): TraceEvent[] {
  const runs = slices.flatMap((slice, i): TraceEvent[] => {
    const { response, start: ts, end, place } = slice;
    const name = `${response.group}/${response.index}`;
    const args = argsOf(slice, ts >= tail);
    const run = { ph: "X", cat: "chunk", name, ...place, ts, dur: end - ts, args } as const;
    const before = slices[i - 1];
    if (before === undefined || before.place.pid === place.pid) return [run];
    const flow = { name: "move", cat: "move", id: nextId() };
    return [
      run,
      { ph: "s", ...flow, ...before.place, ts: before.end - 1 },
      { ph: "f", bp: "e", ...flow, ...place, ts },
    ];
  });
  const waits = waitsOf(slices).flatMap(({ response, from, to, after }): TraceEvent[] => {
    const wait = { name: "waiting", cat: "waiting", id: nextId(), pid, tid: 0 };
    const args = { group: response.group, index: response.index, after_worker: after };
    return [
      { ph: "b", ...wait, ts: from, args },
      { ph: "e", ...wait, ts: to },
    ];
  });
  return [...runs, ...waits];
}

function argsOf({ response, chunk }: Slice, isTail: boolean): Record<string, unknown> {
  const [, startMs, , firstMs, tokens, kvTokens, drafted, accepted, preemptions, end] = chunk;
  return {
    group: response.group,
    index: response.index,
    request: response.request,
    tokens,
    response_tokens: response.tokens,
    kv_tokens_loaded: kvTokens,
    preemptions,
    in_tail: isTail,
    ...(firstMs !== null && { ms_to_first_token: Math.round((firstMs - startMs) * 1000) / 1000 }),
    ...(drafted !== null && { drafted_tokens: drafted, accepted_tokens: accepted }),
    ...(end !== null && { end }),
  };
}

interface Wait {
  readonly response: ResponseTimeline;
  readonly from: number;
  readonly to: number;
  /** Worker of the chunk before; null: the response had not begun. */
  readonly after: number | null;
}

/** The waits of a response: before its first chunk, and between chunks. */
function waitsOf(slices: readonly Slice[]): Wait[] {
  return slices.flatMap(({ response, joined, start: to }, i) => {
    const before = slices[i - 1];
    const from = before?.end ?? joined;
    return to <= from ? [] : [{ response, from, to, after: before?.chunk[0] ?? null }];
  });
}

function workerMetadata(
  worker: WorkerTimeline,
  of: { name: string; pid: number; slices: readonly Slice[] },
): TraceEvent[] {
  const pid = pidOf(of.pid, worker.worker);
  const tids = of.slices.flatMap(({ place }) => (place.pid === pid ? place.tid : []));
  return [
    ...named(pid, `${of.name}: ${worker.name}`, pid),
    ...[...new Set(tids)].flatMap((tid) => [
      meta("thread_name", { pid, tid }, { name: `slot ${tid}` }),
      meta("thread_sort_index", { pid, tid }, { sort_index: tid }),
    ]),
  ];
}

function loadEvents(worker: WorkerTimeline, pid: number, at: (ms: number) => number): TraceEvent[] {
  return worker.at_ms.flatMap((atMs, i) => {
    const event = { ph: "C", pid, tid: 0, ts: Math.max(0, at(atMs)) } as const;
    const tokens = worker.kv_tokens_used[i] ?? 0;
    const load = { running: worker.running[i], waiting: worker.waiting[i] };
    return [
      { ...event, name: "KV in use:", args: { tokens } },
      { ...event, name: "engine:", args: load },
    ];
  });
}

function named(pid: number, name: string, order: number): TraceEvent[] {
  return [
    meta("process_name", { pid, tid: 0 }, { name }),
    meta("process_sort_index", { pid, tid: 0 }, { sort_index: order }),
  ];
}

function meta(
  name: string,
  place: { pid: number; tid: number },
  args: Readonly<Record<string, unknown>>,
): TraceEvent {
  return { ph: "M", name, ...place, ts: 0, args };
}
