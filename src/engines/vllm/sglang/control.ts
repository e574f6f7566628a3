// SGLang's control plane behind vLLM's routes: a call that the sidecar sends to every engine is written as SGLang's own,
// and its answer as vLLM's. What SGLang has no call for is refused by name.

import type { ControlAnswer, ControlRequest } from "../../../core/rollout/worker.ts";
import { pause } from "../clock.ts";
import { CALLER_MS_MAX, controlAnswer } from "../control.ts";
import type { ControlPlane, ServerAccess } from "../dialect.ts";
import { type HttpCall, type HttpClient, statusProblem } from "../http.ts";
import type { SglangServer } from "./server.ts";

interface Translated {
  readonly call: HttpCall;
  /** vLLM's body in place of SGLang's, where the call succeeded. */
  readonly body?: (answer: unknown) => unknown;
  readonly done?: () => void;
}

const BAD_REQUEST = 400;
const NOT_FOUND = 404;
/** Time for requests that were aborted to leave the engine, s: until then its cache cannot be emptied. */
const FLUSH_S = 5;
/** Parts of SGLang's memory; a request that names none means all. */
const TAGS = ["kv_cache", "weights", "cuda_graph"] as const;

const FLUSH_CALL: HttpCall = {
  method: "POST",
  path: `/flush_cache?timeout=${FLUSH_S}`,
  body: "{}",
};

/** Requests that have just been left keep it from that for a moment. */
export async function flushCache(
  { client, clock, limits }: ServerAccess,
  isWanted: () => boolean,
): Promise<string | null> {
  const endMs = clock.nowMs() + limits.checkMsMax;
  for (;;) {
    const problem = statusProblem(await client.answer(FLUSH_CALL, limits.checkMsMax));
    if (problem === null || !isWanted()) return null;
    if (clock.nowMs() >= endMs) return `/flush_cache: ${problem}`;
    await pause(clock, limits.retryMs);
  }
}

export class SglangControl implements ControlPlane {
  readonly #client: HttpClient;
  readonly #server: SglangServer;
  readonly #freed = new Set<string>();

  constructor(client: HttpClient, server: SglangServer) {
    this.#client = client;
    this.#server = server;
  }

  async isAsleep(): Promise<boolean> {
    return this.#isAsleep;
  }

  get #isAsleep(): boolean {
    return this.#freed.has("kv_cache") || this.#freed.has("weights");
  }

  /** Never rejects. */
  async answer(request: ControlRequest): Promise<ControlAnswer> {
    const route = `${request.method} ${request.path}`;
    if (route === "GET /is_sleeping") return { status: 200, body: { is_sleeping: this.#isAsleep } };
    if (route === "GET /get_world_size") {
      return { status: 200, body: { world_size: this.#server.worldSize } };
    }
    const translated = this.#translated(route, request);
    if ("status" in translated) return translated;
    const { call, body, done } = translated;
    const answer = controlAnswer(this.#client.url, await this.#client.answer(call, CALLER_MS_MAX));
    if (answer.status !== 200) return { ...answer, body: problemIn(answer.body) };
    done?.();
    return body === undefined ? answer : { ...answer, body: body(answer.body) };
  }

  #translated(route: string, { body, query }: ControlRequest): Translated | ControlAnswer {
    const fields: Readonly<Record<string, unknown>> = Object(body);
    switch (route) {
      case "POST /reset_prefix_cache":
        return { call: FLUSH_CALL, body: () => ({ success: true }) };
      case "POST /collective_rpc":
        return this.#rpc(fields);
      case "GET /weight_info": {
        const call: HttpCall = { method: "GET", path: this.#server.modelPath, body: null };
        return { call, body: (answer) => ({ weight_version: Object(answer).weight_version }) };
      }
      case "POST /update_weight_version": {
        const { new_version: version } = fields;
        const written = { new_version: version, abort_all_requests: false };
        return { call: post("/update_weight_version", written) };
      }
      case "POST /sleep":
        return this.#memory("/release_memory_occupation", query, (tag) => this.#freed.add(tag));
      case "POST /wake_up":
        return this.#memory("/resume_memory_occupation", query, (tag) => this.#freed.delete(tag));
      case "POST /v1/load_lora_adapter":
      case "POST /v1/unload_lora_adapter": {
        const { lora_name, lora_path } = fields;
        const path = route.replace("POST /v1", "");
        return {
          call: post(path, { lora_name, ...(lora_path === undefined ? {} : { lora_path }) }),
        };
      }
      case "POST /tokenize":
        return { call: post("/tokenize", { model: this.#server.model, ...fields }) };
      case "POST /detokenize": {
        // Otherwise it leaves special tokens out.
        const written = { model: this.#server.model, skip_special_tokens: false, ...fields };
        const prompt = (answer: unknown) => ({ prompt: Object(answer).text });
        return { call: post("/detokenize", written), body: prompt };
      }
      case "POST /weight_checker":
        return { call: post("/weights_checker", fields) };
      default:
        return refusal(
          NOT_FOUND,
          `${route} is a route of vLLM's, and an SGLang engine has none for it`,
        );
    }
  }

  #rpc({ method, kwargs, weight_version: version }: Readonly<Record<string, unknown>>) {
    const path: unknown = Object(kwargs).weights_path;
    if (method !== "reload_weights" || typeof path !== "string") {
      const problem = "an SGLang engine takes reload_weights with weights_path, and nothing else";
      return refusal(BAD_REQUEST, `method ${JSON.stringify(method)}: ${problem}`);
    }
    const named = typeof version === "string" ? { weight_version: version } : {};
    const call = post("/update_weights_from_disk", { model_path: path, ...named });
    return { call, body: () => ({ results: [null] }) };
  }

  #memory(path: string, query: ControlRequest["query"], mark: (tag: string) => void): Translated {
    const named = (query.tags ?? "").split(",").filter((tag) => tag !== "");
    const done = () => {
      for (const tag of named.length === 0 ? TAGS : named) mark(tag);
    };
    return { call: post(path, named.length === 0 ? {} : { tags: named }), done };
  }
}

function post(path: string, body: object): HttpCall {
  return { method: "POST", path, body: JSON.stringify(body) };
}

function refusal(status: number, message: string): ControlAnswer {
  return { status, body: { error: { message } } };
}

/** Rewrites failures of the form {"success": false, "message": ...}, which clients of vLLM do not look for. */
function problemIn(body: unknown): unknown {
  const { message, error } = Object(body);
  return error === undefined && typeof message === "string" ? { error: { message } } : body;
}
