// Prometheus metrics: vLLM's names where they mean the same, ours with the prefix `foretoken_`. It only
// counts; its input comes from the sidecar's observer.

import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import { type WorkerId, workerId } from "../../core/base/ids.ts";
import type { KvPoolStats } from "../../core/kv/pool.ts";
import type { Request } from "../../core/request/buffer.ts";
import {
  type Figure,
  KV_MOVE_FIGURES,
  POOL_FIGURES,
  ROLLOUT_FIGURES,
  WORKER_FIGURES,
} from "../../core/rollout/figures.ts";
import type { Meter } from "../../core/rollout/meter.ts";
import type { WorkerStats } from "../../core/rollout/worker.ts";
import type { EngineTime } from "./effective-time.ts";
import { RequestTimes } from "./request-times.ts";

export interface KeptLevel {
  readonly of: string;
  readonly bytes: number;
  readonly bytesMax: number;
  readonly count: number;
}

export interface MetricsSources {
  readonly modelName: string;
  readonly meter: Meter;
  /** Requests that are not finished. */
  readonly unfinished: () => number;
  readonly epoch: () => number;
  /** What people call an engine: a server's URL. */
  readonly engineName: (worker: number) => string;
  /** Time of a worker's steps over that of the others', and how far that is from what was seen. */
  readonly paces: () => { of(worker: WorkerId): number; readonly error: number };
  readonly servingState: () => string;
  readonly servingStates: readonly string[];
  readonly staleWorkers: () => number;
  readonly sessions: () => SessionFigures;
  /** Up to now. */
  readonly engineTime: () => EngineTime;
  /** By state: how many workers. */
  readonly workerStates: () => Readonly<Record<string, number>>;
  readonly kvPool: () => KvPoolStats;
  /** What is kept of work that is done, by kind. */
  readonly kept: () => readonly KeptLevel[];
  readonly stream: () => StreamFigures;
  /** Engines that draft by the plugin, with their last telemetry. */
  readonly plugins: () => readonly PluginFigures[];
}

/** Of later turns of sessions; all count since the server began. */
export interface SessionFigures {
  readonly turns: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
}

/** Of /v1/stream; all but `clients` count since the server began. */
export interface StreamFigures {
  readonly clients: number;
  readonly framesSent: number;
  readonly bytesSent: number;
  /** Clients that the server ended, by close code. */
  readonly closed: Readonly<Record<number, number>>;
}

/** A plugin's telemetry of its engine; counters start with the engine. */
export interface PluginFigures {
  readonly engine: string;
  readonly steps: number;
  readonly proposeUs: number;
  readonly drafted: number;
  readonly accepted: number;
  readonly traced: number;
  readonly tracedElsewhere: number;
  readonly faults: number;
  readonly stepError: number;
  readonly isLossless: boolean;
}

/** Counters of an engine that restarts begin at 0 again, so they are gauges here. */
const PLUGIN_GAUGES = [
  ["foretoken_plugin_steps", "Engine steps.", (p) => p.steps],
  ["foretoken_plugin_propose_seconds", "Time of drafting in them.", (p) => p.proposeUs / 1e6],
  ["foretoken_plugin_drafted_tokens", "Draft tokens handed to the engine.", (p) => p.drafted],
  ["foretoken_plugin_accepted_tokens", "Draft tokens that it accepted.", (p) => p.accepted],
  [
    "foretoken_plugin_traced_tokens",
    "Accepted tokens whose origin was looked up.",
    (p) => p.traced,
  ],
  [
    "foretoken_plugin_traced_elsewhere_tokens",
    "Of them, those that only siblings on other engines had generated.",
    (p) => p.tracedElsewhere,
  ],
  ["foretoken_plugin_faults", "What went wrong and was caught.", (p) => p.faults],
  [
    "foretoken_plugin_step_error",
    "How far steps took of late from what drafting expected of them, as a part of that.",
    (p) => p.stepError,
  ],
  ["foretoken_plugin_lossless", "1: drafts are judged as they should be.", (p) => +p.isLossless],
] as const satisfies readonly (readonly [string, string, (figures: PluginFigures) => number])[];

/** Figures of the table that have a name here. */
function rowsOf<T>(figures: readonly Figure<T>[]): Row<T>[] {
  return figures.flatMap(({ metric, help, read }): Row<T>[] =>
    metric === null ? [] : [[metric, help, read]],
  );
}

