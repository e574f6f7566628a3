// From what is known of a draft token to the probability that it is accepted, given that its parent is.
// Without learning: a logistic function of its share and of the length of the context. With learning:
// logistic mixing (Mattern 2012), the inputs weighted by the sum of seven sets of weights that its
// circumstances select, and corrections by the token before, the token itself and the pair: some words
// are copied faithfully, others are where texts part. It learns from every draft whose fate it sees. Owns
// the model of the instance, about 310 KB; no text can be read from it.

import { ORDERS } from "./background";

// Lengths of contexts by powers of two: 1, 2-3, 4-7, ..., 32 and more.
const LENGTHS: u32 = 6;
// A bias and a slope for each length and kind: the likeliest continuation or another; last written by a
// sibling, by the sequence itself, or by none of the group (history only).
const KINDS: u32 = 6;
export const WRITTEN_BY_SIBLING: u32 = 0;
export const WRITTEN_BY_OWN: u32 = 2;
export const WRITTEN_BY_HISTORY: u32 = 4;

// The sets of weights: by context and kind; by depth in the draft; by the longest context that has the
// token; by what the background says; by how often that context has been continued; by how many tokens
// of the sequence's drafts were accepted of late; by the recovery's length. A set has eight lanes of f32,
// one for each input.
const DEPTHS: u32 = 8;
const OWNERS: u32 = 48;
const BACKGROUNDS: u32 = 32;
const TOTALS: u32 = 16;
const RECENTS: u32 = 64;
const LENGTHS_RECOVERED: u32 = 16;
const FIRST_DEPTH: u32 = LENGTHS * KINDS;
const FIRST_OWNER: u32 = FIRST_DEPTH + DEPTHS;
const FIRST_BACKGROUND: u32 = FIRST_OWNER + OWNERS;
const FIRST_TOTAL: u32 = FIRST_BACKGROUND + BACKGROUNDS;
const FIRST_RECENT: u32 = FIRST_TOTAL + TOTALS;
const FIRST_RECOVERED: u32 = FIRST_RECENT + RECENTS;
const SETS: u32 = FIRST_RECOVERED + LENGTHS_RECOVERED;
const weights: usize = memory.data(220 * 32, 16);
const WEIGHT_RATE: f32 = 0.002;

// Evidence is a class; how often tokens with it were accepted is its frequency (f32), the logit of that
// (f32) and how many were seen (u32). Class 0 says nothing.
export const EVIDENCE_CLASSES: u32 = 128;
export const RECOVERY_CLASSES: u32 = 512;
// Classes of recovery evidence for tokens that do not continue it begin here.
export const RECOVERY_OTHER: u32 = 300;
const evidence: usize = memory.data((3 * 128 + 512) * 16, 16);
// Frequencies are means of so many tokens at most, so that they can follow the policy.
const EVIDENCE_MAX: u32 = 1000;
// What a guess below is worth, in tokens seen.
const EVIDENCE_SEEN: u32 = 3;

const CELLS_BITS: u32 = 12;
const PAIRS_BITS: u32 = 16;
const CELL_RATE: f64 = 0.05;
const PAIR_RATE: f64 = 0.1;
// A correction that could grow without bound would never be tried again.
const CELL_MAX: f64 = 3;
const cellsBefore: usize = memory.data(4096 * 4, 16);
const cellsToken: usize = memory.data(4096 * 4, 16);
const cellsPair: usize = memory.data(65536 * 4, 16);

// What a probability was made of, kept until the fate of the token is known: the share's logit (f32); the
// sets by kind, depth, owner, background and total (u8 each); the classes of evidence of the background's
// orders (u8 each) and of the recovery (u16); where the draft would have gone on (propose.ts); the sets by
// recent acceptance and by the recovery's length (u8 each).
export const REASON_BYTES: usize = 32;
const R_LOGIT: usize = 0;
const R_KIND: usize = 4;
export const R_DEPTH: usize = 5;
const R_OWNER: usize = 6;
const R_BACKGROUND: usize = 7;
const R_TOTAL: usize = 8;
const R_EVIDENCE: usize = 9;
const R_RECOVERY: usize = 12;
export const R_NEXT_LENGTH: usize = 14;
export const R_NEXT_STATE: usize = 16;
export const R_NEXT_TOKEN: usize = 20;
const R_RECENT: usize = 24;
const R_RECOVERED: usize = 25;

