// Finds out what a server is and can do, before anything is asked of it: versions differ, so it is asked and
// not assumed. What it cannot do without is an error that names the URL and what is missing.

import { AppError } from "../../core/base/errors.ts";
import { parseJson } from "../../core/base/json.ts";
import { chunkBody } from "./body.ts";
import { pause, type TimerClock } from "./clock.ts";
import { connectorOf, type FoundConnector } from "./connectors.ts";
import { type Dialect, ENDPOINT_PATHS, type Endpoint } from "./dialect.ts";
import type { HttpAnswer, HttpClient } from "./http.ts";
import { hybridProblem } from "./hybrid.ts";
import type { VllmLimits } from "./limits.ts";
import { type CacheConfig, readMetrics, type ServerMetrics } from "./metrics.ts";
import { PROBE_ASK } from "./probe-request.ts";
import type { RankCapacity } from "./ranks.ts";
import type { ServedTraits } from "./served-alike.ts";
import { type SglangServer, sglangServer } from "./sglang/server.ts";
import { SseReader } from "./sse.ts";
import { errorMessage, readEvent } from "./stream-event.ts";
import { watchOf } from "./watch.ts";
import { withoutExperts } from "./whole-answer.ts";

export interface Capabilities extends Dialect {
  /** "0.32.0"; null: not reported. */
  readonly version: string | null;
  /** Prompt + output of one request. */
  readonly contextTokens: number;
  readonly traits: ServedTraits;
  /** Requests that its engines run at the same time. */
  readonly slots: number;
  readonly kvTokens: number;
  readonly kvBlockTokens: number;
  /** It drafts without the sidecar. */
  readonly isSpeculative: boolean;
  /** --enable-return-routed-experts: it reports them of every request. */
  readonly reportsExperts: boolean;
  /** null: none, or not reported (only in development mode). */
  readonly connector: FoundConnector | null;
  /** A response in chunks is the one that it is in one piece: of hybrid models it has been shown, or it is not so. */
  readonly isDivisible: boolean;
  /** Data parallel ranks that requests can be pinned to; null: it has one, or places requests itself. */
  readonly ranks: readonly RankCapacity[] | null;
  /** It was there when the metrics were. */
  readonly metrics: ServerMetrics;
  /** null: it is vLLM. */
  readonly sglang: SglangServer | null;
  /** What works worse than it could, and what to do about it. */
  readonly warnings: readonly string[];
}

export interface ProbeOptions {
  readonly client: HttpClient;
  readonly clock: TimerClock;
  readonly limits: VllmLimits;
  readonly cacheSalt: string;
  /** Absent: it is found out. */
  readonly kind?: "sglang" | undefined;
  /** Values that override the server's report, or replace a missing one. */
  readonly model: string | null;
  readonly slots: number | null;
  readonly kvTokens: number | null;
  readonly contextTokens: number | null;
}

/** vLLM's default for an online server on most devices; its `max_num_seqs` is seen in development mode only. */
const SLOTS_DEFAULT = 256;
/** vLLM's default `--max-logprobs`. */
export const LOGPROBS_MAX_DEFAULT = 20;
/** SGLang has no bound. */
const TOP_LOGPROBS_MAX = 20;
const HEALTH_PAUSE_MS = 250;

