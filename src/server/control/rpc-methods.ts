// What a method of `/collective_rpc` does to weights. A trainer's worker extension may name its methods as it likes, so
// only methods that are known to leave the weights alone are passed on without an update. Names are compared exactly.

/** Methods of vLLM's own workers (0.22 to 0.32) that read, measure, save, connect or drop caches. */
const VLLM_METHODS = `
  check_health check_preloaded_libs compute_weight_checksums execute_dummy_batch
  get_cache_block_size_bytes get_compilation_match_table get_encoder_timing_stats
  get_kv_cache_spec get_kv_connector_handshake_metadata get_model_inspection
  get_node_and_physical_gpu_ids get_node_ip get_supported_kv_cache_layouts get_supported_tasks
  init_weight_transfer_engine list_loras profile reset_encoder_cache reset_mm_cache
  save_sharded_state save_tensorized_model shutdown_weight_transfer_engine
  supports_draft_weight_updates synchronize_device`;

/** Methods that trainers add: vLLM's RLHF examples, OpenRLHF, TRL, NeMo RL, SkyRL, verl, prime-rl. */
const TRAINER_METHODS = `
  check_weights_changed close_communicator destroy_process_group destroy_weights_update_group
  get_device_uuid get_zeromq_handle get_zmq_address init_broadcaster init_collective
  init_communicator init_process_group init_weight_update_communicator init_weight_update_group
  init_weights_update_group maybe_init_zmq prepare_refit_info report_device_id
  report_node_ip_and_gpu_id start_gpu_profiling stop_gpu_profiling`;

/**
 * harmless: the weights stay as they are. start, finish: the bounds of an update of several parts. whole: complete
 * weights. part: some weights, or unknown: alone it counts as an update, inside a started one as a part of it.
 * refused: `route` does the same and keeps account of it, as an engine that sleeps must not be asked for tokens.
 */
export type RpcEffect =
  | { readonly kind: "harmless" | "start" | "finish" | "whole" | "part" }
  | { readonly kind: "refused"; readonly route: string };

const EFFECTS: ReadonlyMap<string, RpcEffect> = new Map<string, RpcEffect>([
  ...`${VLLM_METHODS} ${TRAINER_METHODS}`
    .trim()
    .split(/\s+/)
    .map((method): [string, RpcEffect] => [method, { kind: "harmless" }]),
  ["start_weight_update", { kind: "start" }],
  ["start_draft_weight_update", { kind: "start" }],
  ["finish_weight_update", { kind: "finish" }],
  ["reload_weights", { kind: "whole" }],
  ["sleep", { kind: "refused", route: "/sleep" }],
  ["wake_up", { kind: "refused", route: "/wake_up" }],
  ["discard", { kind: "refused", route: "/sleep?level=2" }],
]);

export function rpcEffect(method: string): RpcEffect {
  return EFFECTS.get(method) ?? { kind: "part" };
}