type Row<T> = readonly [name: string, help: string, value: (from: T) => number];

/** Counters of an engine; one that restarts begins at 0 again. */
const ENGINE_COUNTERS: readonly Row<WorkerStats>[] = [
  ...rowsOf(WORKER_FIGURES),
  ...rowsOf(KV_MOVE_FIGURES).map(
    ([name, help, read]): Row<WorkerStats> => [
      name,
      help,
      ({ kvMoves }) => (kvMoves === undefined ? 0 : read(kvMoves)),
    ],
  ),
];

const SESSION_COUNTERS: readonly Row<SessionFigures>[] = [
  ["foretoken_session_turns_total", "Turns of sessions after the first.", (s) => s.turns],
  ["foretoken_session_prompt_tokens_total", "Tokens of their prompts.", (s) => s.promptTokens],
  [
    "foretoken_session_cached_tokens_total",
    "Of them, those whose KV an engine had, as far as engines report it.",
    (s) => s.cachedTokens,
  ],
];

const STREAM_COUNTERS: readonly Row<StreamFigures>[] = [
  ["foretoken_stream_frames_total", "Frames sent over /v1/stream.", (s) => s.framesSent],
  ["foretoken_stream_bytes_total", "Bytes of them.", (s) => s.bytesSent],
];

/** Seconds of an iteration, of its tail, of a weight update. */
const DURATION_BUCKETS = [1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200];

export class Metrics {
  readonly #registry = new Registry();
  readonly #sources: MetricsSources;
  readonly #counters = new Map<string, Counter>();
  readonly #last = new Map<WorkerId, WorkerStats>();
  readonly #success: Counter;
  readonly #responses: Counter;
  readonly #times: RequestTimes;
  readonly #stepError: Gauge;
  readonly #durations: Readonly<Record<"iteration" | "tail" | "update", Histogram>>;

