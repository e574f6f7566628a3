// What an SGLang server reports about itself, read once when a worker is opened. Older releases have other names for some
// routes.

import { hashString } from "../../../core/base/hash.ts";
import type { Get, Polled } from "../dialect.ts";
import { jsonIn } from "../http.ts";
import { NO_COUNTERS } from "../metrics.ts";
import { countOf } from "../stream-event.ts";

type Json = Readonly<Record<string, unknown>>;

const MODEL_PATHS = ["/model_info", "/get_model_info"] as const;
const INFO_PATHS = ["/server_info", "/get_server_info"] as const;
const LOAD_PATHS = ["/v1/loads?include=core", "/get_load"] as const;
/** Names of hybrid models, whose layers have state other than KV of tokens, for servers that do not report it. */
const HYBRID_NAMES = /mamba|jamba|falconh1|nemotronh|qwen3next|qwen3_5|kimilinear|bamba|zamba/i;

export type SglangServer = NonNullable<Awaited<ReturnType<typeof sglangServer>>>;

/** Reads a server's facts; null: it is not SGLang. */
export async function sglangServer(get: Get) {
  const model = await firstOf(get, MODEL_PATHS);
  if (model === null || typeof model.json.model_path !== "string") return null;
  const info = await firstOf(get, INFO_PATHS);
  const load = await firstOf(get, LOAD_PATHS);
  if (info === null || load === null) return null;
  const { json } = info;
  const state: Json = Object(Array.isArray(json.internal_states) ? json.internal_states[0] : {});
  const dpSize = countOf(json.dp_size) ?? 1;
  const ranks = (countOf(json.tp_size) ?? 1) * (countOf(json.pp_size) ?? 1);
  const kvTokens = countOf(json.max_total_num_tokens) ?? countOf(state.max_total_num_tokens) ?? 0;
  const slots =
    countOf(state.effective_max_running_requests_per_dp) ?? countOf(json.max_running_requests);
  const { served_model_name: served, architectures } = model.json;
  return {
    model: typeof served === "string" ? served : model.json.model_path,
    version: textOf(json.version),
    /** Path of the model's name and the weight version. */
    modelPath: model.path,
    infoPath: info.path,
    loadPath: load.path,
    // A prompt of max_req_input_len is refused, and a continuation's prompt holds the output so far.
    contextTokens: countOf(json.max_req_input_len) ?? countOf(json.context_length) ?? 0,
    slots: slots === null ? null : slots * dpSize,
    kvTokens: kvTokens * dpSize,
    kvBlockTokens: countOf(json.page_size) ?? 1,
    dpSize,
    worldSize: json.enable_dp_attention === true ? ranks : ranks * dpSize,
    hasPriorities: json.enable_priority_scheduling === true,
    highestFirst: json.schedule_low_priority_values_first !== true,
    /** Tokens are drawn by the request's seed, not by the server's own generator. */
    isDeterministic: json.enable_deterministic_inference === true,
    reportsExperts: json.enable_return_routed_experts === true,
    isHybrid:
      json.uses_mamba_radix_cache === true ||
      HYBRID_NAMES.test(JSON.stringify(architectures ?? "")),
    dtype: textOf(json.dtype),
    quantization: textOf(json.quantization) ?? "none",
  };
}

/** The server's load, and the identity of its process (as `startedS`). */
export async function pollSglang(get: Get, server: SglangServer): Promise<Omit<Polled, "problem">> {
  const info = await get(server.infoPath);
  const process = jsonIn(info);
  if (process === null) return { answer: info, metrics: null };
  const answer = await get(server.loadPath);
  const body = jsonIn(answer);
  const loads: unknown = body?.loads ?? body;
  if (!Array.isArray(loads)) return { answer, metrics: null };
  const sum = (of: (load: Json) => number | null) =>
    loads.reduce((total: number, load: unknown) => total + (of(Object(load)) ?? 0), 0);
  const waiting = sum((load) => countOf(load.num_waiting_reqs));
  const running = sum(
    (load) =>
      countOf(load.num_running_reqs) ??
      (countOf(load.num_reqs) ?? 0) - (countOf(load.num_waiting_reqs) ?? 0),
  );
  const used = sum((load) => countOf(load.num_used_tokens) ?? countOf(load.num_tokens));
  const kvUsage = server.kvTokens === 0 ? 0 : Math.min(1, used / server.kvTokens);
  // A number that identifies the process: its random seed is drawn at the start, unless one is set.
  const { startup_time: startup, random_seed: seed, nccl_port: port } = process;
  const startedS = 1 + hashString(`${startup} ${seed} ${port}`);
  return {
    answer,
    metrics: { running, waiting, kvUsage, counters: NO_COUNTERS, startedS, cache: null },
  };
}

async function firstOf(
  get: Get,
  paths: readonly string[],
): Promise<{ path: string; json: Json } | null> {
  for (const path of paths) {
    const json = jsonIn(await get(path));
    if (json !== null) return { path, json };
  }
  return null;
}

function textOf(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value : null;
}
