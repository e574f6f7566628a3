// AReaL's control calls (areal/engine/vllm_ext/areal_vllm_server.py). Weights that it broadcasts by a protocol of its own
// are passed on to the engines, which answer 404 where they do not know it.

import type { Adapter } from "./adapter.ts";
import { reload, textIn, verdict } from "./calls.ts";

export const AREAL: Adapter = {
  name: "areal",
  data: [],
  control: [
    {
      route: "POST /areal_pause_generation",
      summary: "AReaL: stops generation, and ends all requests as they stand",
      call: () => ({ route: "POST /pause", query: { mode: "abort" } }),
      answer: verdict,
    },
    {
      route: "POST /areal_continue_generation",
      summary: "AReaL: resumes after a pause",
      call: () => ({ route: "POST /resume" }),
      answer: verdict,
    },
    {
      route: "POST /areal_update_weights",
      summary: "AReaL: loads weights from a path into every engine",
      call: (body) => reload(textIn(body, "model_path")),
      answer: verdict,
    },
    {
      route: "POST /areal_update_weights_lora",
      summary: "AReaL: loads an adapter from a path into every engine",
      call: (body) => ({
        route: "POST /v1/load_lora_adapter",
        body: {
          lora_name: textIn(body, "lora_name"),
          lora_path: textIn(body, "lora_model_path"),
          load_inplace: true,
        },
      }),
      answer: verdict,
    },
  ],
};
