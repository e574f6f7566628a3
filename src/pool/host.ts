// The side of the sidecar that the pool needs: the rollout that its workers serve, and events about them. The pool never
// sees requests or clients.

import type { RolloutListener } from "../core/rollout/listener.ts";
import type { Rollout } from "../core/rollout/rollout.ts";

export interface PoolHost {
  readonly rollout: Rollout;
  /** Returns what ends the observation. */
  observe(observer: Partial<Pick<RolloutListener, "workerFailed">>): () => void;
}
