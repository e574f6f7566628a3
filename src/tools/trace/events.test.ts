// The trace of a report: what Perfetto needs of every event, and that slices of one thread never overlap. The real
// Perfetto opens such a trace in test/packages/perfetto.test.ts.

import { expect, test } from "bun:test";
import type { ChunkRow } from "../../core/rollout/timeline.ts";
import { type TraceEvent, traceOf } from "./events.ts";
import type { TracedRun } from "./report.ts";

type Times = readonly [worker: number, startMs: number, endMs: number | null];

const chunkOf = ([worker, startMs, endMs]: Times): ChunkRow => [
  ...([worker, startMs, endMs, startMs + 1, 5, 0, 4, 3, 0] as const),
  endMs === null ? null : "used_up",
];

/** `responses`: the chunks of each, which all joined at 100 ms. */
function runOf(name: string, responses: readonly (readonly Times[])[]): TracedRun {
  const worker = { slots: 8, kv_tokens: 200, at_ms: [100, 150], running: [0, 2] };
  const workers = [0, 1].map((id) => ({
    ...worker,
    worker: id,
    name: `engine ${id}`,
    waiting: [0, 0],
    kv_tokens_used: [0, 50],
    recomputing_ms: [0, 0],
    output_tokens: [0, 9],
  }));
  const timeline = {
    responses: responses.map((chunks, index) => ({
      group: "g",
      index,
      request: index,
      joined_ms: 100,
      finish_reason: null,
      prompt_tokens: 4,
      tokens_max: 64,
      end_ms: chunks.at(-1)?.[2] ?? null,
      tokens: 10,
      chunks: chunks.map(chunkOf),
    })),
    responses_left_out: 0,
    workers,
  };
  return { name, timeline };
}

const RUN = runOf("seer", [
  [
    [0, 101, 120],
    [1, 130.5, 200],
  ],
  [[0, 101, 140]],
  [[0, 120, 180]],
  [[1, 101, null]],
]);

const of = (events: readonly TraceEvent[], ph: TraceEvent["ph"], cat?: string) =>
  events.filter((event) => event.ph === ph && (cat === undefined || event.cat === cat));

test("trace: chunks are slices on the first free slot of their worker, named by group and response", () => {
  const { traceEvents } = traceOf([RUN]);
  const chunks = of(traceEvents, "X", "chunk").map(({ name, pid, tid, ts, dur }) => {
    return [name, pid - 100_001, tid, ts, dur];
  });
  expect(chunks).toEqual([
    ["g/0", 0, 1, 1000, 19_000],
    ["g/1", 0, 2, 1000, 39_000],
    // A chunk that ran when the report was written ends with the trace.
    ["g/3", 1, 1, 1000, 99_000],
    ["g/2", 0, 1, 20_000, 60_000],
    ["g/0", 1, 2, 30_500, 69_500],
  ]);
  const names = of(traceEvents, "M").filter(({ name }) => name === "process_name");
  expect(names.map(({ args }) => args?.name)).toEqual([
    "seer: iteration",
    "seer: engine 0",
    "seer: engine 1",
  ]);
});

test("trace: every event has what the format asks for, whatever the times", () => {
  let seed = 20;
  const random = () => {
    seed = (seed * 1_103_515_245 + 12_345) % 2 ** 31;
    return seed / 2 ** 31;
  };
  const responses = Array.from({ length: 300 }, () => {
    let atMs = 100 + random() * 50;
    return Array.from({ length: 1 + Math.floor(random() * 5) }, (): Times => {
      const startMs = atMs + (random() < 0.3 ? 0 : random() * 5);
      atMs = startMs + (random() < 0.2 ? 0 : random() * 20);
      return [Math.floor(random() * 2), startMs, atMs];
    });
  });
  const { traceEvents } = traceOf([runOf("a", responses), runOf("b", responses)]);
  const ends = new Map<string, number>();
  const slices = new Set<string>();
  for (const event of traceEvents) {
    const { ph, ts, dur, pid, tid } = event;
    expect([Number.isSafeInteger(ts), ts >= 0, Number.isSafeInteger(pid)]).toEqual([
      true,
      true,
      true,
    ]);
    if (ph === "X") expect(Number.isSafeInteger(dur) && (dur ?? 0) > 0).toBe(true);
    if (ph !== "X" || event.cat !== "chunk") continue;
    const thread = `${pid} ${tid}`;
    expect(ts).toBeGreaterThanOrEqual(ends.get(thread) ?? 0);
    ends.set(thread, ts + (dur ?? 0));
    slices.add(`${thread} ${ts}`);
  }
  const flows = of(traceEvents, "f");
  expect(flows.length).toBeGreaterThan(100);
  expect(flows.every(({ pid, tid, ts }) => slices.has(`${pid} ${tid} ${ts}`))).toBe(true);
  for (const kind of [["s", "f"] as const, ["b", "e"] as const]) {
    const [begins, finishes] = kind.map((ph) => of(traceEvents, ph).map(({ id }) => id));
    expect(new Set(begins).size).toBe(begins?.length as number);
    expect(begins?.toSorted()).toEqual(finishes?.toSorted() as number[]);
  }
});
