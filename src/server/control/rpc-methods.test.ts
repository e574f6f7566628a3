// Which methods of `/collective_rpc` may change weights: everything but those that are known not to.

import { expect, test } from "bun:test";
import { rpcEffect } from "./rpc-methods.ts";

/** Names under which trainers, examples and old versions update weights. */
const UPDATING = `
  update_weight update_weights update_weight_cuda_ipc update_weights_from_ipc_handles
  update_weights_from_ipc update_weights_from_collective update_weights_from_disk
  update_weights_from_tensor update_weights_from_distributed update_weights_via_ipc_zmq
  update_named_param load_weights load_model set_state_dict sync_weights receive_and_load
  broadcast_param pull_weights refit_from_ipc apply_model merge_lora add_lora reset_weights
  restore_checkpoint execute_method elastic_ep_execute step foo`;

/** Spellings of names that are known: Python would look for another method. */
const VARIANTS = [
  "Check_Health",
  " check_health",
  "check_health\n",
  "worker.check_health",
  "check_health.update_weight",
  "get_",
  "__class__",
  "toString",
  "__proto__",
];

test.each([...UPDATING.trim().split(/\s+/), ...VARIANTS])(
  "%j counts as a weight update",
  (method) => {
    expect(rpcEffect(method)).toEqual({ kind: "part" });
  },
);

test.each([
  ["check_health report_device_id init_weight_update_group init_process_group profile", "harmless"],
  ["compute_weight_checksums save_sharded_state list_loras", "harmless"],
  ["start_weight_update start_draft_weight_update", "start"],
  ["finish_weight_update", "finish"],
  ["reload_weights", "whole"],
])("%s: %s", (methods, kind) => {
  for (const method of methods.split(" ")) expect(rpcEffect(method).kind).toBe(kind as "whole");
});

test("what has a route of its own is refused by it", () => {
  for (const method of ["sleep", "wake_up"]) {
    expect(rpcEffect(method)).toEqual({ kind: "refused", route: `/${method}` });
  }
});
