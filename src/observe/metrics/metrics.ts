// Prometheus metrics: vLLM's names where they mean the same, ours with the prefix `foretoken_`. A row for each name says
// what it means and where its value is read; figures of a rollout have theirs in core/rollout/figures.ts.

import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import { type WorkerId, workerId } from "../../core/base/ids.ts";
import type { Telemetry } from "../../core/draft/service/message.ts";
import type { KvPoolStats } from "../../core/kv/pool.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import type { DriftGuard } from "../../core/rollout/drift-guard.ts";
import {
  type Figure,
  KV_MOVE_FIGURES,
  POOL_FIGURES,
  ROLLOUT_FIGURES,
  WORKER_FIGURES,
} from "../../core/rollout/figures.ts";
import type { Meter, Progress } from "../../core/rollout/meter.ts";
import type { SamplingTest } from "../../core/rollout/sampling-test.ts";
import type { WorkerStats } from "../../core/rollout/worker.ts";
import type { EngineTime } from "./effective-time.ts";
import { requestTimes } from "./request-times.ts";

export interface MetricsSources {
  readonly modelName: string;
  readonly meter: Meter;
  readonly drift: Pick<DriftGuard, "engines">;
  readonly unfinished: () => number;
  readonly epoch: () => number;
  /** An engine's name in labels: a server's URL. */
  readonly engineName: (worker: number) => string;
  /** Step time of a worker relative to the others', and the error of that estimate. */
  readonly paces: () => { of(worker: WorkerId): number; readonly error: number };
  readonly servingState: () => string;
  readonly servingStates: readonly string[];
  readonly staleWorkers: () => number;
  /** Counters of later turns of sessions. */
  readonly sessions: () => Readonly<
    Record<"turns" | "promptTokens" | "cachedTokens" | "edited", number>
  >;
  readonly engineTime: () => EngineTime;
  readonly workerStates: () => Readonly<Record<string, number>>;
  readonly kvPool: () => KvPoolStats;
  /** Memory kept for finished work, by kind. */
  readonly kept: () => readonly KeptLevel[];
  /** Figures of /v1/stream; `closed`: clients that the server disconnected, by close code. */
  readonly stream: () => Readonly<Record<"clients" | "framesSent" | "bytesSent", number>> & {
    readonly closed: Readonly<Record<number, number>>;
  };
  /** Engines that draft by the plugin, with their last telemetry. */
  readonly plugins: () => readonly PluginFigures[];
}

interface KeptLevel {
  readonly of: string;
  readonly bytes: number;
  readonly bytesMax: number;
  readonly count: number;
}

/** A plugin's telemetry of its engine; counters start with the engine. */
type PluginFigures = Omit<Telemetry, "kind"> & { readonly engine: string };

/** A value, and its labels in the order of the row's. */
type Value = readonly [value: number, ...labels: (string | number)[]];

/** A metric, with the function that reads its values at a scrape; a counter's name ends in `_total`. */
interface Row {
  readonly name: string;
  readonly help: string;
  readonly labels?: readonly string[];
  readonly read: (from: MetricsSources) => readonly Value[];
}

function single(name: string, help: string, value: (from: MetricsSources) => number): Row {
  return { name: `foretoken_${name}`, help, read: (from) => [[value(from)]] };
}

type SessionFigures = ReturnType<MetricsSources["sessions"]>;

function turns(name: string, help: string, value: (figures: SessionFigures) => number): Row {
  return single(`session_${name}_total`, help, (from) => value(from.sessions()));
}

/** A row with a value for each name in `counts`. */
function byName(
  name: string,
  help: string,
  label: string,
  counts: (from: MetricsSources) => Readonly<Record<string, number>>,
): Row {
  const read = (from: MetricsSources) =>
    Object.entries(counts(from)).map(([one, count]): Value => [count, one]);
  return { name: `foretoken_${name}`, help, labels: [label], read };
}

/** Rows for the figures (core/rollout/figures.ts) that have a metric. */
function totals<T>(figures: readonly Figure<T>[], source: (from: MetricsSources) => T): Row[] {
  return figures.flatMap(({ metric: name, help, read }): Row[] =>
    name === null ? [] : [{ name, help, read: (from) => [[read(source(from))]] }],
  );
}

type EngineLoad = Progress["workers"][number];

