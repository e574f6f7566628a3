// The table of figures of a rollout. A row names a figure for every place that shows it: reports, the live view, /metrics and
// docs/reference/METRICS.md are made from these rows. What a row leaves out follows from its key (`named`). A new counter of
// the rollout is a row of COUNTED and a call of `meter.count(key)` where it happens: responses end in Meter.requestFinished;
// chunks begin, end early and migrate in dispatch.ts, and end in loop.ts: `#chunkDone` (after `closeChunk`,
// `response.lastChunk.run.end` says why) and `#unplace`. Figures are sums, of which the live view subtracts earlier ones: no
// maximum or mean can be a row. Test: meter.test.ts, by `world({ policy, chunkTokens })` of test/suite/rollout-bed.ts.

import type { KvPoolStats } from "../kv/pool.ts";
import type { KvMoveStats, WorkerStats } from "./worker.ts";

export type Unit = "tokens" | "requests" | "groups" | "chunks" | "bytes" | "s" | "";

export interface Figure<Source> {
  /** Key in reports and in the live view. */
  readonly key: string;
  /** Name at /metrics; that of a counter ends with `_total`. null: the figure is in reports alone. */
  readonly metric: string | null;
  readonly unit: Unit;
  readonly help: string;
  readonly read: (from: Source) => number;
}

interface Named<Key extends string = string> {
  readonly key: Key;
  /** Absent: `foretoken_`, the table's prefix, the key, `_total`. null: the figure is in reports alone. */
  readonly metric?: string | null;
  /** Absent: the key's last word, if that is a unit. */
  readonly unit?: Unit;
  readonly help: string;
}

const UNITS: readonly Unit[] = ["tokens", "requests", "groups", "chunks", "bytes", "s"];

function named<Key extends string>({ key, metric, unit, help }: Named<Key>, prefix: string) {
  const name = `foretoken_${prefix}${key.replace(/_s$/, "_seconds")}_total`;
  const last = UNITS.find((one) => one === key.split("_").at(-1));
  return { key, metric: metric === undefined ? name : metric, unit: unit ?? last ?? "", help };
}

function figuresOf<Source>(prefix = "") {
  type Read = Pick<Figure<Source>, "read">;
  return <Key extends string>(rows: readonly (Named<Key> & Read)[]) =>
    rows.map((row) => ({ ...named(row, prefix), read: row.read }));
}

/** Figures that `Meter.count` counts. Five of them are the rollout's contract: lost and twice are 0 in a right run. */
const COUNTED = [
  { key: "groups", metric: null, help: "Groups." },
  { key: "finished_groups", metric: null, help: "Groups that have ended." },
  { key: "requests", metric: null, help: "Requests." },
  { key: "finished_requests", metric: null, help: "Requests that have ended." },
  {
    key: "failed_requests",
    metric: null,
    help: "Requests that ended with an error: no engine would, or could, run them.",
  },
  { key: "aborted_requests", metric: null, help: "Requests that were given up." },
  { key: "output_tokens", metric: "vllm:generation_tokens_total", help: "Output tokens." },
  { key: "chunks", help: "Chunks that were dispatched." },
  {
    key: "chunks_ended_early",
    unit: "chunks",
    help: "Chunks that were ended before their length because their worker was short of KV, or leaves.",
  },
  {
    key: "migrations",
    unit: "chunks",
    help: "Chunks that ran on another worker than the request's chunk, or its session's turn, before.",
  },
  { key: "migrated_bytes", help: "KV of chunks that migrated." },
  {
    key: "lost_tokens",
    help: "Tokens missing from a worker's output; the worker was removed, and the tokens were generated again.",
  },
  { key: "duplicated_tokens", help: "Tokens that came twice." },
  { key: "late_tokens", help: "Tokens of given-up or moved requests, refused." },
  { key: "restarts", metric: null, help: "Responses that began anew, all tokens lost." },
  { key: "restarted_tokens", help: "Tokens of responses that were restarted." },
  {
    key: "resumed_tokens",
    help: "Tokens that an earlier process generated, taken from its journal.",
  },
  { key: "kv_pool_failures", help: "Calls to the KV pool that failed; the KV was recomputed." },
  {
    key: "kv_waits_ended",
    help: "KV that left an engine, or came from the pool, too slowly (60 s, 30 s); it was recomputed.",
  },
  { key: "quarantined_requests", help: "Requests that were ended because they made workers die." },
  {
    key: "draft_alarms",
    help: "Engines that get no more drafts because they did not draw what they reported where they had them.",
  },
] as const satisfies readonly Named[];

export type CountKey = (typeof COUNTED)[number]["key"];
export type Counts = Record<CountKey, number>;

export const ROLLOUT_FIGURES = figuresOf<Readonly<Counts>>()(
  COUNTED.map((row) => ({ ...row, read: (counts: Readonly<Counts>) => counts[row.key] })),
);

