// The registry of engines that a URL names: one row for each kind, found by the URL's scheme. The only place that knows
// all kinds.
//
// A server of an API as vLLM's, which streams over HTTP, needs no worker of its own. It is an `EngineDialect`
// (vllm/dialect.ts) in a folder as vllm/sglang, asked by `findEngine` (vllm/open.ts), with a row as SGLANG in vllm/kind.ts and
// here. It must answer GET /health with 200. Its double: as test/faults/stand-in/sglang-stand-in.ts; its tests: a line of
// vllm/contract.test.ts, and as vllm/sglang/worker.test.ts.
//
// Any other engine is a folder beside `vllm` and `remote`, and a row here.
// - kind.ts of the folder exports the row, an `EngineKind` (as remote/kind.ts): its schemes, the form of its URLs, `server` (null
//   where it does not tell its model: then `--model` or `--tokenizer` names the vocabulary), and the function that opens a worker.
// - The worker implements `Worker` of core/rollout/worker.ts, whose header tells the life of a request on it. The shortest one is
//   test/faults/simulated/worker.ts, of which one without KV moves needs `#obey` and `perform`: it answers `export` with `kv:
//   null` and `adopt` with `evicted`. Operations (load, sleep, wake, canary ..., see core/rollout/operation.ts) that it lacks
//   it answers with `{ status: 404, body: { error } }`. Ids: `workerId(n)` ... of core/base/ids.ts; errors: `AppError` of
//   core/base/errors.ts; JSON: `parseJson` of proto/json.ts. run-check.ts and packed-events.ts are no business of a server's.
// - Its test calls `workerSuite` (test/suite/worker-suite.ts), as vllm/contract.test.ts, with `lacks` for such operations and
//   a double in test/faults/stand-in. The folder may import core, proto, text and engines/kind.ts, and no other engine;
//   UPDATE_BUDGET=1 gives it a budget. Nothing else lists the kinds but kinds.test.ts and ARCHITECTURE.md's layers.

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
