// The registry of engines that a URL names: one row for each kind, found by the URL's scheme. The only place that knows
// all kinds.
//
// To add one: a folder beside `vllm` and `remote`, and a row here.
// - kind.ts of the folder exports the row, an `EngineKind` (as remote/kind.ts): its schemes, the form of its URLs, `server` (null
//   unless it is an inference server that tells its model), and the function that opens a worker.
// - The worker implements `Worker` of core/rollout/worker.ts, whose header tells the life of a request on it. The shortest one is
//   test/faults/simulated/worker.ts. Operations (operation.ts beside the port) that it lacks it answers with 404.
// - Its test calls `workerSuite` (test/suite/worker-suite.ts), as llama/contract.test.ts. The folder may import what the row
//   "engines/*" of test/tidy.test.ts names, and no other engine; UPDATE_BUDGET=1 gives it a budget there.
// - A server over HTTP with another language than vLLM's needs no worker: it is an `EngineDialect` (vllm/dialect.ts, as
//   vllm/sglang/dialect.ts), which `findEngine` in vllm/open.ts asks, and a row as SGLANG in vllm/kind.ts.

import { AppError } from "../core/base/errors.ts";
import type { EngineKind, EngineServer } from "./kind.ts";
import { LINK } from "./remote/kind.ts";
import { SGLANG, VLLM } from "./vllm/kind.ts";

const KINDS: readonly EngineKind[] = [VLLM, SGLANG, LINK];

/** @throws AppError usage: no engine has such URLs. */
export function engineKind(url: string): EngineKind {
  const kind = kindOf(url);
  if (kind !== undefined) return kind;
  const known = KINDS.map(({ form }) => form);
  const list = `${known.slice(0, -1).join(", ")} or ${known.at(-1)}`;
  throw new AppError("usage", `an engine's URL is "${url}"; it is ${list}`);
}

/** null: a worker of ours, or no engine has such URLs. */
export function serverOf(url: string): EngineServer | null {
  return kindOf(url)?.server ?? null;
}

function kindOf(url: string): EngineKind | undefined {
  const scheme = URL.canParse(url) ? new URL(url).protocol.slice(0, -1) : null;
  return KINDS.find(({ schemes }) => schemes.some((one) => one === scheme));
}