/** @throws AppError worker_failed, unauthorized or invalid_config. */
export async function probe(options: ProbeOptions): Promise<Capabilities> {
  await waitForHealth(options);
  const get = (path: string) => ask(options, path);
  const release = await ask(options, "/version");
  const version = jsonField(release, "version");
  if (jsonField(release, "server") === "foretoken") {
    const message = `is Foretoken ${version}, a proxy and no engine: give the URLs of its workers`;
    throw new AppError("invalid_config", `${options.client.url} ${message}`);
  }
  const sglang = await sglangServer(get);
  if (sglang !== null) return await probeSglang(options, sglang);
  if (options.kind === "sglang") {
    const message = "has no /model_info, /server_info and /v1/loads: it is not SGLang";
    throw new AppError("worker_failed", `${options.client.url} ${message}`);
  }
  const model = await modelOf(options);
  const info = await serverInfo(options);
  const { logprobsMax, policy, hasSeeds } = info;
  const dialect = await dialectOf(options, { model: model.id, logprobsMax, policy, hasSeeds });
  const metrics = await metricsOf(options);
  const engines = metrics.cache?.engines ?? 1;
  const slots = options.slots ?? (info.slots ?? SLOTS_DEFAULT) * engines;
  const kvTokens = options.kvTokens ?? kvBudget(options, metrics.cache);
  const takesRanks = engines > 1 && (await isPinned(options, dialect, engines));
  const ranks = takesRanks ? ranksOf({ engines, slots, kvTokens }, metrics.cache) : null;
  const isHybrid = metrics.cache?.isHybrid === true;
  const hybrid = isHybrid ? await hybridProblem(options, dialect) : null;
  // A request is in one rank, whatever the others have.
  const rankTokens = Math.min(...(ranks ?? []).map((rank) => rank.kvTokens));
  const contextTokens = Math.min(options.contextTokens ?? model.contextTokens, rankTokens);
  return {
    ...dialect,
    version: typeof version === "string" ? version : null,
    contextTokens,
    traits: {
      model: model.id,
      max_model_len: model.contextTokens,
      dtype: info.dtype,
      quantization: info.quantization,
    },
    slots,
    kvTokens,
    ranks,
    isDivisible: hybrid === null,
    kvBlockTokens: metrics.cache?.blockSize ?? 1,
    isSpeculative: info.isSpeculative,
    connector: info.connector,
    metrics,
    sglang: null,
    warnings: [
      ...warningsOf(dialect, info),
      ...(engines > 1 && ranks === null ? [UNPINNED] : []),
      ...(hybrid === null ? [] : [hybrid]),
    ],
  };
}

/** @throws AppError worker_failed: it generates no tokens, or reports no KV. */
async function probeSglang(options: ProbeOptions, sglang: SglangServer): Promise<Capabilities> {
  const { client } = options;
  const model = options.model ?? sglang.model;
  const dialect = await sglangDialect(options, { sglang, model });
  const { metrics, problem } = await watchOf(sglang).poll((path) => ask(options, path));
  if (metrics === null) throw new AppError("worker_failed", `${client.url}${problem}`);
  const kvTokens = options.kvTokens ?? sglang.kvTokens;
  const contextTokens = options.contextTokens ?? sglang.contextTokens;
  if (kvTokens < 1 || contextTokens < 2) {
    const field = kvTokens < 1 ? "max_total_num_tokens" : "max_req_input_len";
    throw new AppError("worker_failed", `${client.url}${sglang.infoPath} lacks ${field}`);
  }
  const { reportsExperts: _, ...known } = dialect;
  const hybrid = sglang.isHybrid ? await hybridProblem(options, known) : null;
  return {
    ...known,
    version: sglang.version,
    contextTokens,
    traits: {
      model,
      max_model_len: contextTokens,
      dtype: sglang.dtype,
      quantization: sglang.quantization,
    },
    slots: options.slots ?? sglang.slots ?? SLOTS_DEFAULT,
    kvTokens,
    kvBlockTokens: sglang.kvBlockTokens,
    ranks: null,
    isDivisible: hybrid === null,
    // Of vLLM's drafting, which some sampling parameters do not go with.
    isSpeculative: false,
    reportsExperts: sglang.reportsExperts,
    connector: null,
    metrics,
    sglang,
    warnings: [
      ...(sglang.hasPriorities ? [] : [SGLANG_UNORDERED]),
      ...(known.hasStreamSettings ? [] : [SGLANG_INTERVAL]),
      ...(sglang.dpSize > 1 ? [SGLANG_RANKS] : []),
      ...(hybrid === null ? [] : [hybrid]),
    ],
  };
}

const SGLANG_UNORDERED =
  "no priorities: the tail is served first with --enable-priority-scheduling";
const SGLANG_INTERVAL =
  "it repeats a response's tokens in each event, and takes no stream_interval: --incremental-streaming-output, or --stream-interval 32";
const SGLANG_RANKS =
  "it has data parallel ranks and places each chunk itself, so that little of its prefix may be found";

/** From the most that a release may understand to the least. */
async function sglangDialect(
  options: ProbeOptions,
  { sglang, model }: { sglang: SglangServer; model: string },
) {
  const { client, limits, cacheSalt } = options;
  const problems: string[] = [];
  for (const [hasStreamSettings, hasSeeds] of [
    [true, true],
    [false, true],
    [false, false],
  ] as const) {
    const dialect: Dialect = {
      endpoint: "sglang",
      model,
      hasPriorities: sglang.hasPriorities,
      highestFirst: sglang.highestFirst,
      logprobsMax: TOP_LOGPROBS_MAX,
      hasStreamSettings,
      hasSeeds,
    };
    const result = await canary(client, { dialect, cacheSalt, msMax: limits.startMsMax });
    if (result.kind === "ok") return { ...dialect, reportsExperts: result.reportsExperts };
    // A release that does not know a sampling parameter breaks the connection.
    problems.push(result.message);
  }
  const why = [...new Set(problems)].join("; ");
  throw new AppError("worker_failed", `${client.url}/generate makes no tokens: ${why}`);
}

