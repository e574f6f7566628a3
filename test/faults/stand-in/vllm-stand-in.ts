// A stand-in for a vLLM server, and no vLLM: it speaks the protocol (both endpoints, streams, metrics, control
// routes, as a live 0.32 was seen to) and makes tokens that a test can foretell, and it shows faults on demand that a
// real server shows only by accident. It stands on node:http, which can break a connection in mid-line.

import type { IncomingMessage, ServerResponse } from "node:http";
import { hashString } from "../../../src/core/base/hash.ts";
import { StandInEngine, type StandInPool } from "./engine.ts";
import type { Fault } from "./faults.ts";
import { BASE_DEFAULTS, type Body, StandIn, type StandInBase, send, sendText } from "./server.ts";
import {
  errorJson,
  expertsBase64,
  metricsText,
  type Piece,
  pieceJson,
  promptLogprobs,
  type Shape,
  usageEventJson,
  usageJson,
} from "./shapes.ts";
import { StandInStream } from "./stream.ts";
import { VOCABULARY_SIZE } from "./tokens.ts";

export interface StandInOptions extends StandInBase {
  /** disabled: 403, as without --enable-scale-out. */
  readonly generate: "enabled" | "disabled" | "missing";
  readonly returnsTokenIds: boolean;
  /** --scheduling-policy priority. */
  readonly hasPriorities: boolean;
  /** VLLM_SERVER_DEV_MODE=1. */
  readonly isDevMode: boolean;
  /** The device that the server reports. */
  readonly device: "cuda" | "cpu";
  readonly spelling: "0.22" | "0.32";
  /** Tells the count of tokens with every event, when asked to. */
  readonly hasContinuousUsage: boolean;
  readonly apiKey: string | null;
  /** The pool of a MooncakeStoreConnector, shared by all stand-ins that are given it; null: there is none. */
  readonly kvPool: StandInPool | null;
  /** KV is found under every salt. */
  readonly ignoresSalt: boolean;
  /** Name of another connector, which does nothing; null: none. */
  readonly kvConnector: string | null;
  /** The logprobs of a prompt's tokens that the server reports, with the requested number of alternatives. */
  readonly promptLogprobs: (prompt: readonly number[], count: number) => unknown;
  /** Prompts with ids from here on are refused; what it draws is below 1,000. */
  readonly vocabularySize: number;
  /** 0: any free one. */
  readonly port: number;
  /** The server is loading its model: every route answers 503 until `isHealthy` is set. */
  readonly isLoading: boolean;
  /** --data-parallel-size: engines with slots, blocks and a prefix cache of their own. */
  readonly ranks: number;
  /** The model has layers other than attention. */
  readonly isHybrid: boolean;
  /** KV computed for a long prompt differs from the KV of the generation. */
  readonly dividesWrongly: boolean;
  /**
   * As with the plugin's `exact`, a response that has a seed is drawn by it alone, and by the weights that were loaded: it
   * comes out the same however often it is begun again.
   */
  readonly isExact: boolean;
  /** process_start_time_seconds, which tells a restart of the process. */
  readonly startedS: number;
  /** Path of the weights that it starts with; null: it has none. */
  readonly weightsPath: string | null;
  /** --enable-return-routed-experts. */
  readonly reportsExperts: boolean;
  /** Routes of the test's own, before all others but those for tokens; null: it has none for the path. A body of bytes is
   * sent as it is. */
  readonly routes: (
    path: string,
    body: Body,
    source: string,
  ) => { status: number; body: unknown } | null;
}

/** Beyond it a model that divides wrongly says something else. */
const LONG_PROMPT = 100;

export const STAND_IN_DEFAULTS: StandInOptions = {
  ...BASE_DEFAULTS,
  generate: "enabled",
  returnsTokenIds: true,
  hasPriorities: true,
  isDevMode: true,
  device: "cuda",
  spelling: "0.32",
  hasContinuousUsage: true,
  apiKey: null,
  kvPool: null,
  ignoresSalt: false,
  kvConnector: null,
  promptLogprobs,
  vocabularySize: VOCABULARY_SIZE,
  port: 0,
  isLoading: false,
  ranks: 1,
  isHybrid: false,
  dividesWrongly: false,
  isExact: false,
  startedS: 1_795_274_109.5,
  weightsPath: null,
  reportsExperts: false,
  routes: () => null,
};

