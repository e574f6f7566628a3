// The interface of an adapter: the routes that a trainer or another engine has beside vLLM's. Each row says all of its route:
// schema, what it becomes in terms of the server's calls, and the shape of the answer. Adapters import the server, never
// one another; the server imports none of them.

import type { Control } from "../server/control/calls.ts";
import type { DataPlane } from "../server/openai/plane.ts";
import type { Row } from "../server/route.ts";

export interface Adapter {
  /** Routes that make responses, or end them: `generates` and `replies` (server/openai/data-plane.ts) make such rows. */
  readonly data?: readonly Row<DataPlane>[];
  /** Routes of the control plane; `translated` makes a row that answers in the dialect's own shape. */
  readonly control?: readonly Row<Control>[];
  /** Headers in which its clients name the session of a request; the first that is there counts. */
  readonly sessionHeaders?: readonly string[];
}
