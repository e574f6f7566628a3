// The contents of an iteration's timeline: every chunk with its times, the latest responses of a very long one, and a bounded
// number of samples.

import { expect, test } from "bun:test";
import { NO_WORKER_STATS } from "../../../test/suite/no-figures.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { groupId, weightEpoch, workerId } from "../base/ids.ts";
import { RequestBuffer, type RolloutRequest } from "../request/buffer.ts";
import { CHUNK_COLUMNS, SAMPLES_MAX, TimelineRecorder } from "./timeline.ts";

const ENGINE = workerId(0);
const WORKERS = [
  {
    workerId: ENGINE,
    name: "engine 0",
    capacity: { slots: 4, kvTokens: 4096, contextTokens: 9, kvBytesPerToken: 0 },
  },
];
const STATS = { ...NO_WORKER_STATS, running: 2, waiting: 1, kvTokensUsed: 100 };

function requests(size: number): readonly RolloutRequest[] {
  const wanted = { prompt: Int32Array.of(1), sampling: samplingOf({ tokensMax: 8 }) };
  return new RequestBuffer().add({ groupId: groupId("g"), size, ...wanted }).requests;
}

/** A chunk of two tokens. */
function chunk({ response }: RolloutRequest, startMs: number): void {
  response.joinedMs ??= startMs;
  response.openChunk(ENGINE, weightEpoch(0), null, { startMs, tokensMax: 2, kvTokens: 7 });
  response.append(response.length, Int32Array.of(1, 2), new Float32Array(2));
  response.closeChunk(startMs + 10, null);
}

function end(request: RolloutRequest, endMs: number): void {
  request.response.finishedMs = endMs;
  request.response.finish = "stop";
  new RequestBuffer().move(request, "finished");
}

test("timeline: a row of every chunk, relative to the begin, and those of open responses", () => {
  const recorder = new TimelineRecorder();
  const [done, open] = requests(2);
  if (done === undefined || open === undefined) throw new Error("two were made");
  for (const startMs of [1000, 1020.1234]) chunk(done, startMs);
  chunk(open, 1005);
  end(done, 1031);
  recorder.finished(done);
  const { responses } = recorder.report({ startMs: 1000, open: [done, open], workers: WORKERS });
  expect(responses.map(({ chunks }) => chunks)).toEqual([
    [
      [0, 0, 10, null, 2, 7, null, null, 0, "used_up"],
      [0, 20.123, 30.123, null, 2, 7, null, null, 0, "used_up"],
    ],
    [[0, 5, 15, null, 2, 7, null, null, 0, "used_up"]],
  ]);
  expect(responses[0]).toMatchObject({ joined_ms: 0, end_ms: 31, finish_reason: "stop" });
  expect(responses[1]).toMatchObject({ end_ms: null, finish_reason: null, tokens: 2 });
  expect(responses[0]?.chunks[0]).toHaveLength(CHUNK_COLUMNS.length);
});

test("timeline: beyond its maximum it keeps the responses that finished last, and counts the others", () => {
  const recorder = new TimelineRecorder(150);
  for (const request of requests(1000)) {
    chunk(request, 0);
    chunk(request, 20);
    end(request, 40);
    recorder.finished(request);
  }
  const report = recorder.report({ startMs: 0, open: [], workers: WORKERS });
  expect(report.responses.map(({ index }) => index)).toEqual(
    Array.from({ length: 50 }, (_, i) => 950 + i),
  );
  expect(report.responses_left_out).toBe(950);
});

test("timeline: samples are bounded and cover the whole time; a new iteration begins empty", () => {
  const recorder = new TimelineRecorder();
  for (let ms = 0; ms < 1_000_000; ms += 5) recorder.sample(ENGINE, ms, STATS, 4);
  const [worker] = recorder.report({ startMs: 0, open: [], workers: WORKERS }).workers;
  const { length } = worker?.at_ms ?? [];
  expect(length).toBeLessThan(SAMPLES_MAX);
  expect(length).toBeGreaterThanOrEqual(SAMPLES_MAX / 2);
  expect([worker?.running.length, worker?.kv_tokens_used.length]).toEqual([length, length]);
  expect(worker?.at_ms[0]).toBe(0);
  expect(worker?.at_ms.at(-1)).toBeGreaterThan(990_000);
  recorder.clear();
  expect(recorder.report({ startMs: 0, open: [], workers: WORKERS }).workers[0]?.at_ms).toEqual([]);
});

test("timeline: time of recomputing is that of the rows which were computed again", () => {
  const timeOf = (baseRows: number) => {
    const recorder = new TimelineRecorder();
    const before = { ...STATS, steps: 10, busyMs: 100, prefillTokens: 50, outputTokens: 70 };
    recorder.sample(ENGINE, 0, before, baseRows);
    // Ten steps of 100 rows in all: 60 prefilled, 30 of them again, and 40 decoded, of which 10 were drafted.
    const work = { steps: 20, busyMs: 300, prefillTokens: 110, outputTokens: 105 };
    const drafts = { recomputedTokens: 30, draftedTokens: 10, acceptedTokens: 5 };
    recorder.sample(ENGINE, 1000, { ...before, ...work, ...drafts }, baseRows);
    const [worker] = recorder.report({ startMs: 0, open: [], workers: WORKERS }).workers;
    return worker?.recomputing_ms;
  };
  expect(timeOf(20)).toEqual([0, (200 * 30) / (20 * 10 + 100)]);
  expect(timeOf(Number.MAX_SAFE_INTEGER)).toEqual([0, (200 * 30) / (100 + 100)]);
});
