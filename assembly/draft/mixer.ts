// From what is known of a draft token to the probability that it is accepted, given that its parent is.
// Without learning: a logistic function of its share and of the length of the context. With learning:
// logistic mixing (Mattern 2012), the inputs weighted by the sum of eight sets of weights that its
// circumstances select, the token before and the token itself among them (some words are copied faithfully,
// others are where texts part), and a correction by the two together. It learns from every draft whose fate it
// sees. Owns the model of the instance, about 420 KB; no text can be read from it.

import {
  AGES,
  CONTEXT_ONE,
  CONTEXT_TWO,
  FOLLOWER_STATES,
  LAST_USE_CLASSES,
} from "./ngram-sequence";

// Lengths of contexts by powers of two: 1, 2-3, 4-7, ..., 32 and more.
const LENGTHS: u32 = 6;
// A bias and a slope for each length and kind: the likeliest continuation or another; last written by a
// sibling, by the sequence itself, or by none of the group (history only).
const KINDS: u32 = 6;
export const WRITTEN_BY_SIBLING: u32 = 0;
export const WRITTEN_BY_OWN: u32 = 2;
export const WRITTEN_BY_HISTORY: u32 = 4;

// The sets of weights: by context and kind; by how often the longest context that has the token has been continued;
// by when the sequence last wrote the token; by what last followed the same one and two tokens in the sequence; by
// how many tokens of the sequence's drafts were accepted of late; by the recovery's length; by the token before;
// by the token. A set has eight lanes of f32, one for each input.
const TOTALS: u32 = 16;
const LASTS: u32 = 2 * LAST_USE_CLASSES;
const FOLLOWERS: u32 = FOLLOWER_STATES * FOLLOWER_STATES;
const RECENTS: u32 = 32;
const LENGTHS_RECOVERED: u32 = 16;
const TOKENS_BITS: u32 = 11;
const FIRST_TOTAL: u32 = LENGTHS * KINDS;
const FIRST_LAST: u32 = FIRST_TOTAL + TOTALS;
const FIRST_FOLLOWERS: u32 = FIRST_LAST + LASTS;
const FIRST_RECENT: u32 = FIRST_FOLLOWERS + FOLLOWERS;
const FIRST_RECOVERED: u32 = FIRST_RECENT + RECENTS;
const FIRST_BEFORE: u32 = FIRST_RECOVERED + LENGTHS_RECOVERED;
const FIRST_TOKEN: u32 = FIRST_BEFORE + (1 << TOKENS_BITS);
const SETS: u32 = FIRST_TOKEN + (1 << TOKENS_BITS);
const weights: usize = memory.data(SETS * 32, 16);
// How far weights move in the end. At first they move 1 + FIRST_TIMES times as far; half of what is more is gone after
// FIRST_TOKENS tokens learned. Jobs of 50,000 tokens gain 2 to 3 %, large ones nothing.
const WEIGHT_RATE: f32 = 0.001;
const FIRST_TIMES: f32 = 4;
const FIRST_TOKENS: f32 = 100_000;
const LEARNED_MAX: u32 = 100_000_000;
let learned: u32 = 0;
// A token's own set is selected seldom, and moves so much further each time.
const TOKEN_TIMES: f32 = 3;

// Evidence is a class; how often tokens with it were accepted is its frequency (f32), the logit of that
// (f32) and how many were seen (u32). Class 0 says nothing. It comes from the background's contexts of two and
// three tokens, from the recovery, and from the sequence's own last followers.
const CROSS_STATES: u32 = 128;
const RECOVERY_STATES: u32 = 512;
// Classes of recovery evidence for tokens that do not continue it begin here.
export const RECOVERY_OTHER: u32 = 300;
const FROM_TRIPLE: u32 = CROSS_STATES;
const FROM_RECOVERY: u32 = 2 * CROSS_STATES;
const FROM_WORD: u32 = FROM_RECOVERY + RECOVERY_STATES;
const FROM_PAIR: u32 = FROM_WORD + FOLLOWER_STATES * AGES;
const FROM_SKIP: u32 = FROM_PAIR + FOLLOWER_STATES;
const STATES: u32 = FROM_SKIP + FOLLOWER_STATES;
const evidence: usize = memory.data(STATES * 16, 16);
// Frequencies are means of so many tokens at most, so that they can follow the policy.
const STATE_SEEN_MAX: u32 = 1000;
// What a guess below is worth, in tokens seen.
const STATE_SEEN: u32 = 3;

