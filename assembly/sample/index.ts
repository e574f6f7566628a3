// Draws one token from a row of logits: softmax with temperature, inverse CDF in vocabulary order, and
// the log-probability of the drawn token. Everything is computed here in f64 with IEEE operations in a
// fixed order and no library exp, so a row and a uniform give the same token and bits on every machine.
// It owns no data: the host gives the memory, writes the row, and reads the result.
//
// Memory after the compiler's own data, n = vocabulary size, all offsets multiples of 16:
//   RESULT   f64 logprob
//   ROW      n logits, f32, padded with -inf to a multiple of BLOCK
//   then     as many weights, f64: exp((logit - max) / temperature)
//   then     the sum of each block of weights, f64

/** Weights per block sum: the drawn token is found by walking block sums, then one block. */
const BLOCK: i32 = 64;
const RESULT: usize = (__heap_base + 15) & ~15;
const ROW: usize = RESULT + 16;

const LOG2E: f64 = 1.4426950408889634;
// ln 2 in two parts (Cody and Waite): the first has its low bits clear, so k * LN2_HIGH is exact.
const LN2_HIGH: f64 = 6.9314718036912381649e-1;
const LN2_LOW: f64 = 1.90821492927058770002e-10;
/** Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits of the mantissa. */
const MAGIC: f64 = 6755399441055744;
/** Below it a weight counts as zero: e^-708 is the last one whose bits are those of a normal number. */
const EXPONENT_MIN: f64 = -708;

export function resultOffset(): usize {
  return RESULT;
}

export function rowOffset(): usize {
  return ROW;
}

/** Logits the row must have room for: n, rounded up to whole blocks. */
export function rowLength(n: i32): i32 {
  return ((n + BLOCK - 1) / BLOCK) * BLOCK;
}

export function memoryBytes(n: i32): usize {
  const length = <usize>rowLength(n);
  return ROW + length * 12 + (length / BLOCK) * 8;
}

/** Token drawn from the row's n logits with uniform u in [0, 1); -1: the logits hold a NaN or no finite maximum. */
export function sample(n: i32, temperature: f64, u: f64): i32 {
  const length = <usize>rowLength(n);
  const max = rowMax(length);
  if (!isFinite(max)) return -1;
  const weights = ROW + length * 4;
  const sums = weights + length * 8;
  const scale: f64 = temperature > 0 ? 1.0 / temperature : 1.0;
  const total = fillWeights(length, max, scale);
  if (!(total >= 1.0)) return -1;
  const token = temperature > 0 ? find(weights, sums, length, u * total) : argmax(max);
  const logit = <f64>load<f32>(ROW + ((<usize>token) << 2));
  store<f64>(RESULT, (logit - <f64>max) * scale - Math.log(total));
  return token;
}

function rowMax(length: usize): f32 {
  let max = f32x4.splat(-Infinity);
  for (let at = ROW, end = ROW + length * 4; at < end; at += 16) {
    max = f32x4.max(max, v128.load(at));
  }
  return Mathf.max(
    Mathf.max(f32x4.extract_lane(max, 0), f32x4.extract_lane(max, 1)),
    Mathf.max(f32x4.extract_lane(max, 2), f32x4.extract_lane(max, 3)),
  );
}

/** The lowest token whose logit is the maximum. */
function argmax(max: f32): i32 {
  let token = 0;
  while (load<f32>(ROW + ((<usize>token) << 2)) != max) token += 1;
  return token;
}

/** Writes the weights and the block sums; returns their sum. */
function fillWeights(length: usize, max: f32, scale: f64): f64 {
  const maxes = f64x2.splat(<f64>max);
  const scales = f64x2.splat(scale);
  let weight = ROW + length * 4;
  let sum = ROW + length * 12;
  let total: f64 = 0;
  for (let at = ROW, end = ROW + length * 4; at < end; ) {
    let partial = f64x2.splat(0);
    for (const blockEnd = at + BLOCK * 4; at < blockEnd; at += 8) {
      const logits = f64x2.promote_low_f32x4(v128.load64_zero(at));
      const value = exp(f64x2.mul(f64x2.sub(logits, maxes), scales));
      v128.store(weight, value);
      partial = f64x2.add(partial, value);
      weight += 16;
    }
    const blockSum = f64x2.extract_lane(partial, 0) + f64x2.extract_lane(partial, 1);
    store<f64>(sum, blockSum);
    total += blockSum;
    sum += 8;
  }
  return total;
}

/** e^x of both lanes, x <= 0: x = k ln 2 + r, Taylor to degree 12 (|r| <= ln 2 / 2: error below 2e-16), times 2^k. */
function exp(x: v128): v128 {
  const shifted = f64x2.add(f64x2.mul(x, f64x2.splat(LOG2E)), f64x2.splat(MAGIC));
  const k = f64x2.sub(shifted, f64x2.splat(MAGIC));
  const r = f64x2.sub(
    f64x2.sub(x, f64x2.mul(k, f64x2.splat(LN2_HIGH))),
    f64x2.mul(k, f64x2.splat(LN2_LOW)),
  );
  let p = f64x2.splat(1.0 / 479001600.0);
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0 / 39916800.0));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0 / 3628800.0));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0 / 362880.0));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0 / 40320.0));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0 / 5040.0));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0 / 720.0));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0 / 120.0));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0 / 24.0));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0 / 6.0));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(0.5));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0));
  p = f64x2.add(f64x2.mul(p, r), f64x2.splat(1.0));
  const scaled = i64x2.add(p, i64x2.shl(shifted, 52));
  return v128.and(scaled, f64x2.ge(x, f64x2.splat(EXPONENT_MIN)));
}

/** The first token whose cumulative weight exceeds `mass`. */
function find(weights: usize, sums: usize, length: usize, mass: f64): i32 {
  const blocks = length / BLOCK;
  let before: f64 = 0;
  let block: usize = 0;
  let chosen: usize = 0;
  let chosenBefore: f64 = 0;
  for (; block < blocks; block += 1) {
    const sum = load<f64>(sums + block * 8);
    if (sum > 0) {
      chosen = block;
      chosenBefore = before;
    }
    before += sum;
    if (mass < before) break;
  }
  // A block's sum and its weights added one by one may differ in the last bit: where that leaves the
  // mass beyond the block, its last token with any weight is the one.
  const first = chosen * BLOCK;
  let last = first;
  let reached = chosenBefore;
  for (let token = first; token < first + BLOCK; token += 1) {
    const weight = load<f64>(weights + token * 8);
    if (weight > 0) last = token;
    reached += weight;
    if (mass < reached) return <i32>token;
  }
  return <i32>last;
}