const UNPINNED =
  "it has data parallel ranks, and X-data-parallel-rank does not choose one: it puts each chunk anywhere, so that little of its prefix is found";

/** A server that reads the header refuses a rank that it does not have. */
async function isPinned(
  options: ProbeOptions,
  dialect: Dialect,
  engines: number,
): Promise<boolean> {
  const { client, limits, cacheSalt } = options;
  const msMax = limits.checkMsMax;
  const result = await canary(client, { dialect, cacheSalt, msMax, rank: engines });
  return result.kind === "refused" && result.status === 400;
}

function ranksOf(
  { engines, slots, kvTokens }: { engines: number; slots: number; kvTokens: number },
  cache: CacheConfig | null,
): RankCapacity[] {
  const share = Math.floor(kvTokens / engines);
  const least = cache === null ? share : (cache.blocksMin - 1) * cache.blockSize;
  const rank = { slots: Math.ceil(slots / engines), kvTokens: Math.min(share, least) };
  return Array.from({ length: engines }, () => rank);
}

export type CanaryResult =
  | { readonly kind: "ok"; readonly hasCount: boolean; readonly reportsExperts: boolean }
  | { readonly kind: "refused"; readonly status: number; readonly message: string }
  | { readonly kind: "unreachable"; readonly message: string };

/** Has the server make one token: the proof that it serves. */
export async function canary(
  client: HttpClient,
  options: { dialect: Dialect; cacheSalt: string; msMax: number; rank?: number },
): Promise<CanaryResult> {
  const { dialect, cacheSalt, msMax, rank } = options;
  const body = chunkBody({ ...PROBE_ASK, cacheSalt, run: cacheSalt }, dialect);
  const path = ENDPOINT_PATHS[dialect.endpoint];
  const call = { method: "POST" as const, path, body, ...(rank === undefined ? {} : { rank }) };
  const answer = await client.answer(call, msMax);
  if (answer.kind === "unreachable") return answer;
  const { status } = answer;
  if (status !== 200) return { kind: "refused", status, message: errorMessage(answer.body) };
  return readCanary(answer.body);
}

function readCanary(body: string): CanaryResult {
  let result: CanaryResult = { kind: "refused", status: 0, message: "its stream holds no token" };
  new SseReader(body.length + 1).push(Buffer.from(body), (data) => {
    const event = readEvent(data, 0);
    if (event.kind === "error") {
      result = { kind: "refused", status: event.status, message: event.message };
      return false;
    }
    if (event.kind !== "piece" || event.tokens.length === 0) return true;
    const hasCount = event.usage?.completionTokens === event.tokens.length;
    if ((event.tokens[0] ?? -1) < 0) {
      result = { kind: "refused", status: 0, message: "it reports no token ids" };
    } else if (event.logprobs.length !== event.tokens.length) {
      result = { kind: "refused", status: 0, message: "it reports no logprobs" };
    } else {
      const reportsExperts = withoutExperts({ expertsFrom: 0 }, data).experts !== null;
      result = { kind: "ok", hasCount, reportsExperts };
    }
    return false;
  });
  return result;
}

async function waitForHealth({ client, clock, limits }: ProbeOptions): Promise<void> {
  const endMs = clock.nowMs() + limits.healthMsMax;
  for (;;) {
    const answer = await client.answer(
      { method: "GET", path: "/health", body: null },
      limits.checkMsMax,
    );
    if (answer.kind === "answer" && answer.status === 200) return;
    const problem = problemOf(answer);
    if (answer.kind === "answer" && (answer.status === 401 || answer.status === 403)) {
      throw new AppError("unauthorized", `${client.url} refuses the API key: ${problem}`);
    }
    if (clock.nowMs() >= endMs) {
      const isLoading = answer.kind === "answer" && answer.status === 503;
      const state = isLoading ? "is still loading (503)" : `is not healthy: /health: ${problem}`;
      throw new AppError("worker_failed", `${client.url} ${state}`);
    }
    await pause(clock, Math.min(HEALTH_PAUSE_MS, limits.healthMsMax));
  }
}

