// /metrics as a scraper reads it: every name is there from the start, counters only grow, and what others count is
// told as they count it.

import { beforeEach, expect, test } from "bun:test";
import { NO_POOL_STATS, NO_WORKER_STATS } from "../../../test/suite/no-figures.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { groupId, type WorkerId, weightEpoch, workerId } from "../../core/base/ids.ts";
import { RequestBuffer } from "../../core/request/buffer.ts";
import { Meter } from "../../core/rollout/meter.ts";
import type { EngineWorker, WorkerStats } from "../../core/rollout/worker.ts";
import { EngineTime } from "./effective-time.ts";
import { Metrics } from "./metrics.ts";

const STATS: WorkerStats = {
  ...NO_WORKER_STATS,
  running: 2,
  kvTokensUsed: 10,
  steps: 100,
  busyMs: 1500,
  draftMs: 10,
  outputTokens: 50,
  prefillTokens: 40,
  recomputedTokens: 3,
  draftedTokens: 8,
  acceptedTokens: 6,
  drafts: 4,
  kvLoads: 1,
};
const POOL = { ...NO_POOL_STATS, memoryBytes: 5, puts: 2, hits: 1, misses: 7 };
const ENGINE: WorkerId = workerId(0);
let meter: Meter;
let metrics: Metrics;

beforeEach(() => {
  meter = new Meter({ nowMs: () => 0 });
  const time = new EngineTime();
  time.at(0, { serving: 3, size: 4 });
  time.at(2000, null);
  metrics = new Metrics({
    modelName: "tiny",
    meter,
    drift: { engines: new Map() },
    unfinished: () => 3,
    epoch: () => 1,
    engineName: (worker) => `http://gpu-${worker}:8000`,
    paces: () => ({ of: () => 2.5, error: 0.1 }),
    servingState: () => "paused",
    servingStates: ["serving", "paused"],
    staleWorkers: () => 0,
    sessions: () => ({ turns: 0, promptTokens: 0, cachedTokens: 0, edited: 0 }),
    engineTime: () => time,
    workerStates: () => ({ ready: 1, fenced: 0, down: 0 }),
    kvPool: () => POOL,
    stream: () => ({ clients: 2, framesSent: 9, bytesSent: 90, closed: { 1013: 1 } }),
    plugins: () => [],
    kept: () => [{ of: "groups", bytes: 700, bytesMax: 1000, count: 2 }],
  });
});

/** Values by name and labels, without the model's. */
async function scraped(): Promise<Map<string, number>> {
  const lines = (await metrics.text()).split("\n").filter((line) => line !== "" && line[0] !== "#");
  return new Map(
    lines.map((line) => {
      const [, name = "", value] = /^(.*) (\S+)$/.exec(line) ?? [];
      return [name.replace(/,?model_name="tiny"/, "").replace("{}", ""), Number(value)];
    }),
  );
}

