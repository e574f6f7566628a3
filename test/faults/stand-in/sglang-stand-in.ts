// A stand-in for an SGLang server, and no SGLang: routes, fields and events as in the source of 0.5.23 (http_server.py,
// io_struct.py, sampling_params.py, tokenizer_manager.py, schedule_batch.py), or of an older release. Its text depends on
// the request's seed and on all tokens before, and it shows faults on demand.

import type { IncomingMessage, ServerResponse } from "node:http";
import { type Made, StandInEngine } from "./engine.ts";
import type { Fault } from "./faults.ts";
import { BASE_DEFAULTS, type Body, StandIn, type StandInBase, send, sendText } from "./server.ts";
import { StandInStream } from "./stream.ts";
import { EOS, standInCandidates, standInLogprob, VOCABULARY_SIZE } from "./tokens.ts";

export interface SglangStandInOptions extends StandInBase {
  /** Requests may have a stream_interval of their own. */
  readonly hasStreamIntervals: boolean;
  /** --incremental-streaming-output. */
  readonly isIncremental: boolean;
  readonly hasPriorities: boolean;
  /** --enable-return-routed-experts. */
  readonly reportsExperts: boolean;
  readonly architectures: readonly string[];
}

const DEFAULTS: SglangStandInOptions = {
  ...BASE_DEFAULTS,
  hasStreamIntervals: true,
  isIncremental: false,
  hasPriorities: false,
  reportsExperts: false,
  architectures: ["Qwen3ForCausalLM"],
};

const PARAMS = new Set([
  ...["max_new_tokens", "stop", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "n"],
  ...["frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens", "regex"],
  ...["json_schema", "ebnf", "structural_tag", "ignore_eos", "skip_special_tokens", "logit_bias"],
  ...[
    "spaces_between_special_tokens",
    "no_stop_trim",
    "custom_params",
    "sampling_seed",
    "stop_regex",
  ],
]);
/** Layers times experts of a token. */
const EXPERTS_WIDTH = 6;

export class SglangStandIn extends StandIn<SglangStandInOptions> {
  readonly aborts: string[] = [];
  readonly updates: Body[] = [];
  readonly adapters = new Set<string>();
  weightVersion = "default";
  flushes = 0;
  /** The weights give every token the same logprob. */
  isFlat = false;
  #seed = 100;
  #names = new Set<string>();

  static start(options: Partial<SglangStandInOptions> = {}): Promise<SglangStandIn> {
    return new SglangStandIn({ ...DEFAULTS, ...options }).listen();
  }

  protected forget(): void {
    this.#names = new Set();
    this.#seed += 1;
    this.weightVersion = "default";
  }

  protected newEngine(): StandInEngine {
    return new StandInEngine(this.options, null, () => void this.restart());
  }

  protected answer(request: IncomingMessage, response: ServerResponse, text: string): void {
    const { pathname } = new URL(request.url ?? "/", "http://stand-in");
    const body: Body = text === "" ? {} : JSON.parse(text);
    if (pathname === "/generate") {
      if (request.method === "POST") this.#generate(response, body);
      else send(response, 405, { detail: "Method Not Allowed" });
      return;
    }
    const answer = this.#route(`${request.method} ${pathname}`, body);
    if (answer === null) send(response, 404, { detail: "Not Found" });
    else if (typeof answer.body === "string") sendText(response, answer.status, answer.body);
    else send(response, answer.status, answer.body);
  }

