// vLLM's dialect, and the probe of a server's capabilities: versions differ, so they are tested and not assumed. A missing
// capability that is indispensable is an error, which names the URL and the capability.

import { AppError } from "../../core/base/errors.ts";
import { chunkBody } from "./body.ts";
import { classify } from "./chunk-request.ts";
import { connectorOf } from "./connectors.ts";
import { vllmControl } from "./control.ts";
import {
  type Capabilities,
  ENDPOINT_PATHS,
  type EngineDialect,
  type Get,
  type Polled,
  type RequestForm,
  type ServerAccess,
  unpolled,
} from "./dialect.ts";
import { hybridProblem } from "./divided-check.ts";
import { type HttpAnswer, jsonIn, problemIn } from "./http.ts";
import { type CacheConfig, readMetrics } from "./metrics.ts";
import { modelIn } from "./served-model.ts";
import { readEvent } from "./stream-event.ts";
import { supportOf } from "./support.ts";
import { proveServing } from "./trial.ts";

/** vLLM's default of `max_num_seqs` on most devices; a server reports its own in development mode only. */
export const SLOTS_DEFAULT = 256;
/** vLLM's default `--max-logprobs`. */
export const LOGPROBS_MAX_DEFAULT = 20;

/** Values of rejection_sample_method that change the distribution of the model's tokens. */
const LOSSY: ReadonlySet<string | null> = new Set(["fly", "synthetic"]);

export const VLLM_DIALECT: EngineDialect = {
  probe,
  body: chunkBody,
  read: (data, topLogprobs) => readEvent(data, topLogprobs),
  abort: () => null,
  takesAborts: false,
  control: vllmControl,
  poll,
  versionPath: "/weight_info",
  healthPath: "/health",
  supports: supportOf,
  experts: (npy) => npy,
  emptyCache: null,
};

async function probe(access: ServerAccess): Promise<Capabilities> {
  const { client, limits } = access;
  const get = (path: string) => client.get(path, limits.checkMsMax);
  const version = jsonIn(await get("/version"))?.version;
  const { id: model, contextTokens } = modelIn(client.url, await get("/v1/models"));
  if (contextTokens === null || contextTokens < 2) {
    throw new AppError("worker_failed", `${client.url}/v1/models has no max_model_len of ${model}`);
  }
  const info = infoIn(await get("/server_info?config_format=json"));
  if (LOSSY.has(info.verification)) {
    const problem = `accepts drafts by rejection_sample_method ${info.verification}, so that its tokens are of another distribution`;
    const fix = `start it with "standard" or "block"`;
    throw new AppError("invalid_config", `${client.url} ${problem}: ${fix}`);
  }
  const { reportsExperts, ...form } = await formOf(access, get, { model, info });
  const polled = await poll(get);
  if (polled.kind === "none") throw new AppError("worker_failed", client.url + polled.problem);
  const { metrics } = polled;
  const server = { ...access, dialect: VLLM_DIALECT, form };
  const engines = metrics.cache?.engines ?? 1;
  const slots = (info.slots ?? SLOTS_DEFAULT) * engines;
  const kvTokens = kvBudget(client.url, metrics.cache);
  const isHybrid = metrics.cache?.isHybrid === true;
  const hybrid = isHybrid ? await hybridProblem(server) : null;
  return {
    ...form,
    reportsExperts,
    version: typeof version === "string" ? version : null,
    contextTokens: Math.min(contextTokens, rankTokens(metrics.cache)),
    traits: {
      model,
      max_model_len: contextTokens,
      dtype: info.dtype,
      quantization: info.quantization,
      disable_lookahead_block_hashes: info.connector?.row?.isPool ? info.hashes : null,
    },
    slots,
    kvTokens,
    ranks: engines,
    isDivisible: hybrid === null,
    kvBlockTokens: metrics.cache?.blockSize ?? 1,
    isSpeculative: info.isSpeculative,
    connector: info.connector,
    config: info.config,
    metrics,
    warnings: [
      ...warningsOf(form, info),
      ...(engines > 1 ? [RANKS] : []),
      ...(hybrid === null ? [] : [hybrid]),
    ],
  };
}

async function poll(get: Get): Promise<Polled> {
  const answer = await get("/metrics");
  if (answer.kind !== "answer" || answer.status !== 200) return unpolled("/metrics", answer);
  return { kind: "metrics", metrics: readMetrics(answer.body) };
}

const RANKS =
  "it has data parallel ranks and places each chunk itself, so that little of its prefix may be found: " +
  "give each rank a port (--data-parallel-rank), and all their URLs";

/** KV tokens of the smallest rank: a request runs in one rank. */
function rankTokens(cache: CacheConfig | null): number {
  if (cache === null || cache.engines === 1) return Number.POSITIVE_INFINITY;
  return (cache.blocksMin - 1) * cache.blockSize;
}

type ServerInfo = ReturnType<typeof infoIn>;

