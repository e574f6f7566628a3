// Who may call which route: the one table. "open": anyone, without a token, because load balancers ask. "read": holders
// of the read token, such as a page that watches; such a call changes nothing and generates nothing. "write": holders of
// the API token. A route that is not in the table needs the API token.

import type { Route } from "./route.ts";

export type Right = "open" | "read" | "write";

/** `SOCKET`: a WebSocket. A call that reaches engines only to ask them something is a read. */
const BY_RIGHT: Readonly<Record<Right, readonly string[]>> = {
  open: ["GET /health", "GET /ping", "POST /ping"],
  read: [
    "GET /",
    "GET /foretoken/engines",
    "GET /foretoken/iterations/:number",
    "GET /foretoken/live",
    "GET /foretoken/responses/:id",
    "GET /foretoken/timeline",
    "GET /foretoken/workers",
    "GET /get_load",
    "GET /get_model_info",
    "GET /get_server_info",
    "GET /get_weight_version",
    "GET /get_world_size",
    "GET /health_generate",
    "GET /is_paused",
    "GET /is_sleeping",
    "GET /liveness",
    "GET /list_workers",
    "GET /load",
    "GET /metrics",
    "GET /model_info",
    "GET /openapi.json",
    "GET /server_info",
    "GET /v1/loads",
    "GET /v1/models",
    "GET /v1/models/:model",
    "GET /v1/rollouts",
    "GET /v1/rollouts/:id",
    "GET /version",
    "GET /weight_info",
    "GET /workers",
    "GET /workers/:id",
    "SOCKET /v1/stream",
  ],
  write: [
    "DELETE /v1/rollouts/:id",
    "DELETE /workers",
    "DELETE /workers/:id",
    "GET /flush_cache",
    // Its readers keep a rollout going, and the last one that leaves may end it.
    "GET /v1/rollouts/:id/groups",
    "POST /abort_request",
    "POST /abort_requests",
    "POST /abort_weight_update",
    "POST /add_worker",
    "POST /areal_continue_generation",
    "POST /areal_init_weights_update_group",
    "POST /areal_pause_generation",
    "POST /areal_set_update_weight_meta",
    "POST /areal_set_update_weight_meta_lora",
    "POST /areal_update_weights",
    "POST /areal_update_weights_lora",
    "POST /areal_update_weights_lora_xccl",
    "POST /areal_update_weights_xccl",
    "POST /begin_weight_update",
    "POST /collective_rpc",
    "POST /continue_generation",
    "POST /destroy_weights_update_group",
    "POST /detokenize",
    "POST /end_weight_update",
    "POST /finish_session",
    "POST /finish_weight_update",
    "POST /flush_cache",
    "POST /generate",
    "POST /inference/v1/abort_requests",
    "POST /inference/v1/generate",
    "POST /init_broadcaster",
    "POST /init_weight_transfer_engine",
    "POST /init_weights_update_group",
    "POST /load_lora_adapter",
    "POST /pause",
    "POST /pause_generation",
    "POST /post_process_weights",
    "POST /pull_weights",
    "POST /release_memory_occupation",
    "POST /remove_worker",
    "POST /reset_encoder_cache",
    "POST /reset_mm_cache",
    "POST /reset_prefix_cache",
    "POST /resume",
    "POST /resume_memory_occupation",
    "POST /shutdown_weight_transfer_engine",
    "POST /skyrl/v1/generate",
    "POST /sleep",
    "POST /start_draft_weight_update",
    "POST /start_weight_update",
    "POST /tokenize",
    "POST /unload_lora_adapter",
    "POST /update_weight_version",
    "POST /update_weights",
    "POST /update_weights_from_disk",
    "POST /update_weights_from_distributed",
    "POST /update_weights_from_tensor",
    "POST /v1/chat/completions",
    "POST /v1/chat/completions/render",
    "POST /v1/chat/completions/tokens",
    "POST /v1/completions",
    "POST /v1/load_lora_adapter",
    "POST /v1/rollouts",
    "POST /v1/unload_lora_adapter",
    "POST /wake_up",
    "POST /weight_checker",
    "POST /weights_checker",
    "POST /workers",
    "SOCKET /v1/draft",
  ],
};

const RIGHTS = new Map<string, Right>(
  (["open", "read", "write"] as const).flatMap((right) =>
    BY_RIGHT[right].map((name): [string, Right] => [name, right]),
  ),
);

/** Whether and how the table has it. */
export function listedRight(name: string): Right | null {
  return RIGHTS.get(name) ?? null;
}

/** null: no route is for the request, and the answer tells that and nothing else. */
export function rightFor(route: Pick<Route, "method" | "path"> | null): Right {
  return route === null ? "read" : (listedRight(`${route.method} ${route.path}`) ?? "write");
}

export function socketRight(path: string): Right {
  return listedRight(`SOCKET ${path}`) ?? "write";
}
