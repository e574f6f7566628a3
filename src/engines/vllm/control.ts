// Operations as calls of vLLM's routes, most of which exist in development mode only. Bodies are passed on unchanged.

import { unreachable } from "../../core/base/assert.ts";
import { errorText } from "../../core/base/errors.ts";
import type { ControlAnswer, EngineOperation } from "../../core/rollout/operation.ts";
import { parseJson } from "../../proto/json.ts";
import type { HttpAnswer, HttpCall, HttpClient } from "./http.ts";

/** Operations that are control calls; a canary is a request for tokens instead. */
export type ServerOperation = Exclude<EngineOperation, { kind: "canary" }>;

/** A bound beyond every caller's own deadline, which is at most `--weights-timeout-s`. */
export const CALLER_MS_MAX = 86_400_000;

const UPDATE_PATHS = {
  connect: "/init_weight_transfer_engine",
  start: "/start_weight_update",
  start_draft: "/start_draft_weight_update",
  part: "/update_weights",
  finish: "/finish_weight_update",
  disconnect: "/shutdown_weight_transfer_engine",
  compare: "/weight_checker",
} as const;
const ASK_PATHS = {
  world_size: "/get_world_size",
  is_asleep: "/is_sleeping",
  weights_version: "/weight_info",
  settings: "/server_info",
} as const;
const CACHE_PATHS = {
  prefix: "/reset_prefix_cache",
  multimodal: "/reset_mm_cache",
  encoder: "/reset_encoder_cache",
} as const;
const TEXT_PATHS = {
  tokenize: "/tokenize",
  detokenize: "/detokenize",
  render: "/v1/chat/completions/render",
  derender: "/v1/chat/completions/derender",
} as const;

/** Returns the function that carries out operations. It never rejects. */
export function vllmControl(client: HttpClient) {
  return async (operation: ServerOperation): Promise<ControlAnswer> => {
    let call: HttpCall;
    try {
      call = callOf(operation);
    } catch (error) {
      return { status: 400, body: { error: `it cannot be sent on: ${errorText(error)}` } };
    }
    return controlAnswer(client.url, await client.answer(call, CALLER_MS_MAX));
  };
}

function callOf(operation: ServerOperation): HttpCall {
  switch (operation.kind) {
    case "load": {
      const { path, options, version } = operation;
      const named = version === null ? {} : { weight_version: version };
      const kwargs = { weights_path: path, ...options };
      return post("/collective_rpc", { method: "reload_weights", kwargs, ...named });
    }
    case "update":
      return post(UPDATE_PATHS[operation.step], operation.body);
    case "sleep": {
      const { level, mode } = operation;
      return post(`/sleep?level=${level}${mode === null ? "" : `&mode=${mode}`}`, null);
    }
    case "wake": {
      // vLLM reads a list as a key that comes several times.
      const tags = new URLSearchParams(
        operation.tags.map((tag): [string, string] => ["tags", tag]),
      );
      return post(withQuery("/wake_up", tags), null);
    }
    case "adapter":
      return post(`/v1/${operation.change}_lora_adapter`, operation.body);
    case "ask": {
      const path = withQuery(ASK_PATHS[operation.about], new URLSearchParams(operation.settings));
      return { method: "GET", path, body: null };
    }
    case "drop_cache": {
      const query = new URLSearchParams(operation.settings);
      return post(withQuery(CACHE_PATHS[operation.cache], query), null);
    }
    case "text":
      return { method: "POST", path: TEXT_PATHS[operation.form], body: operation.body };
    case "rpc":
      return post("/collective_rpc", operation.body);
    case "extension":
      return post(`/${operation.name}`, operation.body);
    default:
      return unreachable(operation);
  }
}

function withQuery(path: string, query: URLSearchParams): string {
  return query.size === 0 ? path : `${path}?${query}`;
}

/** `body` null: none. */
export function post(path: string, body: unknown): HttpCall {
  const written = body === null || body === undefined ? null : JSON.stringify(body);
  return { method: "POST", path, body: written };
}

/** vLLM's message, as HTTP 500, about a method that its workers do not have: nothing was done. */
const NO_METHOD = /Method '[^']*' is not implemented/;

/** An answer with its body as JSON: other text becomes a string, an empty body null. */
export function controlAnswer(url: string, answer: HttpAnswer): ControlAnswer {
  if (answer.kind === "unreachable") {
    return { status: 502, body: { error: `${url}: ${answer.message}` } };
  }
  const { body } = answer;
  const status = answer.status === 500 && NO_METHOD.test(body) ? 400 : answer.status;
  if (body === "") return { status, body: null };
  try {
    return { status, body: parseJson(body) };
  } catch {
    return { status, body };
  }
}