export class VllmStandIn extends StandIn<StandInOptions> {
  /** Engines of the data parallel ranks after the first. */
  others: StandInEngine[] = [];
  /** Placement of each request for tokens, in order. */
  readonly placed: { name: string; rank: number }[] = [];
  /** While it is false, /health says 503. */
  isHealthy = true;
  weightVersion = "default";
  /** Versions of the weights under which requests came, by the salt of their KV. */
  readonly versionsBySalt = new Map<string, Set<string>>();
  /** Adapters by name, and where each was loaded from. */
  readonly adapters = new Map<string, string>();
  /** The kind of logits that the weights compute. */
  weights: "good" | "nan" | "flat" = "good";
  /** Path of the weights that were loaded last. */
  #weightsPath: string | null;
  #startedS: number;
  #isSleeping = false;

  private constructor(options: StandInOptions) {
    super(options);
    this.#startedS = options.startedS;
    this.#weightsPath = options.weightsPath;
    this.isHealthy = !options.isLoading;
    this.others = this.#newOthers();
  }

  static start(options: Partial<StandInOptions> = {}): Promise<VllmStandIn> {
    const standIn = new VllmStandIn({ ...STAND_IN_DEFAULTS, ...options });
    return standIn.listen(standIn.options.port);
  }

  protected forget(): void {
    this.#weightsPath = this.options.weightsPath;
    this.others = this.#newOthers();
    this.#startedS += 100;
  }

  get engines(): StandInEngine[] {
    return [this.engine, ...this.others];
  }