  #route(route: string, body: Body): { status: number; body: unknown } | null {
    const ok = (answer: unknown) => ({ status: 200, body: answer });
    const { engine } = this;
    switch (route) {
      case "GET /health":
        return ok("");
      case "GET /v1/models": {
        const max_model_len = this.options.contextTokens + 6;
        return ok({ data: [{ id: "stand-in", root: "org/stand-in", max_model_len }] });
      }
      case "GET /model_info":
        return ok(this.#modelInfo());
      case "GET /server_info":
        return ok(this.#serverInfo());
      case "GET /v1/loads":
        return ok({ loads: [{ dp_rank: 0, num_running_reqs: engine.running, ...this.#load() }] });
      case "POST /abort_request":
        this.aborts.push(String(body.rid));
        this.#abort(body);
        return ok("");
      case "POST /flush_cache":
        if (engine.running + engine.waiting > 0)
          return { status: 400, body: "Flush cache failed." };
        this.#flush();
        return ok("Cache flushed.");
      case "POST /pause_generation":
        engine.pause(body.mode === "abort" || body.mode === undefined ? "abort" : "keep");
        return ok({ message: "Generation paused successfully.", status: "ok" });
      case "POST /continue_generation":
        engine.resume();
        return ok({ message: "Generation continued successfully.", status: "ok" });
      case "POST /update_weights_from_disk":
        return this.#update(body);
      case "POST /update_weight_version":
        if (body.abort_all_requests !== false) engine.abortAll();
        this.weightVersion = String(body.new_version);
        return ok({ success: true, message: "", new_version: this.weightVersion });
      case "POST /release_memory_occupation":
      case "POST /resume_memory_occupation":
        return ok(null);
      case "POST /load_lora_adapter":
        this.adapters.add(String(body.lora_name));
        return ok({ success: true, loaded_adapters: {} });
      case "POST /tokenize":
        return ok({ tokens: [...String(body.prompt)].map((c) => c.charCodeAt(0)), count: 0 });
      case "POST /detokenize":
        return ok({
          text: (body.tokens as number[]).map((id) => String.fromCharCode(id)).join(""),
        });
      default:
        return null;
    }
  }

  #modelInfo(): object {
    const { architectures } = this.options;
    const version = { weight_version: this.weightVersion, architectures };
    return { model_path: "org/stand-in", served_model_name: "stand-in", ...version };
  }

  #serverInfo(): object {
    const { options } = this;
    return {
      model_path: "org/stand-in",
      tp_size: 2,
      pp_size: 1,
      dp_size: 1,
      random_seed: this.#seed,
      nccl_port: 20_000 + this.restarts,
      page_size: options.blockSize,
      dtype: "bfloat16",
      quantization: null,
      speculative_algorithm: null,
      enable_priority_scheduling: options.hasPriorities,
      schedule_low_priority_values_first: false,
      enable_return_routed_experts: options.reportsExperts,
      max_total_num_tokens: options.blocks * options.blockSize,
      max_req_input_len: options.contextTokens,
      internal_states: [{ effective_max_running_requests_per_dp: options.slots }],
      version: "0.5.23",
    };
  }

  #load(): object {
    const used = this.engine.blocksUsed * this.options.blockSize;
    return { num_waiting_reqs: this.engine.waiting, num_used_tokens: used };
  }

  /** Every request whose id begins with the given one. */
  #abort({ rid, abort_all: all }: Body): void {
    if (all === true) this.engine.abortAll();
    else
      for (const name of this.#names)
        if (name.startsWith(String(rid))) this.engine.abort(name, false);
  }

  #flush(): void {
    this.flushes += 1;
    this.engine.clearCache();
  }

  #update(body: Body): { status: number; body: unknown } {
    this.updates.push(body);
    if (String(body.model_path).includes("absent")) {
      return { status: 400, body: { success: false, message: "Failed to load: no such folder" } };
    }
    if (typeof body.weight_version === "string") this.weightVersion = body.weight_version;
    this.#flush();
    return { status: 200, body: { success: true, message: "", num_paused_requests: 0 } };
  }

  #problemOf(body: Body): string | null {
    const ids = body.input_ids;
    const params = Object(body.sampling_params) as Body;
    const { hasStreamIntervals } = this.options;
    const unknown = Object.keys(params).find(
      (name) => !PARAMS.has(name) && !(name === "stream_interval" && hasStreamIntervals),
    );
    if (unknown !== undefined) return `Unexpected keyword argument '${unknown}'`;
    if (!Array.isArray(ids) || ids.length === 0) return "input_ids cannot be empty.";
    if (ids.some((id) => !Number.isInteger(id) || id < 0 || id >= VOCABULARY_SIZE)) {
      return "input_ids contains values outside the vocabulary";
    }
    if (ids.length >= this.options.contextTokens) return "The input is longer than the context.";
    if (this.#names.has(String(body.rid))) return `Duplicate request ID detected: ${body.rid}`;
    return null;
  }

