// The registry of engines that a URL names: one row for each kind, found by the URL's scheme. The only place that knows
// all kinds. To add one: docs/EXTENDING.md.

import { AppError } from "../core/base/errors.ts";
import type { EngineKind, EngineServer } from "./kind.ts";
import { SGLANG, VLLM } from "./vllm/kind.ts";

const KINDS: readonly EngineKind[] = [VLLM, SGLANG];

/** A user, a password, a query, a fragment, a line break: no engine is sent these, and logs and lists would show them. */
const MORE_THAN_ADDRESS = /[@?#]|[^\x21-\x7e]/;

/** `foretoken worker` of former versions listened here. */
const FORMER_WORKER = /^wss?:\/\//i;

/** @throws AppError usage: no engine has such URLs. */
export function engineKind(url: string): EngineKind {
  if (MORE_THAN_ADDRESS.test(url)) {
    const problem = "an engine's URL holds @, ?, # or what is not visible ASCII";
    const fix = "it is an address, and a token is given with --worker-token or api_key";
    throw new AppError("usage", `${problem}: ${fix}`);
  }
  const kind = kindOf(url);
  if (kind !== undefined) return kind;
  if (FORMER_WORKER.test(url)) {
    const fix = "start a vLLM server on that machine, and give its http://HOST:PORT";
    throw new AppError("usage", `"${url}" is the address of a worker of former versions: ${fix}`);
  }
  const known = KINDS.map(({ form }) => form);
  const list = `${known.slice(0, -1).join(", ")} or ${known.at(-1)}`;
  throw new AppError("usage", `an engine's URL is "${url}"; it is ${list}`);
}

/** null: its engines name no model, or no engine has such URLs. */
export function serverOf(url: string): EngineServer | null {
  return kindOf(url)?.server ?? null;
}

function kindOf(url: string): EngineKind | undefined {
  const scheme = URL.canParse(url) ? new URL(url).protocol.slice(0, -1) : null;
  return KINDS.find(({ schemes }) => schemes.some((one) => one === scheme));
}
