// prime-rl's own control calls, and vLLM's calls for adapters without /v1 in their paths.

import { connectTrainer } from "../server/control/calls.ts";
import {
  call,
  get,
  LORA,
  loadAdapter,
  passed,
  UNLORA,
  unloadAdapter,
} from "../server/control/routes.ts";
import type { Adapter } from "./adapter.ts";

export const PRIME_RL: Adapter = {
  control: [
    get(
      "/liveness",
      "Whether the server answers (prime-rl)",
      () => new Response(null, { status: 200 }),
      { answers: [], isProbe: true },
    ),
    passed(
      "/init_broadcaster",
      "prime-rl: connects every engine to its broadcast",
      (control, { body }) =>
        connectTrainer(control, { kind: "extension", name: "init_broadcaster", body }),
    ),
    call("/load_lora_adapter", "As /v1/load_lora_adapter", loadAdapter, { schema: LORA }),
    call("/unload_lora_adapter", "As /v1/unload_lora_adapter", unloadAdapter, { schema: UNLORA }),
  ],
};