const PAIRS_BITS: u32 = 16;
const PAIR_RATE: f64 = 0.05;
// A correction that could grow without bound would never be tried again.
const PAIR_MAX: f64 = 3;
const cellsPair: usize = memory.data(65536 * 4, 16);

// What a probability was made of, kept until the fate of the token is known: the share's logit (f32); the
// sets by kind, total and last (u8 each); the classes of evidence of the skipping context, of the background's two
// orders, of one and of two tokens (u8 each), and of the recovery (u16); where the draft would have gone on
// (propose.ts); the sets by recent acceptance and by the recovery's length (u8 each).
export const FEATURE_BYTES: usize = 32;
const R_LOGIT: usize = 0;
const R_KIND: usize = 4;
const R_SEEN: usize = 8;
const R_RECOVERY: usize = 12;
export const R_NEXT_LENGTH: usize = 14;
export const R_NEXT_STATE: usize = 16;
export const R_NEXT_TOKEN: usize = 20;
const R_RECENT: usize = 24;
const R_RECOVERED: usize = 25;

// What is alike for all candidates of a position: the sums of their weights in the sets by recent acceptance, recovery
// and the token before (eight lanes).
const position: usize = memory.data(32, 16);
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

// The same beside the other inputs, whose weights begin near where they ended on two sets, alike on both: 1, the share,
// the background after two and three tokens, the recovery, the followers of one and two tokens, and of those
// before the last.
const MIXED_BIAS: f64 = -0.4;
const MIXED_SLOPE: f32 = 0.5;

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

// The run's length, and by whether the token is the last follower, the one before it, or neither.
function followerGuess(cls: u32): f64 {
  const longer = <f64>((cls - 1) & 3);
  if (cls <= 4) return 0.62 + 0.1 * longer;
  return (cls <= 8 ? 0.66 : 0.5) + 0.03 * longer;
}

function stateGuess(index: u32): f64 {
  if (index < FROM_RECOVERY) return backgroundGuess(index % CROSS_STATES);
  if (index < FROM_WORD) return recoveryGuess(index - FROM_RECOVERY);
  return followerGuess(
    index < FROM_PAIR ? (index - FROM_WORD) / AGES : (index - FROM_PAIR) % FOLLOWER_STATES,
  );
}

export function mixerBegin(learning: bool): void {
  learns = learning;
  learned = 0;
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
    store<f32>(weight, 0.25, 8);
    store<f32>(weight, 0.3, 12);
    store<f32>(weight, 0.7, 16);
    store<f32>(weight, 0.24, 20);
    store<f32>(weight, 0.26, 24);
    store<f32>(weight, 0.2, 28);
  }
  for (let i: u32 = 0; i < STATES; i++) {
    const guess = stateGuess(i);
    const at = stateAt(i);
    store<f32>(at, <f32>guess);
    store<f32>(at, <f32>logitOf(guess), 4);
    store<u32>(at, STATE_SEEN, 8);
  }
  // Class 0.
  store<f32>(stateAt(0), 0, 4);
  store<f32>(stateAt(FROM_TRIPLE), 0, 4);
  store<f32>(stateAt(FROM_RECOVERY), 0, 4);
  store<f32>(stateAt(FROM_WORD), 0, 4);
  store<f32>(stateAt(FROM_PAIR), 0, 4);
  store<f32>(stateAt(FROM_SKIP), 0, 4);
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

function pairCell(before: u32, token: u32): usize {
  const key = (before * 0x85ebca6b + token) ^ (before >> 15);
  return cellsPair + ((<usize>((key * 0x9e3779b1) >> (32 - PAIRS_BITS))) << 2);
}

function stateAt(index: u32): usize {
  return evidence + ((<usize>index) << 4);
}

function stateLogit(index: u32): f32 {
  return load<f32>(stateAt(index), 4);
}

function setAt(first: u32, index: u32): usize {
  return weights + ((<usize>(first + index)) << 5);
}

function tokenSet(first: u32, token: u32): usize {
  return setAt(first, (token * 0x9e3779b1) >> (32 - TOKENS_BITS));
}

// By what last followed one and two tokens.
function followersSet(seen: u32): usize {
  return setAt(FIRST_FOLLOWERS, (seen >> 24) * FOLLOWER_STATES + ((seen >> 16) & 255) / AGES);
}