function perWorker(
  name: string,
  help: string,
  value: (load: EngineLoad, from: MetricsSources) => number,
): Row {
  const read = (from: MetricsSources) => {
    const { workers } = from.meter.progress();
    return workers.map((load): Value => [value(load, from), from.engineName(load.worker)]);
  };
  return { name, help, labels: ["engine"], read };
}

/** A gauge of each plugin: counters of an engine that restarts begin at 0 again. */
function perPlugin(name: string, help: string, value: (figures: PluginFigures) => number): Row {
  const read = ({ plugins }: MetricsSources) =>
    plugins().map((figures): Value => [value(figures), figures.engine]);
  return { name: `foretoken_plugin_${name}`, help, labels: ["engine"], read };
}

/** A row with two values of each engine: for positions with a draft token, and for the others. */
function perPositions(name: string, help: string, value: (test: SamplingTest) => number): Row {
  const read = ({ drift, engineName }: MetricsSources) =>
    [...drift.engines].flatMap(([worker, { drafted, plain }]): Value[] => [
      [value(drafted), engineName(worker), "drafted"],
      [value(plain), engineName(worker), "plain"],
    ]);
  return { name: `foretoken_sampling_${name}`, help, labels: ["engine", "positions"], read };
}

const KINDS =
  "groups: that later requests may join; requests: that may be repeated; rollouts: that are over; completed: responses of complete groups, for the page.";

function perKept(name: string, help: string, value: (level: KeptLevel) => number): Row {
  const read = ({ kept }: MetricsSources) => kept().map((level): Value => [value(level), level.of]);
  return { name: `foretoken_${name}`, help: `${help} ${KINDS}`, labels: ["of"], read };
}

/** ETTR (effective-time.ts) since the start. */
function ettr({ meter: { counts }, engineTime }: MetricsSources): number {
  const { output_tokens: tokens, restarted_tokens: restarted } = counts;
  const again = restarted + counts.late_tokens + counts.duplicated_tokens;
  return engineTime().ettr({ kept: Math.max(0, tokens - restarted), again });
}

const acceptance = ({ meter }: MetricsSources) => meter.progress().meanAcceptanceLength;

function queued({ meter, unfinished }: MetricsSources): number {
  const { workers, running } = meter.progress();
  const inEngines = workers.reduce((sum, { waiting }) => sum + waiting, running);
  return Math.max(0, unfinished() - inEngines);
}

