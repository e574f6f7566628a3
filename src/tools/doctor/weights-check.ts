// Tests whether two engines have the same weights: by the names that a trainer gave them, or else by the checksums that
// vLLM computes of them. A rollout over engines of which one was left out of an update mixes two policies, and nothing
// else shows it.

import { Engine, fieldOf } from "./engine.ts";
import { type Finding, fail, info, ok } from "./finding.ts";

const CHECK = "same weights";
/** What vLLM calls weights that nobody gave a name. */
const UNNAMED = "default";
const FIX = "send the update to every engine, or let the sidecar pass it on";

/** null: one of them tells neither names nor checksums. */
export async function checkWeights(
  urls: readonly [one: string, other: string],
  token: string | null,
): Promise<Finding | null> {
  const engines = urls.map((url) => new Engine(url, token));
  const [a, b] = await Promise.all(engines.map(versionOf));
  if (a == null || b == null) return null;
  if (a !== b) {
    const reason = `its weights are ${b}, those of ${urls[0]} are ${a}: one of them has stale weights`;
    return fail(CHECK, reason, FIX);
  }
  if (a !== UNNAMED) return ok(CHECK, `both are ${a}`);
  const [first, second] = await Promise.all(engines.map(checksumsOf));
  if (first == null || second == null) {
    return info(CHECK, "their weights have no names, so that stale ones cannot be seen");
  }
  const names = Object.keys(first).filter((name) => name in second);
  const different = names.filter((name) => first[name] !== second[name]);
  if (different.length === 0) return ok(CHECK, `the checksums of ${names.length} parts are equal`);
  const reason = `${different.length} of ${names.length} checksums differ from those of ${urls[0]}: one of them has stale weights`;
  return fail(CHECK, reason, FIX);
}

async function versionOf(engine: Engine): Promise<string | null> {
  const { status, body } = await engine.call("GET", "/weight_info");
  const version = fieldOf(body, "weight_version");
  return status === 200 && typeof version === "string" ? version : null;
}

async function checksumsOf(engine: Engine): Promise<Record<string, unknown> | null> {
  const { status, body } = await engine.call("POST", "/weight_checker", { action: "checksum" });
  const checksums = fieldOf(body, "checksums");
  const isThere = status === 200 && typeof checksums === "object" && checksums !== null;
  return isThere ? (checksums as Record<string, unknown>) : null;
}
