// Agent Lightning's proxy before LiteLLM (llm_proxy.py of 0.3.0), where it is set to forward its headers: an attempt is one
// agent's run, of a rollout that may be tried again.

import type { Adapter } from "./adapter.ts";

export const AGENT_LIGHTNING: Adapter = {
  sessionHeaders: ["X-Attempt-ID", "X-Rollout-ID"],
};
