// Draws one token from a row of logits: softmax with temperature, inverse CDF in vocabulary order, and
// the log-probability of the drawn token. Everything is computed here in f64 with IEEE operations in a
// fixed order and no library exp, so a row and a uniform give the same token and bits on every machine.
// It owns no data: the host gives the memory (layout.ts), writes the row, and reads the result.

import { BLOCK, memoryBytes, RESULT, ROW, rowLength } from "./layout";

export { memoryBytes, rowLength };

/** 1/10!, 1/9!, ..., 1/1!, 1/0!. */
const COEFFICIENTS: usize = memory.data<f64>([
  1.0 / 3628800.0,
  1.0 / 362880.0,
  1.0 / 40320.0,
  1.0 / 5040.0,
  1.0 / 720.0,
  1.0 / 120.0,
  1.0 / 24.0,
  1.0 / 6.0,
  0.5,
  1.0,
  1.0,
]);

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

/** Token drawn from the row's n logits with uniform u in [0, 1); -1: the logits hold a NaN or no finite maximum. */
export function sample(n: i32, temperature: f64, u: f64): i32 {
  const length = <usize>rowLength(n);
  const max = rowMax(length);
  if (!isFinite(max)) return -1;
  const weights = ROW + length * 4;
  const sums = weights + length * 8;
  const scale = scaleOf(temperature);
  const total = fillWeights(length, max, scale);
  if (!(total >= 1.0)) return -1;
  const token = temperature > 0 ? find(weights, sums, length, u * total) : argmax(max);
  const logit = <f64>load<f32>(ROW + ((<usize>token) << 2));
  const logTotal = Math.log(total);
  store<f64>(RESULT, (logit - <f64>max) * scale - logTotal);
  store<f64>(RESULT, logTotal, 8);
  return token;
}

/** Temperature 0 draws the likeliest token, with its probability at temperature 1. */
export function scaleOf(temperature: f64): f64 {
  return temperature > 0 ? 1.0 / temperature : 1.0;
}

export function rowMax(length: usize): f32 {
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
export function fillWeights(length: usize, max: f32, scale: f64): f64 {
  let weight = ROW + length * 4;
  let sum = ROW + length * 12;
  let total: f64 = 0;
  for (let at = ROW, end = ROW + length * 4; at < end; at += BLOCK * 4) {
    const blockSum = fillBlock(at, weight, <f64>max, scale);
    store<f64>(sum, blockSum);
    total += blockSum;
    weight += BLOCK * 8;
    sum += 8;
  }
  return total;
}

/**
 * The weights of one block; returns their sum. e^x, x <= 0: x = k ln 2 + r with |r| <= ln 2 / 2, then
 * Taylor to degree 11 (relative error below 1e-14) times 2^k. Four pairs go side by side: each constant
 * is loaded once for eight weights, and no pair waits for the long chain of another.
 */
function fillBlock(from: usize, to: usize, max: f64, scale: f64): f64 {
  const maxes = f64x2.splat(max);
  const scales = f64x2.splat(scale);
  let sum0 = f64x2.splat(0);
  let sum1 = f64x2.splat(0);
  let sum2 = f64x2.splat(0);
  let sum3 = f64x2.splat(0);
  for (let at = from, end = from + BLOCK * 4; at < end; at += 32) {
    const x0 = f64x2.mul(f64x2.sub(f64x2.promote_low_f32x4(v128.load64_zero(at)), maxes), scales);
    const x1 = f64x2.mul(
      f64x2.sub(f64x2.promote_low_f32x4(v128.load64_zero(at, 8)), maxes),
      scales,
    );
    const x2 = f64x2.mul(
      f64x2.sub(f64x2.promote_low_f32x4(v128.load64_zero(at, 16)), maxes),
      scales,
    );
    const x3 = f64x2.mul(
      f64x2.sub(f64x2.promote_low_f32x4(v128.load64_zero(at, 24)), maxes),
      scales,
    );

    let c = f64x2.splat(LOG2E);
    const magic = f64x2.splat(MAGIC);
    const s0 = f64x2.add(f64x2.mul(x0, c), magic);
    const s1 = f64x2.add(f64x2.mul(x1, c), magic);
    const s2 = f64x2.add(f64x2.mul(x2, c), magic);
    const s3 = f64x2.add(f64x2.mul(x3, c), magic);
    const k0 = f64x2.sub(s0, magic);
    const k1 = f64x2.sub(s1, magic);
    const k2 = f64x2.sub(s2, magic);
    const k3 = f64x2.sub(s3, magic);
    c = f64x2.splat(LN2_HIGH);
    let r0 = f64x2.sub(x0, f64x2.mul(k0, c));
    let r1 = f64x2.sub(x1, f64x2.mul(k1, c));
    let r2 = f64x2.sub(x2, f64x2.mul(k2, c));
    let r3 = f64x2.sub(x3, f64x2.mul(k3, c));
    c = f64x2.splat(LN2_LOW);
    r0 = f64x2.sub(r0, f64x2.mul(k0, c));
    r1 = f64x2.sub(r1, f64x2.mul(k1, c));
    r2 = f64x2.sub(r2, f64x2.mul(k2, c));
    r3 = f64x2.sub(r3, f64x2.mul(k3, c));

    let p0 = f64x2.splat(1.0 / 39916800.0);
    let p1 = p0;
    let p2 = p0;
    let p3 = p0;
    for (let degree: usize = 0; degree < 11; degree += 1) {
      c = v128.load64_splat(COEFFICIENTS + (degree << 3));
      p0 = f64x2.add(f64x2.mul(p0, r0), c);
      p1 = f64x2.add(f64x2.mul(p1, r1), c);
      p2 = f64x2.add(f64x2.mul(p2, r2), c);
      p3 = f64x2.add(f64x2.mul(p3, r3), c);
    }

    c = f64x2.splat(EXPONENT_MIN);
    p0 = v128.and(i64x2.add(p0, i64x2.shl(s0, 52)), f64x2.ge(x0, c));
    p1 = v128.and(i64x2.add(p1, i64x2.shl(s1, 52)), f64x2.ge(x1, c));
    p2 = v128.and(i64x2.add(p2, i64x2.shl(s2, 52)), f64x2.ge(x2, c));
    p3 = v128.and(i64x2.add(p3, i64x2.shl(s3, 52)), f64x2.ge(x3, c));
    v128.store(to, p0);
    v128.store(to, p1, 16);
    v128.store(to, p2, 32);
    v128.store(to, p3, 48);
    sum0 = f64x2.add(sum0, p0);
    sum1 = f64x2.add(sum1, p1);
    sum2 = f64x2.add(sum2, p2);
    sum3 = f64x2.add(sum3, p3);
    to += 64;
  }
  const sums = f64x2.add(f64x2.add(sum0, sum1), f64x2.add(sum2, sum3));
  return f64x2.extract_lane(sums, 0) + f64x2.extract_lane(sums, 1);
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