const ROWS: readonly Row[] = [
  ...totals(ROLLOUT_FIGURES, (s) => s.meter.counts),
  ...totals(POOL_FIGURES, (s) => s.kvPool()),
  {
    name: "foretoken_state",
    help: "1: serving, or why nothing is generated: paused, sleeping, updating, draining, no_worker.",
    labels: ["state"],
    read: ({ servingState, servingStates }) => {
      const now = servingState();
      return servingStates.map((state): Value => [Number(state === now), state]);
    },
  },
  perPositions(
    "draws",
    "Tokens at temperature 1, with three alternatives or more, that were compared with the reported distribution.",
    (p) => p.draws,
  ),
  perPositions(
    "shift_nats",
    "Mean logprob of these tokens less that of draws from the reported distributions.",
    (p) => p.scoreMean - p.expectedMean,
  ),
  perWorker("vllm:num_requests_running", "Requests in engines' running batches.", (w) => w.running),
  perWorker("vllm:kv_cache_usage_perc", "Share of the KV budget in use, 0 to 1.", (w) =>
    w.kvTokens === 0 ? 0 : w.kvTokensUsed / w.kvTokens,
  ),
  perWorker("vllm:num_requests_waiting", "Requests in the engine's own queue.", (w) => w.waiting),
  {
    // prime-rl's concurrency controller takes waiting for capacity as a sign of overload.
    name: "vllm:num_requests_waiting_by_reason",
    help: "Requests in engines' own queues, by reason.",
    labels: ["engine", "reason"],
    read: ({ meter, engineName }) =>
      meter.progress().workers.flatMap(({ worker, waiting }): Value[] => [
        [waiting, engineName(worker), "capacity"],
        [0, engineName(worker), "deferred"],
      ]),
  },
  {
    // Clients read the capacity for KV from its labels.
    name: "vllm:cache_config_info",
    help: "KV budget of each engine, in blocks of one token.",
    labels: ["engine", "block_size", "num_gpu_blocks", "kv_cache_size_tokens"],
    read: ({ meter, engineName }) =>
      meter.progress().workers.map(({ worker, kvTokens }): Value => {
        return [1, engineName(worker), 1, kvTokens, kvTokens];
      }),
  },
  perWorker(
    "foretoken_engine_pace",
    "Time of the engine's steps over those of the median engine with as many rows; 1: not known to differ.",
    (w, { paces }) => paces().of(workerId(w.worker)),
  ),
  single(
    "engine_pace_error",
    "How far step times of engines are from what placement expects of them, as a part of that: the median of the last spans.",
    (s) => s.paces().error,
  ),
  single("requests_queued", "Requests that no engine has: they wait here.", queued),
  single("requests_unfinished", "Unfinished requests, running or not.", (s) => s.unfinished()),
  single("weight_epoch", "Weight updates so far.", (s) => s.epoch()),
  single("workers_stale", "Workers with other than the current weights.", (s) => s.staleWorkers()),
  byName("workers", "Workers by state.", "state", (s) => s.workerStates()),
  single(
    "ettr_ratio",
    "Effective training time ratio: engine time in service / engine time, while requests were unfinished, x tokens kept / tokens generated.",
    ettr,
  ),
  byName(
    "engine_seconds_total",
    "Time of all engines while requests were unfinished: serving, or away (down, cut off, fenced).",
    "state",
    ({ engineTime }) => {
      const { servedMs, awayMs } = engineTime();
      return { serving: servedMs / 1000, away: awayMs / 1000 };
    },
  ),
  single("kv_pool_bytes", "KV held in the pool's DRAM.", (s) => s.kvPool().memoryBytes),
  single("kv_pool_disk_bytes", "KV held in the pool's SSD tier.", (s) => s.kvPool().diskBytes),
  single("mean_acceptance_length", "1 + accepted / drafts.", acceptance),
  single("stream_clients", "Clients of /v1/stream.", (s) => s.stream().clients),
  single("stream_frames_total", "Frames sent over /v1/stream.", (s) => s.stream().framesSent),
  single("stream_bytes_total", "Bytes of them.", (s) => s.stream().bytesSent),
  byName(
    "stream_closed_total",
    "Clients of /v1/stream that the server disconnected, by close code; 1013: they read too slowly.",
    "code",
    (s) => s.stream().closed,
  ),
  turns("turns", "Turns of sessions after the first.", (s) => s.turns),
  turns("prompt_tokens", "Tokens of their prompts.", (s) => s.promptTokens),
  turns("cached_tokens", "Of them, those whose KV an engine reports.", (s) => s.cachedTokens),
  turns("edited_turns", "Turns that do not begin with all of the one before.", (s) => s.edited),
  perPlugin("steps", "Engine steps.", (p) => p.steps),
  perPlugin("propose_seconds", "Time of drafting in them.", (p) => p.proposeUs / 1e6),
  perPlugin("drafted_tokens", "Draft tokens handed to the engine.", (p) => p.drafted),
  perPlugin("accepted_tokens", "Draft tokens that it accepted.", (p) => p.accepted),
  perPlugin("traced_tokens", "Accepted tokens whose origin was looked up.", (p) => p.traced),
  perPlugin(
    "traced_elsewhere_tokens",
    "Of them, those that only siblings on other engines had generated.",
    (p) => p.tracedElsewhere,
  ),
  perPlugin("faults", "What went wrong and was caught.", (p) => p.faults),
  perPlugin("step_error", "Relative error of expected step times, of late.", (p) => p.stepError),
  perPlugin("lossless", "1: drafts are judged as they should be.", (p) => +p.isLossless),
  perKept("kept", "Finished requests, groups or rollouts that are kept in memory.", (l) => l.count),
  perKept("kept_bytes", "Bytes of foretoken_kept, prompts included.", (l) => l.bytes),
  perKept("kept_bytes_max", "Limit of these bytes; the oldest are dropped.", (l) => l.bytesMax),
];

const ENGINE_FIGURES: readonly Omit<Figure<WorkerStats>, "key" | "unit">[] = [
  ...WORKER_FIGURES,
  ...KV_MOVE_FIGURES.map(({ metric, help, read }) => ({
    metric,
    help,
    read: ({ kvMoves }: WorkerStats) => (kvMoves === undefined ? 0 : read(kvMoves)),
  })),
];

/** Buckets for durations of an iteration, its tail, or a weight update, in seconds. */
const DURATION_BUCKETS = [1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200];

const RENDER_BUCKETS = [0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2];

