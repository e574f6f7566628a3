// From shares to probabilities: how often a draft token with this share is accepted, given that its
// parent is. A logistic model over the logit of the share, the length of the context, and two tables
// of corrections, by the token before and by the token itself: some words are copied faithfully, others
// are where texts part. It learns from every draft whose fate it sees. Owns the model of the instance;
// no text can be read from it.

// Lengths of contexts by powers of two: 1, 2-3, 4-7, ..., 32 and more.
const LENGTHS: u32 = 6;
// A bias and a slope for each length and kind: the likeliest continuation or another; last written by a
// sibling, by the sequence itself, or by none of the group (history only).
const KINDS: u32 = 6;
export const WRITTEN_BY_SIBLING: u32 = 0;
export const WRITTEN_BY_OWN: u32 = 2;
export const WRITTEN_BY_HISTORY: u32 = 4;
const weights: usize = memory.data(6 * 6 * 16, 16);
const WEIGHT_RATE: f64 = 0.002;

const CELLS_BITS: u32 = 12;
const CELL_RATE: f64 = 0.05;
// A correction that could grow without bound would never be tried again.
const CELL_MAX: f64 = 3;
const cellsBefore: usize = memory.data(4096 * 4, 16);
const cellsToken: usize = memory.data(4096 * 4, 16);

// logit(share), from the odds 2^-10 to 2^11 in eight steps an octave (the top bits of an f32),
// linear between them.
const STEP_SHIFT: u32 = 20;
const STEP_FIRST: u32 = (127 - 10) << 3;
const STEPS: u32 = 21 << 3;
const logits: usize = memory.data(169 * 4, 16);

// 1 / (1 + exp(-z)) for z in [-12, 12], sixteen steps a unit, linear between them.
const SQUASH_MAX: f64 = 12;
const SQUASH_STEPS: u32 = 24 << 4;
const squashed: usize = memory.data(385 * 4, 16);

let learns: bool = false;

// Where the model starts: logit(p) = BIAS + RISE l + SLOPE logit(share), l = floor(log2(context length)).
// Fitted on replays of four sets of grouped reasoning responses; each alone gave nearly the same.
const BIAS: f64 = -0.6;
const RISE: f64 = 0.053;
const SLOPE: f64 = 0.74;

export function calibrationBegin(learning: bool): void {
  learns = learning;
  for (let i: u32 = 0; i <= STEPS; i++) {
    const odds = reinterpret<f32>((STEP_FIRST + i) << STEP_SHIFT);
    store<f32>(logits + ((<usize>i) << 2), <f32>Math.log(<f64>odds));
  }
  for (let i: u32 = 0; i <= SQUASH_STEPS; i++) {
    const z = <f64>i / 16 - SQUASH_MAX;
    store<f32>(squashed + ((<usize>i) << 2), <f32>(1 / (1 + Math.exp(-z))));
  }
  for (let i: u32 = 0; i < LENGTHS * KINDS; i++) {
    const weight = weights + ((<usize>i) << 4);
    store<f64>(weight, BIAS + RISE * <f64>(i / KINDS));
    store<f64>(weight, SLOPE, 8);
  }
  memory.fill(cellsBefore, 0, 4 << CELLS_BITS);
  memory.fill(cellsToken, 0, 4 << CELLS_BITS);
}

export function isLearning(): bool {
  return learns;
}

function between(table: usize, part: f64): f64 {
  const low = <f64>load<f32>(table);
  return low + (<f64>load<f32>(table, 4) - low) * part;
}

// 0 < share.
export function logitOf(share: f64): f64 {
  const bits = reinterpret<u32>(<f32>(share / max<f64>(1 - share, 1e-9)));
  const step = bits >> STEP_SHIFT;
  if (step < STEP_FIRST) return <f64>load<f32>(logits);
  if (step >= STEP_FIRST + STEPS) return <f64>load<f32>(logits + ((<usize>STEPS) << 2));
  const part = <f64>(bits & ((1 << STEP_SHIFT) - 1)) / <f64>(1 << STEP_SHIFT);
  return between(logits + ((<usize>(step - STEP_FIRST)) << 2), part);
}

function squash(z: f64): f64 {
  const at = (min<f64>(max<f64>(z, -SQUASH_MAX), SQUASH_MAX - 0.001) + SQUASH_MAX) * 16;
  const step = <u32>at;
  return between(squashed + ((<usize>step) << 2), at - <f64>step);
}

// The set of weights for a context of `length` >= 1 tokens.
export function weightsOf(length: u32, isLikeliest: bool, writtenBy: u32): u32 {
  const l = min<u32>(31 - clz(length), LENGTHS - 1);
  return KINDS * l + (isLikeliest ? 0 : 1) + writtenBy;
}

function cell(table: usize, token: u32): usize {
  return table + ((<usize>((token * 0x9e3779b1) >> (32 - CELLS_BITS))) << 2);
}

// The probability of a token with this logit after the token `before`; `set` is of weightsOf.
export function accepted(logit: f64, set: u32, before: u32, token: u32): f64 {
  const weight = weights + ((<usize>set) << 4);
  const cells = load<f32>(cell(cellsBefore, before)) + load<f32>(cell(cellsToken, token));
  return squash(load<f64>(weight) + load<f64>(weight, 8) * logit + <f64>cells);
}

function cellMove(at: usize, by: f64): void {
  const value = <f64>load<f32>(at) + by;
  store<f32>(at, <f32>min<f64>(max<f64>(value, -CELL_MAX), CELL_MAX));
}

// One step down the gradient of the log loss.
export function learn(logit: f64, set: u32, before: u32, token: u32, wasAccepted: bool): void {
  const error = (wasAccepted ? 1.0 : 0.0) - accepted(logit, set, before, token);
  const weight = weights + ((<usize>set) << 4);
  store<f64>(weight, load<f64>(weight) + error * WEIGHT_RATE);
  store<f64>(weight, load<f64>(weight, 8) + error * logit * WEIGHT_RATE, 8);
  cellMove(cell(cellsBefore, before), error * CELL_RATE);
  cellMove(cell(cellsToken, token), error * CELL_RATE);
}