// What is alike for all candidates of a position: the sums of their weights in the sets by depth, recent
// acceptance and recovery (eight lanes), and the correction by the token before.
const position: usize = memory.data(32, 16);
let positionCell: f32 = 0;
let before: u32 = 0;

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

// The same beside the other inputs, whose weights begin where they ended on two sets, alike on both.
const MIXED_BIAS: f64 = -0.3;
const MIXED_SLOPE: f32 = 0.57;

// A guess at how often a token with this class of evidence is accepted, until any has been seen.
function backgroundGuess(cls: u32): f64 {
  if (cls < 8) return 0.08;
  const count = <f64>(1 << (cls & 7)) * 0.5 + 0.5;
  const octaves = <f64>(max<u32>((cls - 8) >> 3, 1) - 1) / 4;
  return (count / (count + 1)) * Math.pow(2, -octaves);
}

function recoveryGuess(cls: u32): f64 {
  if (cls >= RECOVERY_OTHER) return 0.1;
  return (((cls - 1) >> 4) & 1) != 0 ? 0.4 : 0.15;
}

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
  memory.fill(weights, 0, (<usize>SETS) << 5);
  for (let i: u32 = 0; i < LENGTHS * KINDS; i++) {
    const weight = weights + ((<usize>i) << 5);
    store<f32>(weight, <f32>(MIXED_BIAS + RISE * <f64>(i / KINDS)));
    store<f32>(weight, MIXED_SLOPE, 4);
    store<f32>(weight, 0.13, 8);
    store<f32>(weight, 0.25, 12);
    store<f32>(weight, 0.28, 16);
    store<f32>(weight, 0.8, 20);
  }
  for (let i: u32 = 0; i < ORDERS * EVIDENCE_CLASSES + RECOVERY_CLASSES; i++) {
    const isBackground = i < ORDERS * EVIDENCE_CLASSES;
    const cls = isBackground ? i % EVIDENCE_CLASSES : i - ORDERS * EVIDENCE_CLASSES;
    const frequency = <f32>(isBackground ? backgroundGuess(cls) : recoveryGuess(cls));
    const at = evidence + ((<usize>i) << 4);
    store<f32>(at, frequency);
    store<f32>(at, cls == 0 ? 0 : <f32>logitOf(<f64>frequency), 4);
    store<u32>(at, EVIDENCE_SEEN, 8);
  }
  memory.fill(cellsBefore, 0, 4 << CELLS_BITS);
  memory.fill(cellsToken, 0, 4 << CELLS_BITS);
  memory.fill(cellsPair, 0, 4 << PAIRS_BITS);
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

// Lengths of contexts in LENGTHS classes.
export function lengthClass(length: u32): u32 {
  return min<u32>(31 - clz(max<u32>(length, 1)), LENGTHS - 1);
}

// The probability without learning, for a context of `length` >= 1 tokens.
export function acceptedPlain(logit: f64, length: u32): f64 {
  return squash(BIAS + RISE * <f64>lengthClass(length) + SLOPE * logit);
}

// The set of weights for a context of `length` tokens.
export function kindOfContext(length: u32, isLikeliest: bool, writtenBy: u32): u32 {
  return KINDS * lengthClass(length) + (isLikeliest ? 0 : 1) + writtenBy;
}

function cell(table: usize, key: u32, bits: u32): usize {
  return table + ((<usize>((key * 0x9e3779b1) >> (32 - bits))) << 2);
}

function pairCell(before: u32, token: u32): usize {
  const key = (before * 0x85ebca6b + token) ^ (before >> 15);
  return cell(cellsPair, key, PAIRS_BITS);
}

function evidenceOf(order: u32, cls: u32): usize {
  return evidence + ((<usize>(order * EVIDENCE_CLASSES + cls)) << 4);
}