export class Metrics {
  readonly #registry = new Registry();
  readonly #registers = [this.#registry];
  readonly #sources: MetricsSources;
  readonly #counters = ENGINE_FIGURES.flatMap(({ metric, help, read }) =>
    metric === null ? [] : [{ counter: this.#counter(metric, help, "engine"), read }],
  );
  readonly #last = new Map<WorkerId, WorkerStats>();
  readonly #finished = requestTimes(this.#registry);
  readonly #stepError = new Gauge({
    name: "foretoken_engine_step_error",
    help: "How far an embedded engine's steps took of late from what drafting expected of them, as a part of that.",
    labelNames: ["engine"],
    registers: this.#registers,
  });
  readonly #responses = this.#counter(
    "foretoken_http_responses_total",
    "HTTP responses, by status; 101: WebSockets, 499: the client disconnected first.",
    "status",
  );
  readonly #success = this.#counter(
    "vllm:request_success_total",
    "Finished requests.",
    "finished_reason",
  );
  readonly #iteration = this.#duration(
    "foretoken_iteration_seconds",
    "From an iteration's first request to the end of its last response.",
  );
  readonly #tail = this.#duration(
    "foretoken_iteration_tail_seconds",
    "Of it, the time in which only the last 10 % of its responses ran.",
  );
  readonly #update = this.#duration(
    "foretoken_weight_update_seconds",
    "Time for which a weight update held generation back.",
  );
  readonly #render = new Histogram({
    name: "foretoken_chat_render_seconds",
    help: "Time in which a chat became a prompt, by who made it: engine, kept (an engine's, made before), template (here).",
    labelNames: ["by"],
    buckets: RENDER_BUCKETS,
    registers: this.#registers,
  });

  constructor(sources: MetricsSources) {
    this.#sources = sources;
    this.#registry.setDefaultLabels({ model_name: sources.modelName });
    this.#process();
    for (const row of ROWS) this.#scraped(row);
  }

  #counter(name: string, help: string, label: string): Counter {
    return new Counter({ name, help, labelNames: [label], registers: this.#registers });
  }

  #duration(name: string, help: string): Histogram {
    return new Histogram({ name, help, buckets: DURATION_BUCKETS, registers: this.#registers });
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  async text(): Promise<string> {
    return await this.#registry.metrics();
  }

  answered(status: number): void {
    this.#responses.inc({ status });
  }

  finished(request: RolloutRequest): void {
    this.#success.inc({ finished_reason: request.response.finish ?? "abort" });
    this.#finished(request);
  }

  iterationEnded({ seconds, tailS }: { readonly seconds: number; readonly tailS: number }): void {
    this.#iteration.observe(seconds);
    this.#tail.observe(tailS);
  }

  weightsUpdated(seconds: number): void {
    this.#update.observe(seconds);
  }

  chatRendered(by: string, seconds: number): void {
    this.#render.observe({ by }, seconds);
  }

  /** Adds a worker's latest counters to the totals; an engine that restarts counts from 0 again. */
  stats(workerId: WorkerId, stats: WorkerStats): void {
    const last = this.#last.get(workerId);
    const engine = this.#sources.engineName(workerId);
    const isSame = last !== undefined && stats.steps >= last.steps;
    for (const { counter, read } of this.#counters) {
      const added = read(stats) - (isSame ? read(last) : 0);
      // Zero is exported too: a counter exists from an engine's first telemetry on.
      counter.inc({ engine }, Math.max(0, added));
    }
    if (stats.stepError !== undefined) this.#stepError.set({ engine }, stats.stepError);
    this.#last.set(workerId, stats);
  }

  /** CPU, memory and files of the process. What prom-client has on the event loop and the heap, Bun does not report. */
  #process(): void {
    collectDefaultMetrics({ register: this.#registry });
    for (const { name } of this.#registry.getMetricsAsArray()) {
      if (name.startsWith("nodejs_")) this.#registry.removeSingleMetric(name);
    }
  }

  #scraped({ name, help, labels = [], read }: Row): void {
    const sources = this.#sources;
    const config = {
      name,
      help,
      labelNames: [...labels],
      registers: this.#registers,
      collect(this: Counter | Gauge) {
        this.reset();
        for (const [value, ...given] of read(sources)) {
          this.inc(Object.fromEntries(labels.map((label, i) => [label, given[i] ?? ""])), value);
        }
      },
    };
    if (name.endsWith("_total")) new Counter(config);
    else new Gauge(config);
  }
}