test("metrics: a counter ends in _total, and nothing else does", async () => {
  const types = [...(await metrics.text()).matchAll(/^# TYPE (\S+) (\S+)$/gm)];
  expect(types.length).toBeGreaterThan(30);
  for (const [, name = "", type] of types) {
    expect([name, name.endsWith("_total")]).toEqual([name, type === "counter"]);
    expect(name).toMatch(/^(vllm:|foretoken_|process_)/);
  }
});

test("metrics: an engine's counters are there from its first word, at 0 too", async () => {
  metrics.stats(ENGINE, STATS);
  const values = await scraped();
  expect(values.get('vllm:num_preemptions_total{engine="http://gpu-0:8000"}')).toBe(0);
  expect(values.get('vllm:prompt_tokens_total{engine="http://gpu-0:8000"}')).toBe(40);
  expect(values.get('foretoken_engine_busy_seconds_total{engine="http://gpu-0:8000"}')).toBe(1.5);
});

test("metrics: a restarted engine adds to earlier counts", async () => {
  metrics.stats(ENGINE, STATS);
  metrics.stats(ENGINE, { ...STATS, steps: 110, prefillTokens: 45 });
  metrics.stats(ENGINE, { ...STATS, steps: 5, prefillTokens: 4 });
  expect((await scraped()).get('vllm:prompt_tokens_total{engine="http://gpu-0:8000"}')).toBe(49);
});

test("metrics: external counts are exported unchanged, scrape after scrape", async () => {
  meter.tokens(ENGINE, 12);
  meter.count("late_tokens", 2);
  await scraped();
  meter.tokens(ENGINE, 5);
  metrics.answered(200);
  metrics.answered(413);
  const values = await scraped();
  expect(values.get("vllm:generation_tokens_total")).toBe(17);
  expect(values.get("foretoken_late_tokens_total")).toBe(2);
  expect(values.get("foretoken_lost_tokens_total")).toBe(0);
  expect(values.get("foretoken_kv_pool_misses_total")).toBe(7);
  expect(values.get("foretoken_stream_clients")).toBe(2);
  expect(values.get('foretoken_stream_closed_total{code="1013"}')).toBe(1);
  expect(values.get('foretoken_http_responses_total{status="413"}')).toBe(1);
  expect(values.get("foretoken_requests_queued")).toBe(3);
  const kept = ["kept", "kept_bytes", "kept_bytes_max"];
  expect(kept.map((name) => values.get(`foretoken_${name}{of="groups"}`))).toEqual([2, 700, 1000]);
});

test("metrics: what waits for an engine is no sign of overload; what waits in one is", async () => {
  const capacity = { slots: 4, kvTokens: 4096, contextTokens: 1024, kvBytesPerToken: 8 };
  meter.worker({ workerId: ENGINE, capacity } as EngineWorker);
  meter.stats(ENGINE, { ...STATS, running: 1, waiting: 1 });
  const values = await scraped();
  expect(values.get('vllm:num_requests_waiting{engine="http://gpu-0:8000"}')).toBe(1);
  const waiting = "vllm:num_requests_waiting_by_reason";
  expect(values.get(`${waiting}{engine="http://gpu-0:8000",reason="capacity"}`)).toBe(1);
  expect(values.get(`${waiting}{engine="http://gpu-0:8000",reason="deferred"}`)).toBe(0);
  expect(values.get("foretoken_requests_queued")).toBe(1);
  expect(values.get('foretoken_engine_pace{engine="http://gpu-0:8000"}')).toBe(2.5);
  expect(values.get("foretoken_engine_pace_error")).toBe(0.1);
  const budget =
    'engine="http://gpu-0:8000",block_size="1",num_gpu_blocks="4096",kv_cache_size_tokens="4096"';
  expect(values.get(`vllm:cache_config_info{${budget}}`)).toBe(1);
});

/** Every name in the queries of vLLM's dashboard (examples/observability/prometheus_grafana/grafana.json, 0.11 and 0.32). */
const DASHBOARD = [
  "vllm:e2e_request_latency_seconds_bucket",
  "vllm:e2e_request_latency_seconds_sum",
  "vllm:e2e_request_latency_seconds_count",
  "vllm:prompt_tokens_total",
  "vllm:generation_tokens_total",
  "vllm:inter_token_latency_seconds_bucket",
  "vllm:time_per_output_token_seconds_bucket",
  "vllm:time_per_output_token_seconds_sum",
  "vllm:time_per_output_token_seconds_count",
  "vllm:num_requests_running",
  "vllm:num_requests_waiting",
  "vllm:time_to_first_token_seconds_bucket",
  "vllm:time_to_first_token_seconds_sum",
  "vllm:time_to_first_token_seconds_count",
  "vllm:kv_cache_usage_perc",
  "vllm:request_prompt_tokens_bucket",
  "vllm:request_generation_tokens_bucket",
  "vllm:request_success_total",
  "vllm:request_queue_time_seconds_sum",
  "vllm:request_prefill_time_seconds_sum",
  "vllm:request_decode_time_seconds_sum",
  "vllm:request_max_num_generation_tokens_sum",
];

test("metrics: every query of vLLM's own dashboard finds data after a request", async () => {
  const sampling = samplingOf({ tokensMax: 9 });
  const buffer = new RequestBuffer();
  const group = buffer.add({
    groupId: groupId("g"),
    prompt: Int32Array.of(1, 2),
    size: 1,
    sampling,
  });
  const [request] = group.requests;
  if (request === undefined) throw new Error("a group of one has a request");
  const capacity = { slots: 4, kvTokens: 4096, contextTokens: 1024, kvBytesPerToken: 8 };
  meter.worker({ workerId: ENGINE, capacity } as EngineWorker);
  meter.stats(ENGINE, STATS);
  metrics.stats(ENGINE, STATS);
  const { response } = request;
  response.joinedMs = 0;
  response.openChunk(ENGINE, weightEpoch(0));
  response.startedMs = 1000;
  response.firstTokenMs = 1500;
  response.append(0, Int32Array.of(5, 6, 7), Float32Array.of(-1, -1, -1));
  response.finish = "stop";
  response.finishedMs = 2500;
  metrics.finished(request);
  const text = await metrics.text();
  const missing = DASHBOARD.filter((name) => {
    const line = new RegExp(`^${name}\\{[^}]*model_name="tiny"[^}]*\\} [0-9.e+-]+$`, "m");
    return !line.test(text);
  });
  expect(missing).toEqual([]);
  const values = await scraped();
  expect(values.get("vllm:request_queue_time_seconds_sum")).toBe(1);
  expect(values.get("vllm:time_to_first_token_seconds_sum")).toBe(1.5);
  expect(values.get("vllm:request_decode_time_seconds_sum")).toBe(1);
  expect(values.get("vllm:inter_token_latency_seconds_sum")).toBe(0.5);
  expect(values.get("vllm:request_prompt_tokens_sum")).toBe(2);
});

test("metrics: the serving state, durations, and the process itself", async () => {
  metrics.iterationEnded({ seconds: 60, tailS: 12 });
  metrics.weightsUpdated(3);
  const values = await scraped();
  expect(values.get('foretoken_state{state="paused"}')).toBe(1);
  expect(values.get('foretoken_state{state="serving"}')).toBe(0);
  expect(values.get("foretoken_iteration_seconds_sum")).toBe(60);
  expect(values.get("foretoken_iteration_tail_seconds_sum")).toBe(12);
  expect(values.get("foretoken_weight_update_seconds_sum")).toBe(3);
  expect(values.get("process_resident_memory_bytes")).toBeGreaterThan(0);
  expect([...values.keys()].filter((name) => name.startsWith("nodejs_"))).toEqual([]);
});

test("ettr: engine time in service, times the share of tokens that were kept", async () => {
  const values = await scraped();
  expect(values.get("foretoken_ettr_ratio")).toBe(0.75);
  expect(values.get('foretoken_engine_seconds_total{state="serving"}')).toBe(6);
  expect(values.get('foretoken_engine_seconds_total{state="away"}')).toBe(2);
});