// How often tokens were accepted that the sequence itself last wrote behind the context, `run` times in turn.
export function followedPart(context: u32, run: u32, age: u32): f64 {
  const from = context == CONTEXT_TWO ? FROM_PAIR : FROM_SKIP;
  return <f64>(
    load<f32>(stateAt(context == CONTEXT_ONE ? FROM_WORD + run * AGES + age : from + run))
  );
}

// Writes a reason: the sets by kind, total and last and the evidence of the skipping context (a byte each), the
// evidence of the background's orders and of one and two tokens, the evidence of the recovery, the sets by recent
// acceptance and by recovery. In whole words: bytes could not be read back as words before they have left the
// processor's store buffer.
export function featuresWrite(
  features: usize,
  logit: f32,
  sets: u32,
  seen: u32,
  recovery: u32,
  late: u32,
): void {
  store<u64>(features, <u64>reinterpret<u32>(logit) | ((<u64>sets) << 32));
  store<u64>(features, <u64>seen | ((<u64>recovery) << 32), R_SEEN);
  store<u64>(features, 0, R_NEXT_STATE);
  store<u64>(features, late, R_RECENT);
}

// The position that is to be drafted: the classes of recent acceptance and of the recovery, and the token before it.
export function positionBegin(recent: u32, recovered: u32, token: u32): void {
  const one = setAt(FIRST_RECENT, recent);
  const two = setAt(FIRST_RECOVERED, recovered);
  const three = tokenSet(FIRST_BEFORE, token);
  const low = f32x4.add(v128.load(one), v128.load(two));
  const high = f32x4.add(v128.load(one, 16), v128.load(two, 16));
  v128.store(position, f32x4.add(low, v128.load(three)));
  v128.store(position, f32x4.add(high, v128.load(three, 16)), 16);
  before = token;
}

// The probability of a token at the position: `sets` and `seen` as in featuresWrite, the class of the recovery's
// evidence.
export function accepted(logit: f32, sets: u32, seen: u32, recovery: u32, token: u32): f64 {
  const kind = setAt(0, sets & 255);
  const total = setAt(FIRST_TOTAL, (sets >> 8) & 255);
  const last = setAt(FIRST_LAST, (sets >> 16) & 255);
  const followers = followersSet(seen);
  const own = tokenSet(FIRST_TOKEN, token);
  let low = f32x4.add(v128.load(position), v128.load(kind));
  let high = f32x4.add(v128.load(position, 16), v128.load(kind, 16));
  low = f32x4.add(low, f32x4.add(v128.load(total), v128.load(last)));
  high = f32x4.add(high, f32x4.add(v128.load(total, 16), v128.load(last, 16)));
  low = f32x4.add(low, f32x4.add(v128.load(followers), v128.load(own)));
  high = f32x4.add(high, f32x4.add(v128.load(followers, 16), v128.load(own, 16)));
  const one = stateLogit(seen & 255);
  const two = stateLogit(FROM_TRIPLE + ((seen >> 8) & 255));
  const three = stateLogit(FROM_RECOVERY + recovery);
  const word = stateLogit(FROM_WORD + ((seen >> 16) & 255));
  const pair = stateLogit(FROM_PAIR + (seen >> 24));
  const skip = stateLogit(FROM_SKIP + (sets >> 24));
  const mix =
    f32x4.extract_lane(low, 0) +
    f32x4.extract_lane(low, 1) * logit +
    (f32x4.extract_lane(low, 2) * one + f32x4.extract_lane(low, 3) * two) +
    (f32x4.extract_lane(high, 0) * three + f32x4.extract_lane(high, 1) * word) +
    (f32x4.extract_lane(high, 2) * pair + f32x4.extract_lane(high, 3) * skip);
  return squash(<f64>mix + <f64>load<f32>(pairCell(before, token)));
}

// The probability, as of now, of the token with this reason after the token `previous`.
export function acceptedAs(features: usize, previous: u32, token: u32): f64 {
  positionBegin(load<u8>(features, R_RECENT), load<u8>(features, R_RECOVERED), previous);
  const sets = load<u32>(features, R_KIND);
  const recovery: u32 = load<u16>(features, R_RECOVERY);
  return accepted(load<f32>(features, R_LOGIT), sets, load<u32>(features, R_SEEN), recovery, token);
}