/** Counters of one engine; in reports also their sum over all. */
export const WORKER_FIGURES = figuresOf<WorkerStats>()([
  {
    key: "preemptions",
    metric: "vllm:num_preemptions_total",
    help: "Requests that an engine preempted.",
    read: (s) => s.preemptions,
  },
  {
    key: "prefill_tokens",
    metric: "vllm:prompt_tokens_total",
    help: "Tokens prefilled, recomputed ones included.",
    read: (s) => s.prefillTokens,
  },
  {
    key: "drafted_tokens",
    metric: "vllm:spec_decode_num_draft_tokens_total",
    help: "Draft tokens verified.",
    read: (s) => s.draftedTokens,
  },
  {
    key: "accepted_tokens",
    metric: "vllm:spec_decode_num_accepted_tokens_total",
    help: "Draft tokens accepted.",
    read: (s) => s.acceptedTokens,
  },
  {
    key: "drafts",
    metric: "vllm:spec_decode_num_drafts_total",
    help: "Drafts verified.",
    read: (s) => s.drafts,
  },
  {
    key: "recomputed_tokens",
    help: "Tokens prefilled a second time.",
    read: (s) => s.recomputedTokens,
  },
  {
    key: "steps",
    metric: "foretoken_engine_steps_total",
    help: "Engine steps.",
    read: (s) => s.steps,
  },
  {
    key: "busy_s",
    metric: "foretoken_engine_busy_seconds_total",
    help: "Time in engine steps; of embedded engines, CPU time of their threads.",
    read: (s) => s.busyMs / 1000,
  },
  {
    key: "draft_saved_s",
    metric: null,
    help: "Time in engine steps that drafts saved, by the engine's model of step time.",
    read: (s) => (s.draftSavedMs ?? 0) / 1000,
  },
  { key: "kv_loads", help: "KV blobs loaded in place of recomputing.", read: (s) => s.kvLoads },
  { key: "kv_load_failures", help: "KV blobs that were refused.", read: (s) => s.kvLoadFailures },
]);

export type WorkerKey = (typeof WORKER_FIGURES)[number]["key"];

/** Figures of engines whose KV moves by connectors of their own; in reports under `kv_moves`. */
export const KV_MOVE_FIGURES = figuresOf<KvMoveStats>("kv_")([
  {
    key: "moves",
    unit: "requests",
    help: "Requests that came from another engine and found their KV by the engine's connector.",
    read: (m) => m.moves,
  },
  {
    key: "moved_tokens",
    help: "Tokens of requests that came from another engine and found their KV.",
    read: (m) => m.movedTokens,
  },
  {
    key: "recomputed_moves",
    unit: "requests",
    help: "Requests that came from another engine and did not find their KV.",
    read: (m) => m.recomputedMoves,
  },
  {
    key: "recomputed_tokens",
    metric: "foretoken_kv_recomputed_move_tokens_total",
    help: "Tokens recomputed of requests that came from another engine and did not find their KV.",
    read: (m) => m.recomputedTokens,
  },
  {
    key: "hit_tokens",
    help: "Tokens that the engine reports as loaded through its connector.",
    read: (m) => m.hitTokens,
  },
  {
    key: "failed_blocks",
    metric: "foretoken_kv_pool_failed_blocks_total",
    help: "Blocks that the KV pool could not look up, load or save.",
    read: (m) => m.failedBlocks,
  },
  {
    key: "pool_s",
    help: "Time that the engine's connector spent in the KV pool.",
    read: (m) => m.poolSeconds,
  },
]);

export type KvMoveKey = (typeof KV_MOVE_FIGURES)[number]["key"];

/** Figures of Foretoken's own KV pool; in reports under `kv_pool`. */
export const POOL_FIGURES = figuresOf<KvPoolStats>("kv_pool_")([
  { key: "puts", help: "Blobs stored.", read: (p) => p.puts },
  { key: "hits", help: "Blobs that were there.", read: (p) => p.hits },
  { key: "misses", help: "Blobs that were not.", read: (p) => p.misses },
  { key: "evictions", help: "Blobs dropped for room.", read: (p) => p.evictions },
  { key: "corrupt", help: "Blobs with a wrong checksum.", read: (p) => p.corrupt },
  {
    key: "disk_errors",
    metric: null,
    help: "Reads and writes of the SSD tier that failed.",
    read: (p) => p.diskErrors,
  },
]);

export type PoolKey = (typeof POOL_FIGURES)[number]["key"];

/** Rollout and workers together: what a report has of a run, and the live view of an iteration. */
export type FigureKey = CountKey | WorkerKey;
export type Figures = Record<FigureKey, number>;

/** Figures shown to people, without values. */
export const SHOWN_FIGURES: readonly Omit<Figure<never> & { key: FigureKey }, "read">[] = [
  ...ROLLOUT_FIGURES,
  ...WORKER_FIGURES,
].map(({ key, metric, unit, help }) => ({ key, metric, unit, help }));

export function sumsOf<Key extends string, Source>(
  rows: readonly { readonly key: Key; readonly read: (from: Source) => number }[],
  sources: readonly Source[],
): Record<Key, number> {
  const sums = rows.map(({ key, read }) => [
    key,
    sources.reduce((sum, source) => sum + read(source), 0),
  ]);
  return Object.fromEntries(sums) as Record<Key, number>;
}

/** `now` less `before`, 0 at least: an engine that restarts counts from 0 again. */
export function since<Key extends string>(
  now: Readonly<Record<Key, number>>,
  before: Readonly<Record<Key, number>>,
): Record<Key, number> {
  const keys = Object.keys(now) as Key[];
  const rest = keys.map((key) => [key, Math.max(0, now[key] - before[key])]);
  return Object.fromEntries(rest) as Record<Key, number>;
}
