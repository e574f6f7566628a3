// SGLang's dialect (0.5.8 to 0.5.23), and the probe of a server's capabilities.

import { AppError } from "../../../core/base/errors.ts";
import { hashString } from "../../../core/base/hash.ts";
import {
  type Capabilities,
  type EngineDialect,
  type Get,
  type Polled,
  type RequestForm,
  type ServerAccess,
  unpolled,
} from "../dialect.ts";
import { hybridProblem } from "../divided-check.ts";
import { jsonIn } from "../http.ts";
import { NO_COUNTERS } from "../metrics.ts";
import { countOf, type Json, readEvent } from "../stream-event.ts";
import { proveServing } from "../trial.ts";
import { SLOTS_DEFAULT } from "../vllm.ts";
import { ridOf, sglangBody, sglangSupport } from "./body.ts";
import { flushCache, MODEL_PATH, sglangControl } from "./control.ts";
import { npyOfRows, sglangPiece } from "./event.ts";

const INFO_PATH = "/server_info";
const LOAD_PATH = "/v1/loads?include=core";
/** SGLang itself has no limit. */
const TOP_LOGPROBS_MAX = 20;
/** Names of hybrid models, whose layers have state other than KV of tokens, for servers that do not report it. */
const HYBRID_NAMES = /mamba|jamba|falconh1|nemotronh|qwen3next|qwen3_5|kimilinear|bamba|zamba/i;

const UNORDERED = "no priorities: the tail is served first with --enable-priority-scheduling";
const INTERVAL =
  "it repeats a response's tokens in each event, and takes no stream_interval: --incremental-streaming-output, or --stream-interval 32";
const RANKS =
  "it has data parallel ranks and places each chunk itself, so that little of its prefix may be found";

export interface SglangCapabilities extends Capabilities {
  readonly worldSize: number;
}

export const SGLANG_DIALECT = {
  probe,
  body: sglangBody,
  read: (data, topLogprobs) => readEvent(data, topLogprobs, sglangPiece),
  // SGLang looks for connections that are closed seconds later, and runs the request meanwhile.
  abort: (chunk) => ({
    method: "POST",
    path: "/abort_request",
    body: JSON.stringify({ rid: ridOf(chunk) }),
  }),
  takesAborts: true,
  control: (client, server: SglangCapabilities) => sglangControl(client, server),
  poll,
  versionPath: MODEL_PATH,
  // Its /health generates a token, which it cannot while it is paused.
  healthPath: LOAD_PATH,
  supports: sglangSupport,
  experts: npyOfRows,
  emptyCache: flushCache,
} satisfies EngineDialect;