function weightAt(first: u32, reason: usize, which: usize): usize {
  return weights + ((<usize>(first + <u32>load<u8>(reason + which))) << 5);
}

// Writes a reason: the sets by kind, depth, owner and background (a byte each), by total and the evidence of
// the orders, the evidence of the recovery, the sets by recent acceptance and by recovery. In whole words:
// bytes could not be read back as words before they have left the processor's store buffer.
export function reasonWrite(
  reason: usize,
  logit: f32,
  sets: u32,
  seen: u32,
  recovery: u32,
  late: u32,
): void {
  store<u64>(reason, <u64>reinterpret<u32>(logit) | ((<u64>sets) << 32));
  store<u64>(reason, <u64>seen | ((<u64>recovery) << 32), R_TOTAL);
  store<u64>(reason, 0, R_NEXT_STATE);
  store<u64>(reason, late, R_RECENT);
}

function evidenceLogit(order: u32, reason: usize): f32 {
  return load<f32>(evidenceOf(order, load<u8>(reason + order, R_EVIDENCE)), 4);
}

// The inputs: 1, the logit of the share, what the first two orders of the background say.
function inputsLow(reason: usize): v128 {
  let low = f32x4.replace_lane(f32x4.splat(1), 1, load<f32>(reason, R_LOGIT));
  low = f32x4.replace_lane(low, 2, evidenceLogit(0, reason));
  return f32x4.replace_lane(low, 3, evidenceLogit(1, reason));
}

// And the third, and the recovery.
function inputsHigh(reason: usize): v128 {
  const high = f32x4.replace_lane(f32x4.splat(0), 0, evidenceLogit(2, reason));
  const recovery = load<f32>(evidenceOf(ORDERS, load<u16>(reason, R_RECOVERY)), 4);
  return f32x4.replace_lane(high, 1, recovery);
}

function setAt(first: u32, index: u32): usize {
  return weights + ((<usize>(first + index)) << 5);
}

// The position that is to be drafted: how many tokens of the draft precede it, the classes of recent acceptance
// and of the recovery, and the token before it.
export function positionBegin(depth: u32, recent: u32, recovered: u32, token: u32): void {
  const one = setAt(FIRST_DEPTH, depth);
  const two = setAt(FIRST_RECENT, recent);
  const three = setAt(FIRST_RECOVERED, recovered);
  const low = f32x4.add(v128.load(one), v128.load(two));
  const high = f32x4.add(v128.load(one, 16), v128.load(two, 16));
  v128.store(position, f32x4.add(low, v128.load(three)));
  v128.store(position, f32x4.add(high, v128.load(three, 16)), 16);
  positionCell = load<f32>(cell(cellsBefore, token, CELLS_BITS));
  before = token;
}

// The probability of a token at the position: `sets` and `seen` as in reasonWrite, the class of the recovery's
// evidence.
export function accepted(logit: f32, sets: u32, seen: u32, recovery: u32, token: u32): f64 {
  const kind = setAt(0, sets & 255);
  const owner = setAt(FIRST_OWNER, (sets >> 16) & 255);
  const background = setAt(FIRST_BACKGROUND, sets >> 24);
  const total = setAt(FIRST_TOTAL, seen & 255);
  let low = f32x4.add(v128.load(position), v128.load(kind));
  let high = f32x4.add(v128.load(position, 16), v128.load(kind, 16));
  low = f32x4.add(low, f32x4.add(v128.load(owner), v128.load(background)));
  high = f32x4.add(high, f32x4.add(v128.load(owner, 16), v128.load(background, 16)));
  low = f32x4.add(low, v128.load(total));
  high = f32x4.add(high, v128.load(total, 16));
  const one = load<f32>(evidenceOf(0, (seen >> 8) & 255), 4);
  const two = load<f32>(evidenceOf(1, (seen >> 16) & 255), 4);
  const three = load<f32>(evidenceOf(2, seen >> 24), 4);
  const recovered = load<f32>(evidenceOf(ORDERS, recovery), 4);
  const mix =
    f32x4.extract_lane(low, 0) +
    f32x4.extract_lane(low, 1) * logit +
    (f32x4.extract_lane(low, 2) * one + f32x4.extract_lane(low, 3) * two) +
    (f32x4.extract_lane(high, 0) * three + f32x4.extract_lane(high, 1) * recovered);
  const cells =
    positionCell +
    load<f32>(cell(cellsToken, token, CELLS_BITS)) +
    load<f32>(pairCell(before, token));
  return squash(<f64>mix + <f64>cells);
}

