// The OpenAPI description of the control plane, which is also the table of its routes. Bodies are passed on to the
// engines; fields that they are known to accept are described.

import type { RouteDescription } from "../openapi.ts";
import { DIALECT_DESCRIPTIONS } from "./dialects.ts";

const FLAG = { type: "boolean" } as const;
const TEXT = { type: "string", minLength: 1 } as const;
const ANY = { type: "object" } as const;
const choice = (...names: string[]) => ({ type: "string", enum: names });
const fields = (properties: Record<string, object>, ...required: string[]) => ({
  type: "object",
  properties,
  required,
});

const INIT = fields({ init_info: fields({ rank_offset: { type: "integer" } }) }, "init_info");
const VERSION = fields({ new_version: TEXT }, "new_version");
const LORA = fields(
  { lora_name: TEXT, lora_path: TEXT, load_inplace: FLAG },
  "lora_name",
  "lora_path",
);
const UNLORA = fields({ lora_name: TEXT }, "lora_name");
const RPC = fields({ method: TEXT, args: { type: "array" }, kwargs: ANY }, "method");
const IDS = fields({ request_ids: { type: "array", items: { type: "string" } } }, "request_ids");

const MODE = choice("abort", "wait", "keep");
const TAGS = { type: "array", items: { type: "string" } } as const;
const PAUSE = { mode: MODE, clear_cache: FLAG };
const SLEEP = { level: { type: "integer", enum: [1, 2] }, mode: MODE };
const WAKE = { tags: TAGS };
const RESET = { reset_running_requests: FLAG, reset_external: FLAG };

const get = (path: string, summary: string, more: Partial<RouteDescription> = {}) =>
  ({ method: "GET", path, summary, request: null, streams: false, ...more }) as const;
const post = (path: string, summary: string, more: Partial<RouteDescription> = {}) =>
  ({ ...get(path, summary, more), method: "POST" }) as const;
/** The answer has no body. */
const EMPTY = { answers: [] };

const ENDPOINTS: readonly RouteDescription[] = [
  get("/health", "Whether any worker serves", EMPTY),
  get("/ping", "As /health", EMPTY),
  post("/ping", "As /health", EMPTY),
  get("/liveness", "Whether the server answers (prime-rl)", EMPTY),
  post("/finish_session", "SkyRL: a session is over", { request: ANY }),
  get("/version", "The version of this server"),
  get("/get_server_info", "SGLang: this server as one engine"),
  get("/get_model_info", "SGLang: the model and its weights' version"),
  get("/model_info", "As /get_model_info"),
  get("/get_load", "SGLang: requests that run and that wait"),
  get("/v1/loads", "SGLang: as /get_load"),
  get("/load", "Unfinished requests"),
  get("/server_info", "An engine's configuration", {
    query: { config_format: choice("text", "json") },
  }),
  get("/get_world_size", "Ranks of all engines", { query: { include_dp: FLAG } }),
  get("/weight_info", "What the current weights are called"),
  post("/init_weight_transfer_engine", "Connects every engine to the trainer's weight transfer", {
    request: INIT,
  }),
  post("/start_weight_update", "Begins a weight update", { request: ANY }),
  post("/update_weights", "Part of a weight update, or a complete one", { request: ANY }),
  post("/finish_weight_update", "Ends a weight update: the next weight epoch", { request: ANY }),
  post("/abort_weight_update", "Gives up the update that is open or under way: the epoch stays"),
  post("/init_broadcaster", "prime-rl: connects every engine to its broadcast", { request: ANY }),
  post("/areal_init_weights_update_group", "AReaL: connects every engine to its broadcast", {
    request: ANY,
  }),
  post("/areal_set_update_weight_meta", "AReaL: what will be broadcast", { request: ANY }),
  post("/areal_set_update_weight_meta_lora", "AReaL: what will be broadcast", { request: ANY }),
  post("/areal_update_weights_xccl", "AReaL: weights by broadcast", { request: ANY }),
  post("/areal_update_weights_lora_xccl", "AReaL: an adapter by broadcast", { request: ANY }),
  post("/update_weight_version", "Names the current weights", { request: VERSION }),
  post("/shutdown_weight_transfer_engine", "Ends the weight transfer"),
  post("/start_draft_weight_update", "Begins an update of draft weights", { request: ANY }),
  post("/weight_checker", "Compares weights", { request: ANY }),
  post("/v1/load_lora_adapter", "Loads an adapter into every engine", { request: LORA }),
  post("/v1/unload_lora_adapter", "Drops an adapter from every engine", { request: UNLORA }),
  post("/load_lora_adapter", "As /v1/load_lora_adapter", { request: LORA }),
  post("/unload_lora_adapter", "As /v1/unload_lora_adapter", { request: UNLORA }),
  post("/collective_rpc", "Calls a method on every engine's workers", { request: RPC }),
  post("/pause", "Stops generation: mode abort, wait or keep", { query: PAUSE }),
  post("/resume", "Resumes after a pause"),
  get("/is_paused", "Whether generation is paused"),
  post("/sleep", "Frees the engines' memory", { query: SLEEP }),
  post("/wake_up", "Takes it again", { query: WAKE }),
  get("/is_sleeping", "Whether an engine sleeps"),
  post("/reset_prefix_cache", "Drops cached KV", { query: RESET }),
  post("/reset_mm_cache", "Drops cached multimodal inputs"),
  post("/reset_encoder_cache", "Drops cached encoder outputs"),
  post("/abort_requests", "Gives up requests by their ids", { request: IDS }),
  post("/inference/v1/abort_requests", "As /abort_requests", { request: IDS }),
  get("/foretoken/workers", "Every worker and its state"),
];

/** Routes that are answered as vLLM answers them, and our own. */
export function describeVllmControl(): readonly RouteDescription[] {
  return ENDPOINTS;
}

export function describeControl(): readonly RouteDescription[] {
  return [...ENDPOINTS, ...DIALECT_DESCRIPTIONS];
}
