// Where everything lies in the memory that the host gives the sampling kernel. All offsets are multiples
// of 16; n = vocabulary size, length = n rounded up to whole blocks.
//
//   RESULT     f64 logprob of the drawn token, f64 log of the sum of all weights
//   TOP        TOP_MAX token ids, i32, then as many logprobs, f32
//   ROW        n logits, f32, padded with -inf to `length`
//   weights    length f64: exp((logit - max) / temperature)
//   sums       the sum of each block of weights, f64
//   BUCKETS    the filter's histogram: BUCKET_COUNT f64
//   DIGITS     its radix sort's histogram: DIGIT_COUNT u32
//   candidates two lists of (key u32, token u32), `length` each

/** Weights per block sum: the drawn token is found by walking block sums, then one block. */
export const BLOCK: i32 = 64;
/** Alternatives that can be asked for at one position, at most. */
export const TOP_MAX: i32 = 32;
export const BUCKET_COUNT: i32 = 1024;
/** Three passes of 11 bits sort 32-bit keys. */
export const DIGIT_COUNT: i32 = 2048;

export const RESULT: usize = (__heap_base + 15) & ~15;
export const TOP: usize = RESULT + 16;
export const ROW: usize = TOP + TOP_MAX * 8;

/** Logits the row must have room for: n, rounded up to whole blocks. */
export function rowLength(n: i32): i32 {
  return ((n + BLOCK - 1) / BLOCK) * BLOCK;
}

export function weightsOffset(length: usize): usize {
  return ROW + length * 4;
}

export function sumsOffset(length: usize): usize {
  return ROW + length * 12;
}

/** Rounded up, as there may be an odd number of blocks. */
export function bucketsOffset(length: usize): usize {
  return (sumsOffset(length) + (length / BLOCK) * 8 + 15) & ~15;
}

export function digitsOffset(length: usize): usize {
  return bucketsOffset(length) + BUCKET_COUNT * 8;
}

export function candidatesOffset(length: usize): usize {
  return digitsOffset(length) + DIGIT_COUNT * 4;
}

export function memoryBytes(n: i32): usize {
  const length = <usize>rowLength(n);
  return candidatesOffset(length) + length * 16;
}