  #generate(response: ServerResponse, body: Body): void {
    this.kept(body);
    const problem = this.#problemOf(body);
    if (problem !== null) {
      const error = { error: { message: problem, type: "invalid_request_error", code: 400 } };
      // A stream has begun when its request is checked.
      const isUnknown = problem.startsWith("Unexpected keyword");
      if (isUnknown) response.destroy();
      else if (body.stream !== true) send(response, 400, error);
      else {
        response.writeHead(200, { "content-type": "text/event-stream" });
        response.end(`data: ${JSON.stringify(error)}\n\ndata: [DONE]\n\n`);
      }
      return;
    }
    const prompt = body.input_ids as number[];
    const fault = this.nextFault(prompt);
    if (this.refuses(response, fault, (code, message) => ({ error: { message, code } }))) return;
    this.#run(response, { body, prompt, fault });
  }

  #run(
    response: ServerResponse,
    { body, prompt, fault }: { body: Body; prompt: number[]; fault: Fault | null },
  ): void {
    const params = Object(body.sampling_params) as Body;
    const rid = String(body.rid ?? `anonymous-${this.arrivals}`);
    const engine = this.engine;
    const stream = new StandInStream({
      response,
      fault,
      silenceMs: this.options.silenceMs,
      shown: (one) => this.count(one),
      abort: (silently) => engine.abort(rid, silently),
    });
    const all: number[] = [];
    let sent = 0;
    this.#names.add(rid);
    // A connection that is closed is seen seconds later: the client has to abort.
    response.on("close", () => setTimeout(() => engine.abort(rid, true), 2_000).unref());
    const isStream = body.stream === true;
    if (isStream) stream.begin();
    const interval = Number(params.stream_interval ?? 1);
    // `ignore_eos` ignores stop tokens as well.
    const ignoresEos = params.ignore_eos === true;
    engine.add({
      id: rid,
      prompt,
      sample: Number(params.temperature) > 0 ? Number(params.sampling_seed ?? 42) : 0,
      tokensMax: Math.min(
        Number(params.max_new_tokens ?? 128),
        this.options.contextTokens + 5 - prompt.length,
      ),
      tokensMin: Number(params.min_new_tokens ?? 0),
      stopTokenIds: (params.stop_token_ids ?? []) as number[],
      ignoreEos: ignoresEos,
      ignoresStops: ignoresEos,
      cacheSalt: String(body.extra_key ?? ""),
      priority: Number(body.priority ?? 0) * (this.options.hasPriorities ? -1 : 0),
      made: (made) => {
        if (made.token !== null) all.push(made.token);
        if (made.finish !== null) this.#names.delete(rid);
        const isDue = made.finish !== null || all.length === 1 || all.length - sent >= interval;
        if (!isDue || (!isStream && made.finish === null)) return;
        const event = this.#event(body, { rid, prompt, all, sent: isStream ? sent : 0, made });
        sent = all.length;
        if (!isStream) {
          send(response, 200, event);
          return;
        }
        stream.piece(event, all.length);
        if (made.finish !== null) stream.done();
      },
    });
  }

  #event(
    body: Body,
    about: { rid: string; prompt: number[]; all: number[]; sent: number; made: Made },
  ): object {
    const { rid, prompt, all, sent, made } = about;
    const from = this.options.isIncremental && body.stream === true ? sent : 0;
    const count = Number(body.top_logprobs_num ?? 0);
    const triple = (token: number, logprob: number) => [this.isFlat ? -6.9 : logprob, token, null];
    const start = Number(body.routed_experts_start_len ?? 0);
    return {
      text: "",
      output_ids: all.slice(from),
      meta_info: {
        id: rid,
        finish_reason: finishOf(made, all),
        prompt_tokens: prompt.length,
        weight_version: this.weightVersion,
        num_retractions: 0,
        ...(body.return_logprob === true && {
          input_token_logprobs: [],
          output_token_logprobs: all
            .slice(from)
            .map((token) => triple(token, standInLogprob(token))),
          output_token_logprobs_length: all.length,
        }),
        ...(count > 0 && {
          output_top_logprobs: all.slice(from).map((token) =>
            standInCandidates(token)
              .slice(0, count)
              .map((one) => triple(one.token, one.logprob)),
          ),
        }),
        ...(body.return_routed_experts === true &&
          made.finish !== null && { routed_experts: sglangExperts([...prompt, ...all], start) }),
        completion_tokens: all.length,
        cached_tokens: made.cached,
      },
    };
  }
}

function finishOf({ finish, token, stop }: Made, all: readonly number[]): object | null {
  switch (finish) {
    case null:
      return null;
    case "stop":
      return { type: "stop", matched: stop ?? token ?? EOS };
    case "length":
      return { type: "length", length: all.length };
    default:
      return { type: "abort", message: "Abort", status_code: null, err_type: null };
  }
}

/** 32-bit numbers of all tokens but the last one, from a position on; without a header. */
export function sglangExperts(tokens: readonly number[], from: number): string {
  const rows = tokens.slice(from, -1).flatMap((token, i) => {
    return Array.from({ length: EXPERTS_WIDTH }, (_, k) => (token * 7 + (from + i) * 3 + k) % 61);
  });
  return Buffer.from(Int32Array.from(rows).buffer).toString("base64");
}
