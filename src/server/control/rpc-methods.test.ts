// Which methods of `/collective_rpc` may change weights: everything but those that are known not to.

import { expect, test } from "bun:test";
import { rpcEffect } from "./rpc-methods.ts";

/** Names under which trainers, examples and old versions update weights. */
const UPDATING = [
  "update_weight",
  "update_weights",
  "update_weight_cuda_ipc",
  "update_weights_from_ipc_handles",
  "update_weights_from_ipc",
  "update_weights_from_collective",
  "update_weights_from_disk",
  "update_weights_from_tensor",
  "update_weights_from_distributed",
  "update_weights_via_ipc_zmq",
  "update_weights_via_mooncake",
  "update_named_param",
  "update_parameter",
  "update_params",
  "update_model_weights",
  "load_weights",
  "load_weight",
  "load_model",
  "load_state_dict",
  "load_checkpoint",
  "set_weights",
  "set_state_dict",
  "sync_weights",
  "sync_model",
  "receive_weights",
  "recv_weights",
  "receive_and_load",
  "broadcast_weights",
  "broadcast_param",
  "pull_weights",
  "refit",
  "refit_from_ipc",
  "copy_weights",
  "apply_model",
  "apply_delta",
  "apply_weights",
  "patch_weights",
  "merge_lora",
  "add_lora",
  "remove_lora",
  "reset_weights",
  "reinitialize_weights",
  "restore_checkpoint",
  "checkpoint_restore",
  "update_config",
  "execute_method",
  "execute_model",
  "elastic_ep_execute",
  "init_device",
  "step",
  "foo",
];

/** Spellings of names that are known: Python would look for another method. */
const VARIANTS = [
  "Update_Weight",
  "UPDATE_WEIGHT",
  "updateWeight",
  "Check_Health",
  "GET_MODEL_INSPECTION",
  " check_health",
  "check_health ",
  "check_health\n",
  "worker.check_health",
  "check_health.update_weight",
  "worker.update_weight",
  "self.model_runner.reload_weights",
  "get_model_and_load_weights",
  "get_",
  "__class__",
  "constructor",
  "toString",
  "hasOwnProperty",
  "__proto__",
];

for (const method of [...UPDATING, ...VARIANTS]) {
  test(`collective_rpc ${JSON.stringify(method)} counts as a weight update`, () => {
    expect(rpcEffect(method)).toEqual({ kind: "part" });
  });
}

test("collective_rpc: methods that only read or connect pass", () => {
  for (const method of [
    "check_health",
    "report_device_id",
    "init_weight_update_group",
    "init_process_group",
    "compute_weight_checksums",
    "save_sharded_state",
    "profile",
    "list_loras",
  ]) {
    expect(rpcEffect(method)).toEqual({ kind: "harmless" });
  }
});

test("collective_rpc: the bounds of an update, complete weights, and what has a route of its own", () => {
  expect(rpcEffect("start_weight_update").kind).toBe("start");
  expect(rpcEffect("start_draft_weight_update").kind).toBe("start");
  expect(rpcEffect("finish_weight_update").kind).toBe("finish");
  expect(rpcEffect("reload_weights").kind).toBe("whole");
  expect(rpcEffect("sleep")).toEqual({ kind: "refused", route: "/sleep" });
  expect(rpcEffect("wake_up")).toEqual({ kind: "refused", route: "/wake_up" });
});
