// A request's seed: vLLM takes 64 bits (torch.iinfo(torch.long)), and TRL's asynchronous loop draws 63.

import * as v from "valibot";
import { fold32 } from "../../core/base/hash.ts";
import { isNot } from "./fields.ts";

const MIN = -(2n ** 63n);
const MAX = 2n ** 63n - 1n;

/** A number, or its digits: those of a number that a double cannot hold arrive as text (base/json.ts). */
function seedOf(value: number | string): bigint | null {
  const isWhole = typeof value === "string" ? /^-?\d{1,19}$/.test(value) : Number.isInteger(value);
  if (!isWhole) return null;
  const seed = BigInt(value);
  return seed >= MIN && seed <= MAX ? seed : null;
}

/** A seed within 53 bits stays as it is; of a larger one all 64 bits are hashed into 53. */
function folded(seed: bigint): number {
  if (BigInt.asIntN(53, seed) === seed) return Number(seed);
  const low = Number(BigInt.asIntN(32, seed));
  const high = Number(BigInt.asIntN(32, seed >> 32n));
  const hash = (salt: number) => fold32(fold32(salt, low), high);
  return hash(1) * 2 ** 21 + (hash(2) >>> 11);
}

const message = isNot(`a whole number in ${MIN}..${MAX}`);

export const SEED_FIELD = v.nullish(
  v.pipe(
    v.union([v.number(), v.string()], message),
    v.check((value) => seedOf(value) !== null, message),
    v.transform((value) => folded(seedOf(value) ?? 0n)),
  ),
);
