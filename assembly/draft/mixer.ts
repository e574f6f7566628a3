// The mixer: from a feature vector to the probability that the token is accepted, given that its parent is. Logistic
// mixing (Mattern 2012; PAQ, lpaq, cmix): the inputs are weighted by the sum of the selected weight vectors, then a
// bias of the pair of this token and the one before it is added. It learns online, from the verification of every
// draft. Owns the pair biases; the vectors and states are the model's (420 KB in all; no text can be read from them).

import { frequencyOf, logitOf, stateUpdate } from "./adaptive-state";
import { lengthClass } from "./classes";
import { logitIn, stateIn, vectorIn } from "./feature-vector";
import { logisticBegin, oddsOf, squash } from "./logistic";
import {
  BIAS_RISE,
  INPUT_FIRST_STATE,
  INPUTS,
  Input,
  modelBegin,
  SELECTORS,
  Selector,
  State,
  selectorRate,
  stateAt,
  VECTOR_BYTES,
  Vector,
  vectorAt,
} from "./model";

// Final learning rate. It starts 1 + FIRST_TIMES times as high; half of the excess is gone after FIRST_TOKENS learned
// tokens. Jobs of 50,000 tokens gain 2 to 3 %, large ones nothing.
const WEIGHT_RATE: f32 = 0.001;
const FIRST_TIMES: f32 = 4;
const FIRST_TOKENS: f32 = 100_000;
const LEARNED_MAX: u32 = 100_000_000;
let learned: u32 = 0;

const PAIRS_BITS: u32 = 16;
const PAIR_RATE: f64 = 0.05;
// A bias that could grow without bound would exclude its token for good.
const PAIR_MAX: f64 = 3;
const pairBiases: usize = memory.data(4 << PAIRS_BITS, 16);

// The odds of second best candidates are this many times as high as the model says. Without it the probabilities of the
// best, which alone are drafted, would be too low.
const SECOND_RATE: f64 = 0.002;
const SECOND_MAX: f64 = 8;
let secondTimes: f64 = 1;

// The sum of the weight vectors that all candidates of the position select.
const shared: usize = memory.data(VECTOR_BYTES, 16);

let learns: bool = false;

// Without learning: logit(p) = BIAS + RISE l + SLOPE logit(interpolated), l the class of the context's length. Fitted on
// replays of four sets of grouped reasoning responses; each alone gave nearly the same.
const PLAIN_BIAS: f64 = -0.6;
const PLAIN_SLOPE: f64 = 0.74;

export function mixerBegin(learning: bool): void {
  learns = learning;
  learned = 0;
  secondTimes = 1;
  logisticBegin();
  modelBegin();
  memory.fill(pairBiases, 0, 4 << PAIRS_BITS);
}

export function isLearning(): bool {
  return learns;
}

// The probability without learning, for a context of `length` >= 1 tokens.
export function plainProbability(logit: f64, length: u32): f64 {
  return squash(PLAIN_BIAS + BIAS_RISE * <f64>lengthClass(length) + PLAIN_SLOPE * logit);
}

// How often tokens in this adaptive state were accepted.
export function stateFrequency(state: u32): f64 {
  return frequencyOf(stateAt(state));
}

function pairBias(before: u32, token: u32): usize {
  const key = (before * 0x85ebca6b + token) ^ (before >> 15);
  return pairBiases + ((<usize>((key * 0x9e3779b1) >> (32 - PAIRS_BITS))) << 2);
}

function selectedBy(features: usize, selector: u32): usize {
  return vectorAt(vectorIn(features, selector));
}

// Sums the weight vectors that all candidates of a position select. Before the first of them.
export function sharedBegin(features: usize): void {
  const recent = selectedBy(features, Selector.RECENT);
  const recovered = selectedBy(features, Selector.RECOVERED);
  const before = selectedBy(features, Selector.BEFORE);
  const low = f32x4.add(v128.load(recent), v128.load(recovered));
  const high = f32x4.add(v128.load(recent, 16), v128.load(recovered, 16));
  v128.store(shared, f32x4.add(low, v128.load(before)));
  v128.store(shared, f32x4.add(high, v128.load(before, 16)), 16);
}

function inputOf(features: usize, input: u32): f32 {
  return logitOf(stateAt(stateIn(features, input)));
}

// The inputs by lane, four in a vector.
function inputsLow(features: usize): v128 {
  let x = f32x4.replace_lane(f32x4.splat(1), <u8>Input.INTERPOLATED, logitIn(features));
  x = f32x4.replace_lane(x, <u8>Input.CROSS_TWO, inputOf(features, Input.CROSS_TWO));
  return f32x4.replace_lane(x, <u8>Input.CROSS_THREE, inputOf(features, Input.CROSS_THREE));
}

