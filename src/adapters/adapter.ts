// The interface of an adapter: the routes that a trainer or another engine has beside vLLM's. Each row says all of its route:
// schema, what it becomes in terms of the server's calls, and the shape of the answer. Adapters import the server, never
// one another; the server imports none of them.

import type { Dialect } from "../server/control/dialects.ts";
import type { DataPlane } from "../server/openai/plane.ts";
import type { Row } from "../server/route.ts";

export interface Adapter {
  readonly name: string;
  /** Routes that make responses, or end them: `generates` and `replies` make such rows. */
  readonly data: readonly Row<DataPlane>[];
  /** Calls that amount to a control call of vLLM's. */
  readonly control: readonly Dialect[];
}
