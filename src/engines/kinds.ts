// The table of engines that a URL names: one row for each kind, found by the URL's scheme. The only place that knows
// all kinds.

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