/** @throws AppError worker_failed: the server generates no tokens, or reports no KV. */
async function probe(access: ServerAccess): Promise<SglangCapabilities | null> {
  const { client, limits } = access;
  const get = (path: string) => client.get(path, limits.checkMsMax);
  const about = jsonIn(await get(MODEL_PATH));
  const info = jsonIn(await get(INFO_PATH));
  if (typeof about?.model_path !== "string" || info === null) return null;
  const state: Json = Object(Array.isArray(info.internal_states) ? info.internal_states[0] : {});
  const dpSize = countOf(info.dp_size) ?? 1;
  const ranks = (countOf(info.tp_size) ?? 1) * (countOf(info.pp_size) ?? 1);
  const rankTokens = countOf(info.max_total_num_tokens) ?? countOf(state.max_total_num_tokens) ?? 0;
  const kvTokens = rankTokens * dpSize;
  const rankSlots =
    countOf(state.effective_max_running_requests_per_dp) ?? countOf(info.max_running_requests);
  // A prompt of max_req_input_len is refused, and a continuation's prompt holds the output so far.
  const contextTokens = countOf(info.max_req_input_len) ?? countOf(info.context_length) ?? 0;
  const { served_model_name: served, model_path: path, architectures } = about;
  const model = typeof served === "string" ? served : path;
  const hasPriorities = info.enable_priority_scheduling === true;
  const form = await formOf(access, {
    endpoint: "sglang",
    model,
    hasPriorities,
    highestFirst: info.schedule_low_priority_values_first !== true,
    logprobsMax: TOP_LOGPROBS_MAX,
    hasSeeds: true,
  });
  const polled = await poll(get, { kvTokens });
  if (polled.kind === "none") throw new AppError("worker_failed", client.url + polled.problem);
  if (kvTokens < 1 || contextTokens < 2) {
    const field = kvTokens < 1 ? "max_total_num_tokens" : "max_req_input_len";
    throw new AppError("worker_failed", `${client.url}${INFO_PATH} lacks ${field}`);
  }
  const isHybrid =
    info.uses_mamba_radix_cache === true || HYBRID_NAMES.test(JSON.stringify(architectures ?? ""));
  const hybrid = isHybrid
    ? await hybridProblem({ ...access, dialect: SGLANG_DIALECT, form })
    : null;
  return {
    ...form,
    version: textOf(info.version),
    contextTokens,
    traits: {
      model,
      max_model_len: contextTokens,
      dtype: textOf(info.dtype),
      quantization: textOf(info.quantization) ?? "none",
    },
    slots: rankSlots === null ? SLOTS_DEFAULT : rankSlots * dpSize,
    kvTokens,
    kvBlockTokens: countOf(info.page_size) ?? 1,
    // The flag stands for vLLM's drafting, which some sampling parameters do not go with.
    isSpeculative: false,
    reportsExperts: info.enable_return_routed_experts === true,
    connector: null,
    isDivisible: hybrid === null,
    ranks: 1,
    worldSize: info.enable_dp_attention === true ? ranks : ranks * dpSize,
    metrics: polled.metrics,
    warnings: [
      ...(hasPriorities ? [] : [UNORDERED]),
      ...(form.hasStreamSettings ? [] : [INTERVAL]),
      ...(dpSize > 1 ? [RANKS] : []),
      ...(hybrid === null ? [] : [hybrid]),
    ],
  };
}

/** Finds the form of requests by trials, of which older releases take the second one. */
async function formOf(
  access: ServerAccess,
  rest: Omit<RequestForm, "hasStreamSettings">,
): Promise<RequestForm> {
  const problems = new Set<string>();
  for (const hasStreamSettings of [true, false]) {
    const form = { ...rest, hasStreamSettings };
    const server = { ...access, dialect: SGLANG_DIALECT, form };
    const tried = await proveServing(server, { msMax: access.limits.startMsMax });
    if (tried.kind === "made") return form;
    // A release that does not know a sampling parameter breaks the connection.
    problems.add(tried.message);
  }
  const why = [...problems].join("; ");
  throw new AppError("worker_failed", `${access.client.url}/generate makes no tokens: ${why}`);
}

/** The server's load, and the identity of its process (as `startedS`). */
async function poll(get: Get, { kvTokens }: Pick<Capabilities, "kvTokens">): Promise<Polled> {
  const info = await get(INFO_PATH);
  const process = jsonIn(info);
  const answer = process === null ? info : await get(LOAD_PATH);
  const loads = jsonIn(answer)?.loads;
  if (process === null || !Array.isArray(loads)) return unpolled(LOAD_PATH, answer);
  const sum = (name: string) =>
    loads.reduce((total: number, load: unknown) => total + (countOf(Object(load)[name]) ?? 0), 0);
  const kvUsage = kvTokens === 0 ? 0 : Math.min(1, sum("num_used_tokens") / kvTokens);
  // A number that identifies the process: its random seed is drawn at the start, unless one is set.
  const { startup_time: startup, random_seed: seed, nccl_port: port } = process;
  return {
    kind: "metrics",
    metrics: {
      running: sum("num_running_reqs"),
      waiting: sum("num_waiting_reqs"),
      kvUsage,
      counters: NO_COUNTERS,
      startedS: 1 + hashString(`${startup} ${seed} ${port}`),
      cache: null,
    },
  };
}

function textOf(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value : null;
}