async function ask(options: ProbeOptions, path: string): Promise<HttpAnswer> {
  const { client, limits } = options;
  return await client.answer({ method: "GET", path, body: null }, limits.checkMsMax);
}

async function modelOf(options: ProbeOptions): Promise<{ id: string; contextTokens: number }> {
  const { url } = options.client;
  const answer = await ask(options, "/v1/models");
  if (answer.kind === "answer" && answer.status === 401) {
    throw new AppError("unauthorized", `${url} refuses the API key (--api-key)`);
  }
  const list = jsonField(answer, "data");
  if (!Array.isArray(list)) {
    throw new AppError("worker_failed", `${url}/v1/models lists no model: ${problemOf(answer)}`);
  }
  const models: Record<string, unknown>[] = list;
  // Adapters (LoRA) have a parent.
  const model =
    options.model === null
      ? (models.find((entry) => entry.parent == null) ?? models[0])
      : models.find((entry) => entry.id === options.model);
  const id = model?.id;
  if (typeof id !== "string") {
    const names = models.map((entry) => String(entry.id)).join(", ");
    const wanted = options.model === null ? "a model" : `the model "${options.model}"`;
    throw new AppError("not_found", `${url} does not serve ${wanted}; it serves: ${names}`);
  }
  const contextTokens = options.contextTokens ?? model?.max_model_len;
  if (typeof contextTokens !== "number" || contextTokens < 2) {
    throw new AppError("worker_failed", `${url}/v1/models has no max_model_len of ${id}`);
  }
  return { id, contextTokens };
}

interface ServerInfo {
  readonly slots: number | null;
  /** null: not seen, as of those that follow. */
  readonly dtype: string | null;
  readonly quantization: string | null;
  readonly policy: string | null;
  readonly logprobsMode: string | null;
  readonly logprobsMax: number;
  readonly isSpeculative: boolean;
  readonly showsCachedTokens: boolean | null;
  readonly hasSeeds: boolean;
  readonly connector: FoundConnector | null;
}

