// Restricts a row of logits to its likely tokens: min_p, then top_k, then top_p, in vLLM's order and with
// its semantics (vllm/v1/sample), on the distribution after temperature. What is dropped gets a logit of
// -inf, so that `sample` draws from the rest and reports its probability in the rest.
// It decides by the row alone: among equal logits the lowest token id counts as the likelier one.

import { fillWeights, rowMax, scaleOf } from "./draw";
import {
  BUCKET_COUNT,
  bucketsOffset,
  candidatesOffset,
  DIGIT_COUNT,
  digitsOffset,
  ROW,
  rowLength,
  weightsOffset,
} from "./layout";

/**
 * Buckets per unit of log-probability below the likeliest token: narrow enough that the one in which a
 * cut falls holds few tokens, and the last one starts at e^-32.
 */
const BUCKETS_PER_UNIT: f64 = 32;
/** Up to here insertion beats clearing the histograms of the radix sort. */
const INSERTION_MAX: i32 = 64;

/** Where a cut falls: tokens from here on, in falling order of their logits, are dropped. */
let cutLogit: f32 = 0;
let cutToken: usize = 0;

/** minP 0, topK 0 and topP 1 are off. A row without a finite maximum is left as it is. */
export function filter(n: i32, temperature: f64, minP: f64, topK: i32, topP: f64): void {
  const length = <usize>rowLength(n);
  const max = rowMax(length);
  if (!isFinite(max)) return;
  const scale = scaleOf(temperature);
  fillWeights(length, max, scale);
  if (minP > 0) dropBelow(length, minP);
  if (topK > 0 && topK < n && cutAtCount(length, <f64>max, scale, topK)) drop(length);
  if (topP < 1 && cutAtMass(length, <f64>max, scale, topP)) drop(length);
}

/** The likeliest token's weight is 1, so a weight is the probability relative to it. */
function dropBelow(length: usize, minP: f64): void {
  const weights = weightsOffset(length);
  for (let token: usize = 0; token < length; token += 1) {
    if (load<f64>(weights + (token << 3)) < minP) dropToken(weights, token);
  }
}

function drop(length: usize): void {
  const weights = weightsOffset(length);
  for (let token: usize = 0; token < length; token += 1) {
    const logit = load<f32>(ROW + (token << 2));
    if (logit < cutLogit || (logit == cutLogit && token > cutToken)) dropToken(weights, token);
  }
}

function dropToken(weights: usize, token: usize): void {
  store<f32>(ROW + (token << 2), -Infinity);
  store<f64>(weights + (token << 3), 0);
}

function bucketOf(logit: f32, max: f64, scale: f64): usize {
  const bucket = (max - <f64>logit) * scale * BUCKETS_PER_UNIT;
  return bucket < BUCKET_COUNT - 1 ? <usize>bucket : BUCKET_COUNT - 1;
}

/** Sums, for each bucket, the weights of its tokens, or their number. */
function fillBuckets(length: usize, max: f64, scale: f64, byMass: bool): void {
  const buckets = bucketsOffset(length);
  const weights = weightsOffset(length);
  memory.fill(buckets, 0, BUCKET_COUNT * 8);
  for (let token: usize = 0; token < length; token += 1) {
    const weight = load<f64>(weights + (token << 3));
    if (weight == 0) continue;
    const at = buckets + (bucketOf(load<f32>(ROW + (token << 2)), max, scale) << 3);
    store<f64>(at, load<f64>(at) + (byMass ? weight : 1));
  }
}

/** After the `topK` likeliest tokens, and all that are as likely as the last of them. false: no cut. */
function cutAtCount(length: usize, max: f64, scale: f64, topK: i32): bool {
  fillBuckets(length, max, scale, false);
  const buckets = bucketsOffset(length);
  let before: i32 = 0;
  for (let bucket: usize = 0; bucket < <usize>BUCKET_COUNT; bucket += 1) {
    const count = <i32>load<f64>(buckets + (bucket << 3));
    if (before + count >= topK) {
      const sorted = sortBucket(length, bucket, max, scale);
      cutLogit = load<f32>(ROW + (tokenAt(sorted, topK - before - 1) << 2));
      cutToken = length;
      return true;
    }
    before += count;
  }
  return false;
}