  #newOthers(): StandInEngine[] {
    return Array.from({ length: this.options.ranks - 1 }, () => this.newEngine());
  }

  protected newEngine(): StandInEngine {
    return new StandInEngine(this.options, this.options.kvPool, () => void this.restart());
  }

  protected answer(request: IncomingMessage, response: ServerResponse, text: string): void {
    const { pathname, searchParams } = new URL(request.url ?? "/", "http://stand-in");
    const method = request.method ?? "GET";
    const { apiKey } = this.options;
    if (pathname.startsWith("/v1/") && apiKey !== null) {
      if (request.headers.authorization !== `Bearer ${apiKey}`) {
        send(response, 401, { error: "Unauthorized" });
        return;
      }
    }
    if (this.options.isLoading && !this.isHealthy) {
      sendText(response, 503, "Service Unavailable");
      return;
    }
    const endpoint = this.#endpointOf(pathname);
    if (endpoint === "disabled") {
      send(response, 403, errorJson(403, "Scale-out endpoints are disabled."));
    } else if (endpoint !== null) {
      if (method !== "POST") send(response, 405, { detail: "Method Not Allowed" });
      else this.#tokens(endpoint, { request, response, text });
    } else {
      const answer = this.#route(method, pathname, searchParams, text);
      if (typeof answer.body === "string") sendText(response, answer.status, answer.body);
      else send(response, answer.status, answer.body);
    }
  }

  #endpointOf(path: string): "generate" | "completions" | "disabled" | null {
    if (path === "/v1/completions") return "completions";
    if (path !== "/inference/v1/generate" || this.options.generate === "missing") return null;
    return this.options.generate === "enabled" ? "generate" : "disabled";
  }

  #route(
    method: string,
    path: string,
    query: URLSearchParams,
    text: string,
  ): { status: number; body: unknown } {
    const { engine, options } = this;
    const ok = (body: unknown) => ({ status: 200, body });
    const own = options.routes(path, jsonOf(text) ?? {}, text);
    if (own !== null) return own;
    switch (`${method} ${path}`) {
      case "GET /health":
        return { status: this.isHealthy ? 200 : 503, body: "" };
      case "GET /version":
        return ok({ version: `${options.spelling}.0+stand-in` });
      case "GET /v1/models":
        return ok({
          object: "list",
          data: [
            { id: "adapter", object: "model", parent: "stand-in", max_model_len: null },
            ...[...this.adapters].map(([id, root]) => ({ id, root, parent: "stand-in" })),
            {
              id: "stand-in",
              object: "model",
              parent: null,
              max_model_len: options.contextTokens,
              owned_by: "a stand-in for vLLM",
            },
          ],
        });
      case "GET /metrics":
        return ok(metricsText(this.engines, { ...options, startedS: this.#startedS }));
      case "GET /load":
        return ok({ server_load: engine.running + engine.waiting });
    }
    if (!options.isDevMode) return { status: 404, body: { detail: "Not Found" } };
    switch (`${method} ${path}`) {
      case "GET /server_info":
        return ok({
          vllm_config: {
            model_config: { max_logprobs: 20, logprobs_mode: "processed_logprobs" },
            scheduler_config: {
              max_num_seqs: options.slots,
              policy: options.hasPriorities ? "priority" : "fcfs",
              enable_chunked_prefill: true,
            },
            device_config: { device: options.device },
            speculative_config: null,
            kv_transfer_config: this.#transferConfig(),
          },
        });
      case "POST /pause": {
        const mode = query.get("mode") ?? "abort";
        if (mode !== "abort" && mode !== "wait" && mode !== "keep") {
          return { status: 400, body: errorJson(400, `unknown mode ${mode}`) };
        }
        for (const one of this.engines) one.pause(mode);
        return ok({ status: "paused" });
      }
      case "POST /resume":
        for (const one of this.engines) one.resume();
        return ok({ status: "resumed" });
      case "GET /is_paused":
        return ok({ is_paused: engine.pauseMode !== null });
      case "POST /sleep":
      case "POST /wake_up":
        this.#isSleeping = path === "/sleep";
        return ok("");
      case "GET /is_sleeping":
        return ok({ is_sleeping: this.#isSleeping });
      case "POST /reset_prefix_cache":
        for (const one of this.engines) one.clearCache();
        return ok({ success: true });
      case "POST /collective_rpc": {
        const { method, kwargs } = jsonOf(text) ?? {};
        const { weights_path: path } = (kwargs ?? {}) as Body;
        if (method === "unknown") {
          return { status: 500, body: errorJson(500, "Method 'unknown' is not implemented.") };
        }
        if (path === "/absent") {
          return { status: 500, body: errorJson(500, "Cannot find any model weights") };
        }
        if (typeof path === "string") {
          this.#weightsPath = path;
          this.weights = path.includes("nan") ? "nan" : path.includes("flat") ? "flat" : "good";
        }
        return ok({ results: [null] });
      }
      case "GET /get_world_size":
        return ok({ world_size: 1 });
      case "GET /weight_info":
        return ok({ weight_version: this.weightVersion });
      case "POST /update_weight_version":
        this.weightVersion = String(jsonOf(text)?.new_version);
        return ok({ weight_version: this.weightVersion });
      case "POST /v1/load_lora_adapter":
        return this.#loadAdapter(jsonOf(text) ?? {});
      case "POST /v1/unload_lora_adapter":
        return this.adapters.delete(String(jsonOf(text)?.lora_name))
          ? ok("Success: LoRA adapter removed.")
          : { status: 404, body: errorJson(404, "The lora adapter cannot be found.") };
      case "POST /abort_requests":
      case "POST /inference/v1/abort_requests":
        return ok({ status: "aborted", aborted: this.#abort(jsonOf(text)?.request_ids) });
      default:
        return { status: 404, body: { detail: "Not Found" } };
    }
  }

  #loadAdapter({ lora_name: name, lora_path: path, load_inplace: inPlace }: Body): {
    status: number;
    body: unknown;
  } {
    if (typeof name !== "string" || typeof path !== "string") {
      return { status: 400, body: errorJson(400, "Both must be provided.") };
    }
    if (path.includes("absent")) {
      return {
        status: 404,
        body: errorJson(404, `Loading lora ${name} failed: no adapter found.`),
      };
    }
    if (this.adapters.has(name) && inPlace !== true) {
      return { status: 400, body: errorJson(400, `'${name}' has already been loaded.`) };
    }
    this.adapters.set(name, path);
    return { status: 200, body: `Success: LoRA adapter '${name}' added successfully.` };
  }

  #transferConfig(): object | null {
    const { kvPool, kvConnector } = this.options;
    if (kvPool !== null) {
      return {
        kv_connector: "MooncakeStoreConnector",
        kv_connector_extra_config: { save_decode_cache: kvPool.savesOutput },
      };
    }
    if (kvConnector === null) return null;
    return { kv_connector: kvConnector, kv_role: "kv_both", kv_connector_extra_config: {} };
  }

  /** Unknown ids are counted too, as the real one does. */
  #abort(ids: unknown): number {
    if (!Array.isArray(ids) || ids.length === 0) {
      return this.engines.reduce((sum, one) => sum + one.abortAll(), 0);
    }
    for (const id of ids) for (const one of this.engines) one.abort(String(id), false);
    return ids.length;
  }

  #tokens(
    endpoint: "generate" | "completions",
    exchange: { request: IncomingMessage; response: ServerResponse; text: string },
  ): void {
    const { request, response, text } = exchange;
    const body = jsonOf(text);
    if (body === null) {
      send(response, 400, errorJson(400, "the body is not JSON"));
      return;
    }
    this.kept(body);
    // An empty name is that of the server's model, as for vLLM (entrypoints/serve/engine/serving.py).
    const model = String(body.model || "stand-in");
    if (model !== "stand-in" && !this.adapters.has(model)) {
      send(response, 404, errorJson(404, `The model \`${model}\` does not exist.`));
      return;
    }
    const rank = Number(request.headers["x-data-parallel-rank"] ?? 0);
    if (rank >= this.options.ranks) {
      const bound = `is out of range [0, ${this.options.ranks}).`;
      send(response, 400, errorJson(400, `data_parallel_rank ${rank} ${bound}`));
      return;
    }
    const problem = this.#problemOf(endpoint, body);
    if (problem !== null) {
      send(response, 400, errorJson(400, problem));
      return;
    }
    const prompt = body[endpoint === "generate" ? "token_ids" : "prompt"] as number[];
    const fault = this.nextFault(prompt);
    if (this.refuses(response, fault, errorJson)) return;
    this.#generate(endpoint, { request, response, body, fault });
  }

  #saltUsed(salt: string): void {
    const versions = this.versionsBySalt.get(salt) ?? new Set();
    this.versionsBySalt.set(salt, versions.add(this.weightVersion));
  }

  /** The rank of a request. Without the header, ranks take turns. */
  #rankOf(request: IncomingMessage): StandInEngine {
    const header = request.headers["x-data-parallel-rank"];
    const rank = header === undefined ? this.arrivals % this.options.ranks : Number(header);
    return this.engines[rank] ?? this.engine;
  }

  #problemOf(endpoint: "generate" | "completions", body: Body): string | null {
    const ids = body[endpoint === "generate" ? "token_ids" : "prompt"];
    if (!Array.isArray(ids) || ids.length === 0) return "the prompt has no token ids";
    const wrong = ids.find(
      (id) => !Number.isInteger(id) || id < 0 || id >= this.options.vocabularySize,
    );
    if (wrong !== undefined) return `Token id ${wrong} is out of vocabulary`;
    const params = paramsOf(endpoint, body);
    const { contextTokens, hasPriorities } = this.options;
    if (ids.length >= contextTokens) return `the prompt has ${ids.length} tokens`;
    if (
      endpoint === "completions" &&
      ids.length + numberOf(params.max_tokens, 16) > contextTokens
    ) {
      return `max_tokens is too large: ${params.max_tokens}`;
    }
    if (!hasPriorities && numberOf(body.priority, 0) !== 0) {
      return "Got priority but Priority scheduling is not enabled.";
    }
    return null;
  }

  #drawnBy({ foretoken_seed: seed, foretoken_sample: sample }: Body): number {
    if (!this.options.isExact || typeof seed !== "number") return numberOf(sample, 0);
    return exactSample(seed, this.#weightsPath);
  }

  #generate(
    endpoint: "generate" | "completions",
    exchange: {
      request: IncomingMessage;
      response: ServerResponse;
      body: Body;
      fault: Fault | null;
    },
  ): void {
    const { response, body, fault } = exchange;
    const { options } = this;
    const engine = this.#rankOf(exchange.request);
    const params = paramsOf(endpoint, body);
    const prompt = body[endpoint === "generate" ? "token_ids" : "prompt"] as number[];
    const extra = (params[endpoint === "generate" ? "extra_args" : "vllm_xargs"] ?? {}) as Body;
    const name = String(body.request_id ?? `anonymous-${this.arrivals}`);
    const id = endpoint === "generate" ? `generate-tokens-${name}` : `cmpl-${name}-0`;
    const streamOptions = (body.stream_options ?? {}) as Body;
    const shape: Shape = {
      endpoint,
      id: endpoint === "generate" ? id : `cmpl-${name}`,
      model: "stand-in",
      weightVersion: this.weightVersion,
      logprobs: typeof params.logprobs === "number" ? params.logprobs : null,
      returnsTokenIds: options.returnsTokenIds,
      continuousUsage: options.hasContinuousUsage && streamOptions.continuous_usage_stats === true,
    };
    this.#saltUsed(String(body.cache_salt ?? ""));
    const rank = this.engines.indexOf(engine);
    this.placed.push({ name, rank });
    const isStream = body.stream === true;
    const expertsAt = (finish: string | null) =>
      options.reportsExperts && finish !== null
        ? expertsBase64([...prompt, ...all], numberOf(params.routed_experts_prompt_start, 0))
        : null;
    const stream = new StandInStream({
      response,
      fault,
      silenceMs: options.silenceMs,
      shown: (shownFault) => this.count(shownFault),
      abort: (silently) => engine.abort(id, silently),
    });
    const all: number[] = [];
    let pending: number[] = [];
    const interval = numberOf(params.stream_interval, 1);
    response.on("close", () => engine.abort(id, true));
    if (isStream) stream.begin();
    engine.add({
      id,
      prompt,
      sample:
        (options.dividesWrongly && prompt.length > LONG_PROMPT ? prompt.length : 0) +
        this.#drawnBy(extra) +
        pathSample(this.adapters.get(String(body.model)) ?? null),
      tokensMax: Math.min(numberOf(params.max_tokens, 16), options.contextTokens - prompt.length),
      tokensMin: numberOf(params.min_tokens, 0),
      stopTokenIds: Array.isArray(params.stop_token_ids) ? params.stop_token_ids : [],
      ignoreEos: params.ignore_eos === true,
      cacheSalt: options.ignoresSalt ? "" : String(body.cache_salt ?? ""),
      priority: numberOf(body.priority, 0),
      made: ({ token, finish, stop, cached }) => {
        if (token !== null) {
          all.push(token);
          pending.push(token);
        }
        const usage = { prompt: prompt.length, output: all.length, cached };
        if (!isStream) {
          if (finish === null) return;
          const piece = { tokens: all, finish, stop, usage, experts: expertsAt(finish) };
          const whole = pieceJson({ ...shape, continuousUsage: false }, piece) as object;
          const reported =
            typeof params.prompt_logprobs === "number"
              ? { prompt_logprobs: options.promptLogprobs(prompt, params.prompt_logprobs) }
              : {};
          const answer = { ...whole, ...reported, usage: usageJson(usage, true) };
          send(response, 200, drawnWith(this.weights, answer));
          return;
        }
        const isDue = all.length === 1 || pending.length >= interval || finish !== null;
        if (!isDue) return;
        const experts = expertsAt(finish);
        const piece: Piece = { tokens: pending, finish, stop, usage, experts };
        pending = [];
        stream.piece(drawnWith(this.weights, pieceJson(shape, piece)), all.length);
        if (finish === null) return;
        if (streamOptions.include_usage === true) stream.event(usageEventJson(shape, usage));
        stream.done();
      },
    });
  }
}

/** The offset of an adapter, or of weights, for the number of a sample: each has other responses. */
export function pathSample(path: string | null): number {
  return path === null ? 0 : 10_000 + (hashString(path) % 1_000_000);
}

/** The number of a sample that is drawn by its seed (`isExact`). */
export function exactSample(seed: number, weightsPath: string | null): number {
  return (seed % 2 ** 31) + pathSample(weightsPath);
}

/** Weights that are not numbers give no logprobs; those that are all the same give every token the same one. */
function drawnWith(weights: VllmStandIn["weights"], answer: unknown): unknown {
  if (weights === "good") return answer;
  const value = weights === "nan" ? null : -6.9;
  return JSON.parse(JSON.stringify(answer), (key, given) => {
    if (key === "logprob") return value;
    return key === "token_logprobs" ? given.map(() => value) : given;
  });
}

function paramsOf(endpoint: "generate" | "completions", body: Body): Body {
  if (endpoint === "completions") return body;
  return (body.sampling_params ?? {}) as Body;
}

function numberOf(value: unknown, otherwise: number): number {
  return typeof value === "number" ? value : otherwise;
}

function jsonOf(text: string): Body | null {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
