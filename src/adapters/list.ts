// The registry of adapters, which features.ts serves: routes that a trainer or another engine has beside vLLM's.
//
// To add one: a file beside this one that exports an `Adapter` (adapter.ts), and a row here.
// - Control calls are rows of `control`, as in areal.ts. `translated` (calls.ts) runs a call of the server (`pause`, `resume`,
//   `connectTrainer`, `broadcast` in server/control/calls.ts; `reload` in calls.ts) and writes {isSuccess, status, message} in the
//   trainer's shape. `pause(control, mode)`: "abort" ends requests as they stand, "wait" lets them end, "keep" goes on with them
//   after `resume(control)`. `passed` (server/control/routes.ts) makes an operation of the body, which every engine gets.
// - Generation is a row of `data`: `generates(path, summary, {schema, prepare, streams: false})`, as in skyrl.ts, also for the
//   answer (`answerOf`; `output.finish` is stop, length, abort or deadline). `prepare` checks the body by its valibot schema.
//   Where the trainer uses the names of /inference/v1/generate, it gives `prepareGenerate` the fields. Where it has others, so
//   that errors name its own: `plane.begin(exchange, {}, {params: {temperature, top_p, n}, at: "args.", topLogprobs: 0,
//   tokensMax, extraArgs: {}})([plane.promptOf(ids, "ids")], {wantsText: false, answer})`, with vLLM's names in `params` and the
//   prefix of errors in `at`. Lists, several prompts and streams: sglang/generate.ts. Schemas: server/openai/sampling-fields.ts.
// - Tests: a row in control.test.ts (three scripted engines), or as skyrl.test.ts (a data plane over simulated ones). Tests of
//   all routes ask for a row of GOOD in server/openai/data-plane.test.ts and, of a call that loads weights, in
//   test/faults/attacks/access.test.ts. The fuzzer finds the route by itself. docs/TRAINERS.md has a row for each trainer;
//   docs.test.ts and tidy.test.ts fail until `bun scripts/gen-reference.ts` and UPDATE_BUDGET=1 have run.

import type { Adapter } from "./adapter.ts";
import { AGENT_LIGHTNING } from "./agent-lightning.ts";
import { ANTHROPIC } from "./anthropic/anthropic.ts";
import { AREAL } from "./areal.ts";
import { PRIME_RL } from "./prime-rl.ts";
import { SGLANG } from "./sglang/sglang.ts";
import { SKYRL } from "./skyrl.ts";

const ADAPTERS: readonly Adapter[] = [SGLANG, AREAL, SKYRL, PRIME_RL, AGENT_LIGHTNING, ANTHROPIC];

export const ADAPTER_DATA = ADAPTERS.flatMap(({ data = [] }) => data);
export const ADAPTER_SESSION_HEADERS = ADAPTERS.flatMap(
  ({ sessionHeaders = [] }) => sessionHeaders,
);
export const ADAPTER_CONTROL = ADAPTERS.flatMap(({ control = [] }) => control);