/** Finds a CPU device: as {"device": "cpu"} in JSON, directly in the text of older versions. */
const ON_CPU = /device_config["']?\s*[:=]\s*(?:\{[^{}]*?["']device["']\s*:\s*)?["']?cpu\b/;

/** Reads /server_info (development mode only: VLLM_SERVER_DEV_MODE=1). Older versions answer with Python's text of it. */
function infoIn(answer: HttpAnswer) {
  const text = answer.kind === "answer" && answer.status === 200 ? answer.body : "";
  const find = (name: string, value: string): string | null =>
    new RegExp(`["']?\\b${name}["']?\\s*[:=]\\s*["']?(${value})`).exec(text)?.[1] ?? null;
  const slots = Number(find("max_num_seqs", "\\d{1,9}") ?? 0);
  const logprobsMax = Number(find("max_logprobs", "-?\\d{1,9}") ?? LOGPROBS_MAX_DEFAULT);
  const speculative = find("speculative_config", "\\w+|[({<]");
  const config = jsonIn(answer)?.vllm_config;
  return {
    config,
    slots: slots > 0 ? slots : null,
    // null: not reported. So are the fields that follow.
    dtype: find("dtype", "[\\w.]+"),
    quantization: find("quantization", "\\w+")?.replace(/^(null|None)$/, "none") ?? null,
    policy: /["']?\bpolicy["']?\s*[:=]\s*["'](fcfs|priority)/.exec(text)?.[1] ?? null,
    verification: find("rejection_sample_method", "\\w+"),
    hashes: find("disable_lookahead_block_hashes", "\\w+")?.toLowerCase() ?? null,
    logprobsMode: find("logprobs_mode", "\\w+"),
    // -1: as many as the vocabulary has. The port reports 20 at most.
    logprobsMax: logprobsMax < 0 ? Number.MAX_SAFE_INTEGER : logprobsMax,
    isSpeculative: speculative !== null && !/^(null|None)$/.test(speculative),
    hidesCachedTokens: find("enable_prompt_tokens_details", "[fF]alse") !== null,
    connector: connectorOf(config),
    // On CPU the server ends when a prompt is split over two steps and its request has a seed: vLLM takes back the
    // random number of the first one, and "CPU Generator does not use offset" (seen in 0.32).
    hasSeeds: !ON_CPU.test(text) || find("enable_chunked_prefill", "[tT]rue") === null,
  };
}

/** Finds the best form of requests by trials. @throws AppError worker_failed: no endpoint accepts and reports token ids. */
async function formOf(
  access: ServerAccess,
  get: Get,
  { model, info }: { model: string; info: ServerInfo },
): Promise<RequestForm & Pick<Capabilities, "reportsExperts">> {
  const { logprobsMax, hasSeeds } = info;
  const problems: string[] = [];
  for (const endpoint of ["generate", "completions"] as const) {
    const path = ENDPOINT_PATHS[endpoint];
    const route = await get(path);
    // A POST route answers 405 to GET; disabled scale-out endpoints answer 403, unknown ones 404.
    const hasRoute = route.kind === "answer" && route.status !== 403 && route.status !== 404;
    if (!hasRoute) {
      problems.push(`${path}: ${problemIn(route)}`);
      continue;
    }
    for (const settings of SETTINGS.slice(info.policy === "fcfs" ? 1 : 0)) {
      const form: RequestForm = { endpoint, model, logprobsMax, hasSeeds, ...settings };
      const server = { ...access, dialect: VLLM_DIALECT, form };
      const tried = await proveServing(server, { msMax: access.limits.startMsMax });
      if (tried.kind === "made") {
        const { hasCount, reportsExperts } = tried;
        return { ...form, ...(hasCount ? {} : NO_SETTINGS), reportsExperts };
      }
      // The other endpoint, which tells less, might be let in a moment later.
      if (tried.kind === "refused" && classify(tried) === "full") {
        throw new AppError("worker_failed", `${access.client.url} is full: ${tried.message}`);
      }
      problems.push(`${path}: ${tried.message}`);
      // Nothing that is left away helps against these.
      if (tried.kind === "unreachable" || tried.status >= 500) break;
    }
  }
  const missing = "no endpoint for token ids in, and token ids with logprobs out (vLLM >= 0.22)";
  const why = [...new Set(problems)].join("; ");
  throw new AppError("worker_failed", `${access.client.url} has ${missing}: ${why}`);
}

const NO_SETTINGS = { hasStreamSettings: false } as const;

/** The settings to try, from those of the newest servers to those of the oldest. */
const SETTINGS = [
  { hasPriorities: true, hasStreamSettings: true },
  { hasPriorities: false, hasStreamSettings: true },
  { hasPriorities: false, hasStreamSettings: false },
];

/** KV tokens of all engines, without each engine's first block, which vLLM reserves. @throws AppError worker_failed. */
function kvBudget(url: string, cache: CacheConfig | null): number {
  if (cache !== null) return (cache.blocks - cache.engines) * cache.blockSize;
  const missing = "vllm:cache_config_info with block_size and num_gpu_blocks";
  throw new AppError("worker_failed", `${url}/metrics lacks ${missing}`);
}

function warningsOf(form: RequestForm, info: ServerInfo): string[] {
  const warnings: string[] = [];
  if (info.logprobsMode !== null && info.logprobsMode !== "processed_logprobs") {
    warnings.push(
      `logprobs are ${info.logprobsMode}: those of the tokens as drawn need --logprobs-mode processed_logprobs`,
    );
  }
  if (!form.hasPriorities) {
    warnings.push("no priorities: the tail is served first with --scheduling-policy priority");
  }
  if (!form.hasSeeds) {
    warnings.push(
      "seeds are not sent, for it would end at the first prompt that is split over two steps: --no-enable-chunked-prefill",
    );
  }
  if (info.hidesCachedTokens) {
    warnings.push(
      "cached tokens are not reported, so reuse of KV cannot be seen: --enable-prompt-tokens-details",
    );
  }
  if (form.endpoint === "completions") {
    warnings.push("/inference/v1/generate is not there or not enabled: --enable-scale-out");
  }
  return warnings;
}
