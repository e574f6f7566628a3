// AReaL's control calls (areal/engine/vllm_ext/areal_vllm_server.py). Weights that it broadcasts by a protocol of its own
// are passed on to the engines, which answer 404 where they do not know it.

import type { EngineOperation } from "../core/rollout/operation.ts";
import {
  broadcast,
  type Control,
  connectTrainer,
  pause,
  resume,
  updated,
} from "../server/control/calls.ts";
import { loadAdapter, passed } from "../server/control/routes.ts";
import { textIn } from "../server/route.ts";
import type { Adapter } from "./adapter.ts";
import { reload, translated, verdict } from "./calls.ts";

type Extension = Extract<EngineOperation, { kind: "extension" }>;

/** A row for a call that is passed on, under the same name, to engines that AReaL started. */
const extended = (
  name: string,
  summary: string,
  act: (control: Control, operation: Extension) => Promise<Response>,
) =>
  passed(`/${name}`, summary, (control, { body }) =>
    act(control, { kind: "extension", name, body }),
  );

const whole = (control: Control, operation: Extension) => updated(control, "whole", operation);

export const AREAL: Adapter = {
  control: [
    translated(
      "/areal_pause_generation",
      "AReaL: stops generation, and ends all requests as they stand",
      verdict,
      (control) => pause(control, "abort"),
    ),
    translated("/areal_continue_generation", "AReaL: resumes after a pause", verdict, resume),
    translated(
      "/areal_update_weights",
      "AReaL: loads weights from a path into every engine",
      verdict,
      (control, body) => reload(control, textIn(body, "model_path")),
    ),
    translated(
      "/areal_update_weights_lora",
      "AReaL: loads an adapter from a path into every engine",
      verdict,
      (control, body) => {
        const lora_name = textIn(body, "lora_name");
        const lora_path = textIn(body, "lora_model_path");
        const fields = { lora_name, lora_path, load_inplace: true };
        return loadAdapter(control, { query: {}, body: fields });
      },
    ),
    extended(
      "areal_init_weights_update_group",
      "AReaL: connects every engine to its broadcast",
      connectTrainer,
    ),
    extended("areal_set_update_weight_meta", "AReaL: what will be broadcast", broadcast),
    extended("areal_set_update_weight_meta_lora", "AReaL: what will be broadcast", broadcast),
    extended("areal_update_weights_xccl", "AReaL: weights by broadcast", whole),
    extended("areal_update_weights_lora_xccl", "AReaL: an adapter by broadcast", whole),
  ],
};