/** After the first token with which the likeliest ones hold `topP` of the mass. false: no cut. */
function cutAtMass(length: usize, max: f64, scale: f64, topP: f64): bool {
  fillBuckets(length, max, scale, true);
  const buckets = bucketsOffset(length);
  let total: f64 = 0;
  for (let at = buckets; at < buckets + BUCKET_COUNT * 8; at += 8) total += load<f64>(at);
  const target = topP * total;
  let before: f64 = 0;
  for (let bucket: usize = 0; bucket < <usize>BUCKET_COUNT; bucket += 1) {
    const mass = load<f64>(buckets + (bucket << 3));
    if (mass > 0 && before + mass >= target) {
      const sorted = sortBucket(length, bucket, max, scale);
      const weights = weightsOffset(length);
      // The last token of the bucket where rounding leaves its sum short of the bucket's mass.
      for (let i: i32 = 0; i < candidates; i += 1) {
        cutToken = tokenAt(sorted, i);
        before += load<f64>(weights + (cutToken << 3));
        if (before >= target) break;
      }
      cutLogit = load<f32>(ROW + (cutToken << 2));
      return true;
    }
    before += mass;
  }
  return false;
}

/** Tokens in the bucket that was sorted last. */
let candidates: i32 = 0;

function tokenAt(list: usize, index: i32): usize {
  return <usize>load<u32>(list + ((<usize>index) << 3), 4);
}

/** The bucket's tokens, likeliest first, lowest id first among equals; returns where the list lies. */
function sortBucket(length: usize, bucket: usize, max: f64, scale: f64): usize {
  const list = candidatesOffset(length);
  const weights = weightsOffset(length);
  candidates = 0;
  for (let token: usize = 0; token < length; token += 1) {
    if (load<f64>(weights + (token << 3)) == 0) continue;
    const logit = load<f32>(ROW + (token << 2));
    if (bucketOf(logit, max, scale) != bucket) continue;
    store<u32>(list + ((<usize>candidates) << 3), fallingKey(logit));
    store<u32>(list + ((<usize>candidates) << 3), <u32>token, 4);
    candidates += 1;
  }
  if (candidates > INSERTION_MAX) return radixSort(length, list, list + length * 8);
  insertionSort(list);
  return list;
}

/** A key that ascends as the logit falls. Adding 0 makes -0 the 0 it equals. */
function fallingKey(logit: f32): u32 {
  const bits = reinterpret<u32>(logit + 0);
  return bits >> 31 ? bits : ~bits & 0x7fffffff;
}

/** Stable: a list in order of token ids stays so among equal keys. */
function insertionSort(list: usize): void {
  for (let i: usize = 1; i < <usize>candidates; i += 1) {
    const entry = load<u64>(list + (i << 3));
    let at = i;
    while (at > 0 && load<u32>(list + ((at - 1) << 3)) > <u32>entry) {
      store<u64>(list + (at << 3), load<u64>(list + ((at - 1) << 3)));
      at -= 1;
    }
    store<u64>(list + (at << 3), entry);
  }
}

/** Stable as well. Three passes: the result is in the second list. */
function radixSort(length: usize, first: usize, second: usize): usize {
  const digits = digitsOffset(length);
  let from = first;
  let to = second;
  for (let shift: u32 = 0; shift < 33; shift += 11) {
    memory.fill(digits, 0, DIGIT_COUNT * 4);
    const end = from + ((<usize>candidates) << 3);
    for (let at = from; at < end; at += 8) {
      const slot = digits + ((<usize>((load<u32>(at) >> shift) & (DIGIT_COUNT - 1))) << 2);
      store<u32>(slot, load<u32>(slot) + 1);
    }
    let start: u32 = 0;
    for (let slot = digits; slot < digits + DIGIT_COUNT * 4; slot += 4) {
      const count = load<u32>(slot);
      store<u32>(slot, start);
      start += count;
    }
    for (let at = from; at < end; at += 8) {
      const slot = digits + ((<usize>((load<u32>(at) >> shift) & (DIGIT_COUNT - 1))) << 2);
      const place = load<u32>(slot);
      store<u32>(slot, place + 1);
      store<u64>(to + ((<usize>place) << 3), load<u64>(at));
    }
    const swap = from;
    from = to;
    to = swap;
  }
  return from;
}
