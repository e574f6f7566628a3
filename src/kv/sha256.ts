// The block function of SHA-256 (FIPS 180-4, section 6.2) on 32-bit words, for hashing token ids where
// no runtime may be named. Padding and length belong to the caller (key.ts).

/** Words of one message block. */
export const BLOCK_WORDS = 16;

const ROUNDS = 64;

/** First 32 bits of the fractional part of the `power`-th root of the first `count` primes. */
function rootBits(count: number, power: 2 | 3): Int32Array {
  const words = new Int32Array(count);
  let found = 0;
  for (let n = 2; found < count; n += 1) {
    let prime = true;
    for (let d = 2; d * d <= n; d += 1) if (n % d === 0) prime = false;
    if (!prime) continue;
    // floor(root * 2^32) by integer bisection: floating point roots are not exact everywhere.
    const target = BigInt(n) << BigInt(32 * power);
    let low = 0n;
    let high = 1n << 40n;
    while (high - low > 1n) {
      const middle = (low + high) >> 1n;
      if (middle ** BigInt(power) <= target) low = middle;
      else high = middle;
    }
    words[found] = Number(BigInt.asIntN(32, low));
    found += 1;
  }
  return words;
}

const K = rootBits(ROUNDS, 3);

export const INITIAL_STATE: Int32Array = rootBits(8, 2);

const schedule = new Int32Array(ROUNDS);

/** Folds the block `words[from .. from + 16)` into `state` (8 words). Allocates nothing. */
export function compress(state: Int32Array, words: Int32Array, from: number): void {
  const w = schedule;
  for (let i = 0; i < BLOCK_WORDS; i += 1) w[i] = words[from + i] as number;
  for (let i = BLOCK_WORDS; i < ROUNDS; i += 1) {
    const x = w[i - 15] as number;
    const y = w[i - 2] as number;
    const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    w[i] = ((w[i - 16] as number) + s0 + (w[i - 7] as number) + s1) | 0;
  }
  let a = state[0] as number;
  let b = state[1] as number;
  let c = state[2] as number;
  let d = state[3] as number;
  let e = state[4] as number;
  let f = state[5] as number;
  let g = state[6] as number;
  let h = state[7] as number;
  for (let i = 0; i < ROUNDS; i += 1) {
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const choice = (e & f) ^ (~e & g);
    const t1 = (h + s1 + choice + (K[i] as number) + (w[i] as number)) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = (d + t1) | 0;
    d = c;
    c = b;
    b = a;
    a = (t1 + s0 + majority) | 0;
  }
  state[0] = ((state[0] as number) + a) | 0;
  state[1] = ((state[1] as number) + b) | 0;
  state[2] = ((state[2] as number) + c) | 0;
  state[3] = ((state[3] as number) + d) | 0;
  state[4] = ((state[4] as number) + e) | 0;
  state[5] = ((state[5] as number) + f) | 0;
  state[6] = ((state[6] as number) + g) | 0;
  state[7] = ((state[7] as number) + h) | 0;
}
