// The interface of an adapter: the routes that a trainer or another engine has beside vLLM's. A row is a whole route: its
// schema, the server's calls that it becomes, and the shape of its answer. Adapters import the server, never one another;
// the server imports none of them.

import type { Control } from "../server/control/calls.ts";
import type { DataPlane } from "../server/openai/data-plane.ts";
import type { Row } from "../server/route.ts";

export interface Adapter {
  /** Routes that generate or abort responses; `generates` and `replies` (server/openai/data-plane.ts) make such rows. */
  readonly data?: readonly Row<DataPlane>[];
  /** Routes of the control plane; `translated` makes a row that answers in the dialect's own shape. */
  readonly control?: readonly Row<Control>[];
  /** Headers in which clients name a request's session; the first one that is set counts. */
  readonly sessionHeaders?: readonly string[];
}