function pairMove(at: usize, by: f64): void {
  const value = <f64>load<f32>(at) + by;
  store<f32>(at, <f32>min<f64>(max<f64>(value, -PAIR_MAX), PAIR_MAX));
}

function weightMove(at: usize, low: v128, high: v128): void {
  v128.store(at, f32x4.add(v128.load(at), low));
  v128.store(at, f32x4.add(v128.load(at, 16), high), 16);
}

function stateUpdate(at: usize, wasAccepted: bool): void {
  const seen = load<u32>(at, 8);
  const frequency = load<f32>(at);
  const moved = frequency + ((wasAccepted ? 1 : 0) - frequency) / (<f32>seen + 1.5);
  store<f32>(at, moved);
  store<f32>(at, <f32>logitOf(max<f64>(<f64>moved, 1e-4)), 4);
  if (seen < STATE_SEEN_MAX) store<u32>(at, seen + 1, 8);
}

export function oddsOf(probability: f64): f64 {
  return probability / (1 - probability);
}

// One step down the gradient of the log loss. `others` is one plus the odds of the other candidates that
// the token stood against: 1 if it stood alone.
export function learn(
  features: usize,
  before: u32,
  token: u32,
  wasAccepted: bool,
  others: f64,
): void {
  const odds = oddsOf(acceptedAs(features, before, token));
  const error = (wasAccepted ? 1.0 : 0.0) - odds / (others + odds);
  const sets = load<u32>(features, R_KIND);
  const seen = load<u32>(features, R_SEEN);
  const one = stateAt(seen & 255);
  const two = stateAt(FROM_TRIPLE + ((seen >> 8) & 255));
  const three = stateAt(FROM_RECOVERY + load<u16>(features, R_RECOVERY));
  const word = stateAt(FROM_WORD + ((seen >> 16) & 255));
  const pair = stateAt(FROM_PAIR + (seen >> 24));
  const skip = stateAt(FROM_SKIP + (sets >> 24));
  if (learned < LEARNED_MAX) learned += 1;
  const times: f32 = 1.0 + (FIRST_TIMES * FIRST_TOKENS) / (FIRST_TOKENS + <f32>learned);
  const rate = f32x4.splat(WEIGHT_RATE * times * <f32>error);
  let low = f32x4.replace_lane(f32x4.splat(1), 1, load<f32>(features, R_LOGIT));
  low = f32x4.replace_lane(low, 2, load<f32>(one, 4));
  low = f32x4.mul(rate, f32x4.replace_lane(low, 3, load<f32>(two, 4)));
  let high = f32x4.replace_lane(f32x4.splat(load<f32>(three, 4)), 1, load<f32>(word, 4));
  high = f32x4.replace_lane(high, 2, load<f32>(pair, 4));
  high = f32x4.mul(rate, f32x4.replace_lane(high, 3, load<f32>(skip, 4)));
  weightMove(setAt(0, sets & 255), low, high);
  weightMove(setAt(FIRST_TOTAL, (sets >> 8) & 255), low, high);
  weightMove(setAt(FIRST_LAST, (sets >> 16) & 255), low, high);
  weightMove(followersSet(seen), low, high);
  weightMove(setAt(FIRST_RECENT, load<u8>(features, R_RECENT)), low, high);
  weightMove(setAt(FIRST_RECOVERED, load<u8>(features, R_RECOVERED)), low, high);
  low = f32x4.mul(low, f32x4.splat(TOKEN_TIMES));
  high = f32x4.mul(high, f32x4.splat(TOKEN_TIMES));
  weightMove(tokenSet(FIRST_BEFORE, before), low, high);
  weightMove(tokenSet(FIRST_TOKEN, token), low, high);
  pairMove(pairCell(before, token), error * PAIR_RATE);
  if ((seen & 255) != 0) stateUpdate(one, wasAccepted);
  if (((seen >> 8) & 255) != 0) stateUpdate(two, wasAccepted);
  if (load<u16>(features, R_RECOVERY) != 0) stateUpdate(three, wasAccepted);
  if (((seen >> 16) & 255) != 0) stateUpdate(word, wasAccepted);
  if (seen >> 24 != 0) stateUpdate(pair, wasAccepted);
  if (sets >> 24 != 0) stateUpdate(skip, wasAccepted);
}
