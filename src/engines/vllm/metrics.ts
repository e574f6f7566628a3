// Reads what a worker needs from vLLM's /metrics (Prometheus text, 0.22 to 0.32). A missing metric counts as zero;
// values of several engines of one server are added up.

import { countOf } from "./stream-event.ts";

export interface ServerMetrics {
  /** Gauges. */
  readonly running: number;
  readonly waiting: number;
  /** Used share of the KV blocks, 0..1: the mean of the engines. */
  readonly kvUsage: number;
  /** Counters since the server started. */
  readonly counters: ServerCounters;
  /** When the server's process started, s since 1970; 0: not reported. */
  readonly startedS: number;
  /** null: there is no `vllm:cache_config_info`. */
  readonly cache: CacheConfig | null;
}

export interface CacheConfig {
  readonly blockSize: number;
  /** Blocks of all engines. */
  readonly blocks: number;
  readonly engines: number;
  /** Blocks of the engine with the fewest. */
  readonly blocksMin: number;
  /** The model has layers whose state is not KV of tokens (Mamba, linear attention). */
  readonly isHybrid: boolean;
}

/** Names without `_total`, which older client libraries omit. */
const RUNNING = "vllm:num_requests_running";
const WAITING = "vllm:num_requests_waiting";
const KV_USAGE = ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"] as const;
const CACHE_CONFIG = "vllm:cache_config_info";
const STARTED = "process_start_time_seconds";
const COUNTERS = {
  steps: "vllm:iteration_tokens_total_count",
  preemptions: "vllm:num_preemptions",
  promptTokens: "vllm:prompt_tokens",
  generationTokens: "vllm:generation_tokens",
  drafts: "vllm:spec_decode_num_drafts",
  draftedTokens: "vllm:spec_decode_num_draft_tokens",
  acceptedTokens: "vllm:spec_decode_num_accepted_tokens",
  /** Prompt tokens loaded through a KV connector. */
  externalHitTokens: "vllm:external_prefix_cache_hits",
  /** Counters of a KV pool: blocks whose lookup, load or save failed, and the time that these operations took. */
  poolFailedBlocks: "vllm:mooncake_store_operation_failed_keys",
  poolSeconds: "vllm:mooncake_store_operation_time_seconds_sum",
} as const;
const COUNTER_NAMES = Object.keys(COUNTERS) as (keyof ServerCounters)[];

export type ServerCounters = Readonly<Record<keyof typeof COUNTERS, number>>;

export function readMetrics(text: string): ServerMetrics {
  const sums = new Map<string, number>();
  const samples = new Map<string, number>();
  let cache: CacheConfig | null = null;
  for (const line of text.split("\n")) {
    if (!line.startsWith("vllm:") && !line.startsWith(STARTED)) continue;
    const labelsAt = line.indexOf("{");
    const valueAt = line.lastIndexOf(" ") + 1;
    const nameEnd = labelsAt < 0 ? valueAt - 1 : labelsAt;
    const name = line.slice(0, nameEnd).replace(/_total$/, "");
    if (name === CACHE_CONFIG) {
      cache = added(cache, line);
      continue;
    }
    const value = Number(line.slice(valueAt));
    if (!Number.isFinite(value) || value < 0) continue;
    sums.set(name, (sums.get(name) ?? 0) + value);
    samples.set(name, (samples.get(name) ?? 0) + 1);
  }
  const sum = (name: string): number => sums.get(name) ?? 0;
  const usageName = KV_USAGE.find((name) => sums.has(name)) ?? KV_USAGE[0];
  return {
    running: sum(RUNNING),
    waiting: sum(WAITING),
    kvUsage: sum(usageName) / (samples.get(usageName) ?? 1),
    counters: mapCounters((key) => sum(COUNTERS[key])),
    startedS: sum(STARTED),
    cache,
  };
}

export const NO_COUNTERS: ServerCounters = mapCounters(() => 0);

export function mapCounters(value: (key: keyof ServerCounters) => number): ServerCounters {
  const entries = COUNTER_NAMES.map((key) => [key, value(key)]);
  return Object.fromEntries(entries) as Record<keyof ServerCounters, number>;
}

/** Whether the process that reported `after` is not the one that reported `before`. */
export function hasRestarted(before: ServerMetrics, after: ServerMetrics): boolean {
  const isSaid = before.startedS > 0 && after.startedS > 0;
  if (isSaid && before.startedS !== after.startedS) return true;
  const { counters } = before;
  return (
    after.counters.promptTokens < counters.promptTokens ||
    after.counters.generationTokens < counters.generationTokens
  );
}

function added(cache: CacheConfig | null, line: string): CacheConfig | null {
  const blockSize = countOf(Number(labelOf(line, "block_size"))) ?? 0;
  const named = labelOf(line, "num_gpu_blocks") ?? labelOf(line, "num_cpu_blocks");
  const blocks = countOf(Number(named)) ?? 0;
  if (blockSize === 0 || blocks === 0) return cache;
  const isHybrid = Number(labelOf(line, "mamba_block_size")) > 0;
  if (cache === null) return { blockSize, blocks, engines: 1, blocksMin: blocks, isHybrid };
  return {
    blockSize,
    blocks: cache.blocks + blocks,
    engines: cache.engines + 1,
    blocksMin: Math.min(cache.blocksMin, blocks),
    isHybrid: cache.isHybrid || isHybrid,
  };
}

function labelOf(line: string, label: string): string | null {
  return new RegExp(`[{,]${label}="([^"]*)"`).exec(line)?.[1] ?? null;
}
