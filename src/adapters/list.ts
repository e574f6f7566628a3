// The registry of adapters, which features.ts serves: routes that a trainer or another engine has beside vLLM's.
//
// To add one: a file beside this one that exports an `Adapter` (adapter.ts), and a row here.
// - Control calls are rows of `control`, as in areal.ts. `translated` (calls.ts) runs a call of the server (`pause`, `resume`,
//   `connectTrainer`, `broadcast` in server/control/calls.ts; `reload` in calls.ts) and writes {isSuccess, status, message} in the
//   trainer's shape. `passed` (server/control/routes.ts) makes an operation of the body, which every engine gets.
// - Generation is a row of `data`: `generates(path, summary, {schema, prepare})`. `prepare` checks the body by its valibot
//   schema. Where the trainer uses the names of /inference/v1/generate, it gives `prepareGenerate` the fields and replaces
//   its answer, as in skyrl.ts; where it has others, so that errors name its own: `plane.begin` and `plane.promptOf(ids,
//   field)`, as in sglang/generate.ts. Pieces of schemas: server/openai/sampling-fields.ts. The answer: server/openai/answer.ts.
// - Tests: a row in control.test.ts (three scripted engines), or as skyrl.test.ts (a data plane over simulated ones) with a row
//   in server/openai/data-plane.test.ts; a call that loads weights, in test/faults/attacks/access.test.ts. The fuzzer finds
//   the route by itself. docs/TRAINERS.md has a row for each trainer; docs.test.ts and tidy.test.ts fail until
//   `bun scripts/gen-reference.ts` and UPDATE_BUDGET=1 have run.

import type { Adapter } from "./adapter.ts";
import { AGENT_LIGHTNING } from "./agent-lightning.ts";
import { AREAL } from "./areal.ts";
import { PRIME_RL } from "./prime-rl.ts";
import { SGLANG } from "./sglang/sglang.ts";
import { SKYRL } from "./skyrl.ts";

const ADAPTERS: readonly Adapter[] = [SGLANG, AREAL, SKYRL, PRIME_RL, AGENT_LIGHTNING];

export const ADAPTER_DATA = ADAPTERS.flatMap(({ data = [] }) => data);
export const ADAPTER_SESSION_HEADERS = ADAPTERS.flatMap(
  ({ sessionHeaders = [] }) => sessionHeaders,
);
export const ADAPTER_CONTROL = ADAPTERS.flatMap(({ control = [] }) => control);
