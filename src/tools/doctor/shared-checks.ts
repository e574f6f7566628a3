// Checks of several engines together: whether two share a KV pool as a rollout needs it, and whether they have the same
// weights. Small; nothing is reset.

import { make, Refused, somePrompt } from "./behaviour-checks.ts";
import { type Engine, fieldOf } from "./engine.ts";
import { type Finding, fail, info, ok, warn } from "./finding.ts";

const CHECK = "KV pool";
/** Waits before a look-up: KV is saved in the background, while others need the engine's steps. */
const SAVE_MS = [500, 2_000, 5_000] as const;
const OUTPUT_BLOCKS = 2;
const NEXT_TOKENS = 8;

/**
 * Whether the second engine finds KV of the first, both of which were probed; null: they have no pool that output is saved
 * to, or pools of different kinds. `salt` names this examination.
 */
export async function checkPool(from: Engine, to: Engine, salt: string): Promise<Finding | null> {
  const pool = poolOf(to);
  if (pool === null || pool !== poolOf(from)) return null;
  const blockSize = to.found?.capabilities.kvBlockTokens ?? 1;
  try {
    let found: Finding | null = null;
    for (const [i, saveMs] of SAVE_MS.entries()) {
      // A text that was not found has been computed there: another try takes another one.
      found = await handOver({ from, to, blockSize, saveMs, salt: `${salt}-pool-${i}` });
      if (found.verdict !== "warn") break;
    }
    return found;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return fail(CHECK, error.message, "see the engines' logs");
  }
}

/** Class of the engine's KV connector; null: other engines cannot find its KV, or it saves no output. */
function poolOf({ found }: Engine): string | null {
  const connector = found?.capabilities.connector;
  const isPool = connector?.row?.isPool === true && connector.problem === null;
  return isPool && connector.savesOutput ? connector.className : null;
}

async function handOver(parts: {
  from: Engine;
  to: Engine;
  blockSize: number;
  saveMs: number;
  salt: string;
}): Promise<Finding> {
  const { from, to, blockSize, saveMs, salt } = parts;
  const prompt = await somePrompt(from, blockSize + 1);
  const maxTokens = OUTPUT_BLOCKS * blockSize;
  const first = await make(from, { tokens: prompt, maxTokens, temperature: 0, cacheSalt: salt });
  await Bun.sleep(saveMs);
  const request = { tokens: [...prompt, ...first.tokens], maxTokens: NEXT_TOKENS, temperature: 0 };
  const next = await make(to, { ...request, cacheSalt: salt });
  const recomputed = await make(to, { ...request, cacheSalt: `${salt}-other` });
  const text = `of ${request.tokens.length} tokens made at ${from.url}`;
  if (recomputed.cachedTokens !== null && recomputed.cachedTokens > 0) {
    const reason = `${text}, ${recomputed.cachedTokens} were found under another salt: KV of old weights may be used`;
    return fail(CHECK, reason, "start it without --kv-transfer-config");
  }
  if (next.tokens.some((token, i) => token !== recomputed.tokens[i])) {
    const reason = `${text}, ${next.cachedTokens} were found, and the text continued differently than after recomputation`;
    return fail(CHECK, reason, "start it without --kv-transfer-config; compare --dtype float32");
  }
  if (next.cachedTokens === null) {
    return warn(CHECK, "the tokens found are not reported", "--enable-prompt-tokens-details");
  }
  if (next.cachedTokens <= prompt.length) {
    const reason = `${text}, ${next.cachedTokens} were found: a request that moves is prefilled again`;
    const same = "the same master, model path, PYTHONHASHSEED and --block-size for all";
    return warn(CHECK, reason, `${same}; save_decode_cache (docs/KV.md)`);
  }
  return ok(CHECK, `${text}, ${next.cachedTokens} were found, none under another salt`);
}

const SAME_WEIGHTS = "same weights";
/** vLLM's version of weights that nobody has named. */
const UNNAMED = "default";
const FIX = "send the update to every engine, or let the sidecar pass it on";

/** Compares the weights of two engines; null: one reports neither names nor checksums. */
export async function checkWeights(one: Engine, other: Engine): Promise<Finding | null> {
  const a = await versionOf(one);
  const b = await versionOf(other);
  if (a == null || b == null) return null;
  if (a !== b) {
    const reason = `its weights are ${b}, those of ${one.url} are ${a}: one of them has stale weights`;
    return fail(SAME_WEIGHTS, reason, FIX);
  }
  if (a !== UNNAMED) return ok(SAME_WEIGHTS, `both are ${a}`);
  const first = await checksumsOf(one);
  const second = await checksumsOf(other);
  if (first == null || second == null) {
    return info(SAME_WEIGHTS, "their weights have no names, so that stale ones cannot be seen");
  }
  const names = Object.keys(first).filter((name) => name in second);
  const different = names.filter((name) => first[name] !== second[name]);
  if (different.length === 0)
    return ok(SAME_WEIGHTS, `the checksums of ${names.length} parts are equal`);
  const reason = `${different.length} of ${names.length} checksums differ from those of ${one.url}: one of them has stale weights`;
  return fail(SAME_WEIGHTS, reason, FIX);
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