function inputsHigh(features: usize): v128 {
  let x = f32x4.splat(inputOf(features, Input.RECOVERY));
  x = f32x4.replace_lane(x, <u8>(Input.ONE & 3), inputOf(features, Input.ONE));
  x = f32x4.replace_lane(x, <u8>(Input.TWO & 3), inputOf(features, Input.TWO));
  return f32x4.replace_lane(x, <u8>(Input.SKIP & 3), inputOf(features, Input.SKIP));
}

// The probability of a token behind the token `before`. The selected vectors are summed in pairs: a short chain of
// additions. Selectors are named one by one here, since a loop over them takes 5 % longer.
export function probabilityOf(features: usize, before: u32, token: u32): f64 {
  const context = selectedBy(features, Selector.CONTEXT);
  const continued = selectedBy(features, Selector.CONTINUED);
  const lastUse = selectedBy(features, Selector.LAST_USE);
  const followers = selectedBy(features, Selector.FOLLOWERS);
  const own = selectedBy(features, Selector.TOKEN);
  let low = f32x4.add(v128.load(shared), v128.load(context));
  let high = f32x4.add(v128.load(shared, 16), v128.load(context, 16));
  low = f32x4.add(low, f32x4.add(v128.load(continued), v128.load(lastUse)));
  high = f32x4.add(high, f32x4.add(v128.load(continued, 16), v128.load(lastUse, 16)));
  low = f32x4.add(low, f32x4.add(v128.load(followers), v128.load(own)));
  high = f32x4.add(high, f32x4.add(v128.load(followers, 16), v128.load(own, 16)));
  low = f32x4.mul(low, inputsLow(features));
  high = f32x4.mul(high, inputsHigh(features));
  const mix =
    f32x4.extract_lane(low, 0) +
    f32x4.extract_lane(low, 1) +
    (f32x4.extract_lane(low, 2) + f32x4.extract_lane(low, 3)) +
    (f32x4.extract_lane(high, 0) + f32x4.extract_lane(high, 1)) +
    (f32x4.extract_lane(high, 2) + f32x4.extract_lane(high, 3));
  return squash(<f64>mix + <f64>load<f32>(pairBias(before, token)));
}

// The odds, by the model as it is now, of a token whose feature vector was kept.
export function oddsNow(features: usize, before: u32, token: u32): f64 {
  sharedBegin(features);
  return oddsOf(probabilityOf(features, before, token));
}

// One step down the gradient of the log loss, for a token of these odds (oddsNow). `others` is one plus the odds of the
// candidates that it competed with: 1 if it was the only one. Returns the error of the probability.
export function mixerUpdate(
  features: usize,
  before: u32,
  token: u32,
  wasAccepted: bool,
  odds: f64,
  others: f64,
): f64 {
  const error = (wasAccepted ? 1.0 : 0.0) - odds / (others + odds);
  if (learned < LEARNED_MAX) learned += 1;
  const times: f32 = 1.0 + (FIRST_TIMES * FIRST_TOKENS) / (FIRST_TOKENS + <f32>learned);
  weightsUpdate(features, WEIGHT_RATE * times * <f32>error);
  const bias = pairBias(before, token);
  const moved = <f64>load<f32>(bias) + error * PAIR_RATE;
  store<f32>(bias, <f32>min<f64>(max<f64>(moved, -PAIR_MAX), PAIR_MAX));
  return error;
}

// As mixerUpdate, for the second best candidate of a position of a path.
export function secondUpdate(
  features: usize,
  before: u32,
  token: u32,
  wasAccepted: bool,
  odds: f64,
): void {
  const error = mixerUpdate(features, before, token, wasAccepted, odds * secondTimes, 1);
  const times = secondTimes * (1 + SECOND_RATE * error);
  secondTimes = min<f64>(max<f64>(times, 1 / SECOND_MAX), SECOND_MAX);
}

// Counts a token in the adaptive states of its inputs. After mixerUpdate, which reads them.
export function statesUpdate(features: usize, wasAccepted: bool): void {
  for (let i = INPUT_FIRST_STATE; i < INPUTS; i++) {
    const state = stateIn(features, i);
    // Feature vectors are in the output area, to which a faulty host might write.
    assert(state < <u32>State.COUNT);
    stateUpdate(stateAt(state), wasAccepted);
  }
}

function weightsUpdate(features: usize, rate: f32): void {
  const low = f32x4.mul(f32x4.splat(rate), inputsLow(features));
  const high = f32x4.mul(f32x4.splat(rate), inputsHigh(features));
  for (let s: u32 = 0; s < SELECTORS; s++) {
    const vector = vectorIn(features, s);
    assert(vector < <u32>Vector.COUNT);
    const at = vectorAt(vector);
    const times = f32x4.splat(selectorRate(s));
    v128.store(at, f32x4.add(v128.load(at), f32x4.mul(low, times)));
    v128.store(at, f32x4.add(v128.load(at, 16), f32x4.mul(high, times)), 16);
  }
}