  constructor(sources: MetricsSources) {
    this.#sources = sources;
    this.#registry.setDefaultLabels({ model_name: sources.modelName });
    const registers = [this.#registry];
    const labelNames = ["engine"];
    for (const [name, help] of ENGINE_COUNTERS) {
      this.#counters.set(name, new Counter({ name, help, labelNames, registers }));
    }
    this.#totals(rowsOf(ROLLOUT_FIGURES), () => sources.meter.counts);
    this.#totals(rowsOf(POOL_FIGURES), sources.kvPool);
    this.#totals(STREAM_COUNTERS, sources.stream);
    this.#totals(SESSION_COUNTERS, sources.sessions);
    this.#stepError = new Gauge({
      name: "foretoken_engine_step_error",
      help: "How far an embedded engine's steps took of late from what drafting expected of them, as a part of that.",
      labelNames,
      registers,
    });
    this.#responses = new Counter({
      name: "foretoken_http_responses_total",
      help: "HTTP responses, by status; 101: WebSockets, 499: the client disconnected first.",
      labelNames: ["status"],
      registers,
    });
    this.#success = new Counter({
      name: "vllm:request_success_total",
      help: "Finished requests.",
      labelNames: ["finished_reason"],
      registers,
    });
    this.#times = new RequestTimes(this.#registry);
    const duration = (name: string, help: string) =>
      new Histogram({ name, help, buckets: DURATION_BUCKETS, registers });
    this.#durations = {
      iteration: duration(
        "foretoken_iteration_seconds",
        "From an iteration's first request to the end of its last response.",
      ),
      tail: duration(
        "foretoken_iteration_tail_seconds",
        "Of it, the time in which only the last 10 % of its responses ran.",
      ),
      update: duration(
        "foretoken_weight_update_seconds",
        "Time for which a weight update held generation back.",
      ),
    };
    this.#process();
    this.#gauges();
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

  finished(request: Request): void {
    this.#success.inc({ finished_reason: request.response.finish ?? "abort" });
    this.#times.finished(request);
  }

  iterationEnded({ seconds, tailS }: { readonly seconds: number; readonly tailS: number }): void {
    this.#durations.iteration.observe(seconds);
    this.#durations.tail.observe(tailS);
  }

  weightsUpdated(seconds: number): void {
    this.#durations.update.observe(seconds);
  }

  stats(workerId: WorkerId, stats: WorkerStats): void {
    const last = this.#last.get(workerId);
    const engine = this.#sources.engineName(workerId);
    const isSame = last !== undefined && stats.steps >= last.steps;
    for (const [name, , value] of ENGINE_COUNTERS) {
      const added = value(stats) - (isSame ? value(last) : 0);
      // Zero is exported too: a counter exists from an engine's first telemetry on.
      this.#counters.get(name)?.inc({ engine }, Math.max(0, added));
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

  /** 1 for the state that holds, 0 for the others. */
  #servingState(): void {
    const { servingState, servingStates } = this.#sources;
    new Gauge({
      name: "foretoken_state",
      help: "1: serving, or why nothing is generated: paused, sleeping, updating, draining, no_worker.",
      labelNames: ["state"],
      registers: [this.#registry],
      collect() {
        const now = servingState();
        for (const state of servingStates) this.set({ state }, Number(state === now));
      },
    });
  }

  #gauges(): void {
    this.#servingState();
    const progress = () => this.#sources.meter.progress();
    this.#perWorker(
      "vllm:num_requests_running",
      "Requests in engines' running batches.",
      (w) => w.running,
    );
    this.#perWorker("vllm:kv_cache_usage_perc", "Share of the KV budget in use, 0 to 1.", (w) =>
      w.kvTokens === 0 ? 0 : w.kvTokensUsed / w.kvTokens,
    );
    this.#perWorker(
      "vllm:num_requests_waiting",
      "Requests waiting in engines' queues; foretoken_requests_queued counts those not yet sent to an engine.",
      (w) => w.waiting,
    );
    this.#perWorker(
      "foretoken_engine_pace",
      "Time of the engine's steps over those of the median engine with as many rows; 1: not known to differ.",
      (w) => this.#sources.paces().of(workerId(w.worker)),
    );
    this.#gauge(
      "foretoken_engine_pace_error",
      "How far step times of engines are from what placement expects of them, as a part of that: the median of the last spans.",
      () => this.#sources.paces().error,
    );
    this.#waitingByReason();
    this.#cacheConfig();
    this.#gauge("foretoken_requests_queued", "Requests that no engine has: they wait here.", () => {
      const { workers, running } = progress();
      const inEngines = workers.reduce((sum, { waiting }) => sum + waiting, running);
      return Math.max(0, this.#sources.unfinished() - inEngines);
    });
    this.#effectiveTime();
    this.#gauge("foretoken_weight_epoch", "Weight updates so far.", this.#sources.epoch);
    this.#gauge(
      "foretoken_workers_stale",
      "Workers that report other weights than the current ones, which others report.",
      this.#sources.staleWorkers,
    );
    this.#gauge(
      "foretoken_requests_unfinished",
      "Unfinished requests, running or not.",
      this.#sources.unfinished,
    );
    this.#gauge(
      "foretoken_kv_pool_bytes",
      "KV held in the pool's DRAM.",
      () => this.#sources.kvPool().memoryBytes,
    );
    this.#gauge(
      "foretoken_kv_pool_disk_bytes",
      "KV held in the pool's SSD tier.",
      () => this.#sources.kvPool().diskBytes,
    );
    this.#gauge(
      "foretoken_stream_clients",
      "Clients of /v1/stream.",
      () => this.#sources.stream().clients,
    );
    this.#gauge(
      "foretoken_mean_acceptance_length",
      "1 + accepted / drafts.",
      () => progress().meanAcceptanceLength,
    );
    for (const [name, help, value] of PLUGIN_GAUGES) this.#perPlugin(name, help, value);
    const { workerStates, stream } = this.#sources;
    const registers = [this.#registry];
    this.#perKept(
      "foretoken_kept",
      "Finished requests, groups or rollouts that are kept in memory.",
      ({ count }) => count,
    );
    this.#perKept(
      "foretoken_kept_bytes",
      "Bytes of foretoken_kept, prompts included.",
      ({ bytes }) => bytes,
    );
    this.#perKept(
      "foretoken_kept_bytes_max",
      "Limit of foretoken_kept_bytes; beyond it the oldest are dropped.",
      ({ bytesMax }) => bytesMax,
    );
    new Gauge({
      name: "foretoken_workers",
      help: "Workers by state.",
      labelNames: ["state"],
      registers,
      collect() {
        for (const [state, count] of Object.entries(workerStates())) this.set({ state }, count);
      },
    });
    new Counter({
      name: "foretoken_stream_closed_total",
      help: "Clients of /v1/stream that the server disconnected, by close code; 1013: they read too slowly.",
      labelNames: ["code"],
      registers,
      collect() {
        this.reset();
        for (const [code, count] of Object.entries(stream().closed)) this.inc({ code }, count);
      },
    });
  }

  #effectiveTime(): void {
    const { engineTime, meter } = this.#sources;
    this.#gauge(
      "foretoken_ettr_ratio",
      "Effective training time ratio: engine time in service / engine time, while requests were unfinished, x tokens kept / tokens generated.",
      () => {
        const { counts } = meter;
        const { output_tokens: tokens, restarted_tokens: restarted } = counts;
        const again = restarted + counts.late_tokens + counts.duplicated_tokens;
        return engineTime().ettr({ kept: Math.max(0, tokens - restarted), again });
      },
    );
    new Counter({
      name: "foretoken_engine_seconds_total",
      help: "Time of all engines while requests were unfinished: serving, or away (down, cut off, fenced).",
      labelNames: ["state"],
      registers: [this.#registry],
      collect() {
        this.reset();
        const { servedMs, awayMs } = engineTime();
        this.inc({ state: "serving" }, servedMs / 1000);
        this.inc({ state: "away" }, awayMs / 1000);
      },
    });
  }

  /** Counts that are kept elsewhere. */
  #totals<T>(rows: readonly Row<T>[], source: () => T): void {
    for (const [name, help, value] of rows) {
      new Counter({
        name,
        help,
        registers: [this.#registry],
        collect() {
          this.reset();
          this.inc(value(source()));
        },
      });
    }
  }

  #perKept(name: string, help: string, value: (level: KeptLevel) => number): void {
    const { kept } = this.#sources;
    new Gauge({
      name,
      help: `${help} groups: that later requests may join; requests: that may be repeated; rollouts: that are over; completed: responses of complete groups, for the page.`,
      labelNames: ["of"],
      registers: [this.#registry],
      collect() {
        for (const level of kept()) this.set({ of: level.of }, value(level));
      },
    });
  }

  #perPlugin(name: string, help: string, value: (figures: PluginFigures) => number): void {
    const { plugins } = this.#sources;
    new Gauge({
      name,
      help,
      labelNames: ["engine"],
      registers: [this.#registry],
      collect() {
        this.reset();
        for (const figures of plugins()) this.set({ engine: figures.engine }, value(figures));
      },
    });
  }

  #gauge(name: string, help: string, value: () => number): void {
    new Gauge({
      name,
      help,
      registers: [this.#registry],
      collect() {
        this.set(value());
      },
    });
  }

  /** prime-rl's concurrency controller takes waiting for capacity as a sign of overload. */
  #waitingByReason(): void {
    const { meter, engineName } = this.#sources;
    new Gauge({
      name: "vllm:num_requests_waiting_by_reason",
      help: "Requests in engines' own queues, by reason.",
      labelNames: ["engine", "reason"],
      registers: [this.#registry],
      collect() {
        for (const { worker, waiting } of meter.progress().workers) {
          const engine = engineName(worker);
          this.set({ engine, reason: "capacity" }, waiting);
          this.set({ engine, reason: "deferred" }, 0);
        }
      },
    });
  }

  /** Clients read the capacity for KV from its labels. */
  #cacheConfig(): void {
    const { meter, engineName } = this.#sources;
    new Gauge({
      name: "vllm:cache_config_info",
      help: "KV budget of each engine, in blocks of one token.",
      labelNames: ["engine", "block_size", "num_gpu_blocks", "kv_cache_size_tokens"],
      registers: [this.#registry],
      collect() {
        this.reset();
        for (const { worker, kvTokens } of meter.progress().workers) {
          const engine = engineName(worker);
          const labels = {
            block_size: 1,
            num_gpu_blocks: kvTokens,
            kv_cache_size_tokens: kvTokens,
          };
          this.set({ engine, ...labels }, 1);
        }
      },
    });
  }

  #perWorker(
    name: string,
    help: string,
    value: (worker: ReturnType<Meter["progress"]>["workers"][number]) => number,
  ): void {
    const { meter, engineName } = this.#sources;
    new Gauge({
      name,
      help,
      labelNames: ["engine"],
      registers: [this.#registry],
      collect() {
        for (const worker of meter.progress().workers)
          this.set({ engine: engineName(worker.worker) }, value(worker));
      },
    });
  }
}
