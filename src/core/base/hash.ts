// Small non-cryptographic hashes and the keyed random numbers built on them. Integer arithmetic only,
// so the same key gives the same number on every machine and in every JavaScript engine.

/** Finaliser of MurmurHash3 (Appleby, public domain): mixes 32 bits. */
export function mix32(value: number): number {
  let h = value | 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

/** Folds `value` into the running hash `seed`. */
export function fold32(seed: number, value: number): number {
  return mix32(Math.imul(seed ^ mix32(value), 0x9e3779b1) + 0x7f4a7c15);
}

/** Hashes a string's UTF-16 code units. */
export function hashString(text: string, seed = 0): number {
  let h = seed;
  for (let i = 0; i < text.length; i += 1) h = fold32(h, text.charCodeAt(i));
  return fold32(h, text.length);
}

/**
 * The uniform number in [0, 1) that belongs to (key, position), with 53 random bits.
 * A response draws its token at a position with this number whatever the batch, the drafts or the
 * worker, so none of them can change what is sampled.
 */
export function uniformAt(key: { hi: number; lo: number }, position: number): number {
  const high = fold32(key.hi, position);
  const low = fold32(key.lo ^ 0x5bd1e995, position);
  return ((high >>> 5) * 67108864 + (low >>> 6)) / 9007199254740992;
}