// The probability, as of now, of the token with this reason after the token `previous`.
export function acceptedAs(reason: usize, previous: u32, token: u32): f64 {
  const recent: u32 = load<u8>(reason, R_RECENT);
  positionBegin(load<u8>(reason, R_DEPTH), recent, load<u8>(reason, R_RECOVERED), previous);
  const sets = load<u32>(reason, R_KIND);
  const recovery: u32 = load<u16>(reason, R_RECOVERY);
  return <f64>(
    accepted(load<f32>(reason, R_LOGIT), sets, load<u32>(reason, R_TOTAL), recovery, token)
  );
}

function cellMove(at: usize, by: f64): void {
  const value = <f64>load<f32>(at) + by;
  store<f32>(at, <f32>min<f64>(max<f64>(value, -CELL_MAX), CELL_MAX));
}

function weightMove(at: usize, low: v128, high: v128): void {
  v128.store(at, f32x4.add(v128.load(at), low));
  v128.store(at, f32x4.add(v128.load(at, 16), high), 16);
}

function evidenceMove(at: usize, wasAccepted: bool): void {
  const seen = load<u32>(at, 8);
  const frequency = load<f32>(at);
  const moved = frequency + ((wasAccepted ? 1 : 0) - frequency) / (<f32>seen + 1.5);
  store<f32>(at, moved);
  store<f32>(at, <f32>logitOf(max<f64>(<f64>moved, 1e-4)), 4);
  if (seen < EVIDENCE_MAX) store<u32>(at, seen + 1, 8);
}

export function oddsOf(probability: f64): f64 {
  return probability / (1 - probability);
}

// One step down the gradient of the log loss. `others` is one plus the odds of the other candidates that
// the token stood against: 1 if it stood alone.
export function learn(
  reason: usize,
  before: u32,
  token: u32,
  wasAccepted: bool,
  others: f64,
): void {
  const odds = oddsOf(acceptedAs(reason, before, token));
  const error = (wasAccepted ? 1.0 : 0.0) - odds / (others + odds);
  const rate = f32x4.splat(WEIGHT_RATE * <f32>error);
  const low = f32x4.mul(rate, inputsLow(reason));
  const high = f32x4.mul(rate, inputsHigh(reason));
  weightMove(weightAt(0, reason, R_KIND), low, high);
  weightMove(weightAt(FIRST_DEPTH, reason, R_DEPTH), low, high);
  weightMove(weightAt(FIRST_OWNER, reason, R_OWNER), low, high);
  weightMove(weightAt(FIRST_BACKGROUND, reason, R_BACKGROUND), low, high);
  weightMove(weightAt(FIRST_TOTAL, reason, R_TOTAL), low, high);
  weightMove(weightAt(FIRST_RECENT, reason, R_RECENT), low, high);
  weightMove(weightAt(FIRST_RECOVERED, reason, R_RECOVERED), low, high);
  cellMove(cell(cellsBefore, before, CELLS_BITS), error * CELL_RATE);
  cellMove(cell(cellsToken, token, CELLS_BITS), error * CELL_RATE);
  cellMove(pairCell(before, token), error * PAIR_RATE);
  for (let order: u32 = 0; order < ORDERS; order++) {
    const cls = load<u8>(reason + order, R_EVIDENCE);
    if (cls != 0) evidenceMove(evidenceOf(order, cls), wasAccepted);
  }
  const recovery = load<u16>(reason, R_RECOVERY);
  if (recovery != 0) evidenceMove(evidenceOf(ORDERS, recovery), wasAccepted);
}