/** JSON has {"device": "cpu"} within it, the text of older versions the device itself. */
const ON_CPU = /device_config["']?\s*[:=]\s*(?:\{[^{}]*?["']device["']\s*:\s*)?["']?cpu\b/;

/** Development mode only (VLLM_SERVER_DEV_MODE=1); older versions answer with Python's text of the settings. */
async function serverInfo(options: ProbeOptions): Promise<ServerInfo> {
  const answer = await ask(options, "/server_info?config_format=json");
  const text = answer.kind === "answer" && answer.status === 200 ? answer.body : "";
  const find = (name: string, value: string): string | null =>
    new RegExp(`["']?\\b${name}["']?\\s*[:=]\\s*["']?(${value})`).exec(text)?.[1] ?? null;
  const slots = Number(find("max_num_seqs", "\\d+") ?? 0);
  const logprobsMax = Number(find("max_logprobs", "-?\\d+") ?? LOGPROBS_MAX_DEFAULT);
  const speculative = find("speculative_config", "\\w+|[({<]");
  return {
    slots: slots > 0 ? slots : null,
    dtype: find("dtype", "[\\w.]+"),
    quantization: find("quantization", "\\w+")?.replace(/^(null|None)$/, "none") ?? null,
    policy: /["']?\bpolicy["']?\s*[:=]\s*["'](fcfs|priority)/.exec(text)?.[1] ?? null,
    logprobsMode: find("logprobs_mode", "\\w+"),
    // -1: as many as the vocabulary has. The port reports 20 at most.
    logprobsMax: logprobsMax < 0 ? Number.MAX_SAFE_INTEGER : logprobsMax,
    isSpeculative: speculative !== null && !/^(null|None)$/.test(speculative),
    showsCachedTokens: flagOf(find("enable_prompt_tokens_details", "true|false|True|False")),
    connector: connectorOf(jsonField(answer, "vllm_config")),
    // On CPU the server ends when a prompt is split over two steps and its request has a seed: vLLM takes back the
    // random number of the first one, and "CPU Generator does not use offset" (seen in 0.32).
    hasSeeds: !ON_CPU.test(text) || flagOf(find("enable_chunked_prefill", "true|True")) !== true,
  };
}

function flagOf(text: string | null): boolean | null {
  return text === null ? null : text.toLowerCase() === "true";
}

async function dialectOf(
  options: ProbeOptions,
  known: { model: string; logprobsMax: number; policy: string | null; hasSeeds: boolean },
): Promise<Dialect & Pick<Capabilities, "reportsExperts">> {
  const { client, limits, cacheSalt } = options;
  const problems: string[] = [];
  for (const endpoint of ["generate", "completions"] as const) {
    const path = ENDPOINT_PATHS[endpoint];
    const there = await ask(options, path);
    // A POST route answers 405 to GET; disabled scale-out endpoints answer 403, unknown ones 404.
    const isThere = there.kind === "answer" && there.status !== 403 && there.status !== 404;
    if (!isThere) {
      problems.push(`${path}: ${problemOf(there)}`);
      continue;
    }
    for (const settings of settingsToTry(known.policy)) {
      const { model, logprobsMax, hasSeeds } = known;
      const dialect: Dialect = { endpoint, model, logprobsMax, hasSeeds, ...settings };
      const result = await canary(client, { dialect, cacheSalt, msMax: limits.startMsMax });
      if (result.kind === "ok") {
        const { hasCount, reportsExperts } = result;
        return { ...dialect, ...(hasCount ? {} : NO_SETTINGS), reportsExperts };
      }
      problems.push(`${path}: ${result.message}`);
      // Nothing that is left away helps against these.
      if (result.kind === "unreachable" || result.status >= 500) break;
    }
  }
  const why = [...new Set(problems)].join("; ");
  const missing = "token ids in, and token ids with logprobs out (vLLM >= 0.22)";
  throw new AppError("worker_failed", `${client.url} has no endpoint for ${missing}: ${why}`);
}

const NO_SETTINGS = { hasStreamSettings: false } as const;

/** From the most that a server may understand to the least. */
function settingsToTry(
  policy: string | null,
): Pick<Dialect, "hasPriorities" | "hasStreamSettings">[] {
  const all = { hasPriorities: true, hasStreamSettings: true };
  const fair = { hasPriorities: false, hasStreamSettings: true };
  const plain = { hasPriorities: false, hasStreamSettings: false };
  if (policy === "fcfs") return [fair, plain];
  return [all, fair, plain];
}

async function metricsOf(options: ProbeOptions): Promise<ServerMetrics> {
  const answer = await ask(options, "/metrics");
  if (answer.kind === "answer" && answer.status === 200) return readMetrics(answer.body);
  throw new AppError(
    "worker_failed",
    `${options.client.url}/metrics cannot be read: ${problemOf(answer)}`,
  );
}

/** vLLM keeps the first block of each engine for itself. @throws AppError worker_failed: the server reports no KV. */
function kvBudget({ client }: ProbeOptions, cache: CacheConfig | null): number {
  if (cache !== null) return (cache.blocks - cache.engines) * cache.blockSize;
  const missing = "vllm:cache_config_info with block_size and num_gpu_blocks";
  const message = `${client.url}/metrics lacks ${missing}: give the number of KV tokens of the server`;
  throw new AppError("worker_failed", message);
}

function warningsOf(dialect: Dialect, info: ServerInfo): string[] {
  const warnings: string[] = [];
  if (info.logprobsMode !== null && info.logprobsMode !== "processed_logprobs") {
    warnings.push(
      `logprobs are ${info.logprobsMode}: those of the tokens as drawn need --logprobs-mode processed_logprobs`,
    );
  }
  if (!dialect.hasPriorities) {
    warnings.push("no priorities: the tail is served first with --scheduling-policy priority");
  }
  if (!dialect.hasSeeds) {
    warnings.push(
      "seeds are not sent, for it would end at the first prompt that is split over two steps: --no-enable-chunked-prefill",
    );
  }
  if (info.showsCachedTokens === false) {
    warnings.push(
      "cached tokens are not reported, so reuse of KV cannot be seen: --enable-prompt-tokens-details",
    );
  }
  if (dialect.endpoint === ("completions" satisfies Endpoint)) {
    warnings.push("/inference/v1/generate is not there or not enabled: --enable-scale-out");
  }
  return warnings;
}

function jsonField(answer: HttpAnswer, field: string): unknown {
  if (answer.kind !== "answer" || answer.status !== 200) return null;
  try {
    const json = parseJson(answer.body);
    return typeof json === "object" && json !== null ? Reflect.get(json, field) : null;
  } catch {
    return null;
  }
}

function problemOf(answer: HttpAnswer): string {
  if (answer.kind === "unreachable") return answer.message;
  return answer.status === 200
    ? "the answer is not what was expected"
    : `HTTP ${answer.status} ${errorMessage(answer.body).slice(0, 200)}`;
}
