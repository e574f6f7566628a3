// Agent Lightning's proxy in front of LiteLLM (llm_proxy.py of 0.3.0), if it is set to forward its headers. An attempt is
// one run of an agent; a rollout that fails is attempted again.

import type { Adapter } from "./adapter.ts";

export const AGENT_LIGHTNING: Adapter = {
  sessionHeaders: ["X-Attempt-ID", "X-Rollout-ID"],
};
