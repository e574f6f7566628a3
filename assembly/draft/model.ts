// The model of drafts as a table: the mixer's inputs, the adaptive states behind them, and the weight vectors of which
// a candidate selects one of each family. A family begins where the one before it ends, at compile time. A new input
// or selector is a line in each of its tables, one in candidate.ts, which computes its class, and one in mixer.ts.

import { STATE_BYTES, statesBegin } from "./adaptive-state";
import { LENGTH_CLASSES } from "./classes";
import { RECOVERED_CLASSES, RECOVERY_STATES, recoveryGuess } from "./match-recovery";
import { CROSS_STATES, crossNgramGuess } from "./ngram-cross-request";
import { AGES, FOLLOWER_STATES, followerGuess, LAST_USE_CLASSES } from "./ngram-sequence";
import { RECENT_CLASSES } from "./recent-acceptance";

// Inputs, each a lane of every weight vector: 1, the logit of the interpolated probability, then the logits of adaptive
// states. They fill vectors of four lanes.
export const enum Input {
  BIAS,
  INTERPOLATED,
  CROSS_TWO,
  CROSS_THREE,
  RECOVERY,
  ONE,
  TWO,
  SKIP,
  COUNT,
}
export const INPUTS: u32 = Input.COUNT;
export const INPUT_FIRST_STATE: u32 = Input.CROSS_TWO;

// The weights begin near where they ended on two sets of responses, alike on both; the bias with a rise for each class of
// the context's length.
const BIAS: f64 = -0.4;
export const BIAS_RISE: f64 = 0.053;
const inputWeights: usize = memory.data<f32>([0, 0.5, 0.25, 0.3, 0.7, 0.24, 0.26, 0.2]);

// Families of adaptive states, for the inputs of the same names: of the cross-request n-gram cache's contexts of two and
// three tokens, of match recovery, and of the per-sequence n-gram cache's contexts of one token (each state by how long
// ago that was followed before), of two, and of the two before the last.
// biome-ignore format: one family a line
export const enum State {
  CROSS_TWO, CROSS_TWO_LAST = CROSS_TWO + CROSS_STATES - 1,
  CROSS_THREE, CROSS_THREE_LAST = CROSS_THREE + CROSS_STATES - 1,
  RECOVERY, RECOVERY_LAST = RECOVERY + RECOVERY_STATES - 1,
  ONE, ONE_LAST = ONE + FOLLOWER_STATES * AGES - 1,
  TWO, TWO_LAST = TWO + FOLLOWER_STATES - 1,
  SKIP, SKIP_LAST = SKIP + FOLLOWER_STATES - 1,
  COUNT,
}

// Selectors: those that all candidates of a position share, then the candidate's own.
export const enum Selector {
  RECENT,
  RECOVERED,
  BEFORE,
  CONTEXT,
  CONTINUED,
  LAST_USE,
  FOLLOWERS,
  TOKEN,
  COUNT,
}
export const SELECTORS: u32 = Selector.COUNT;
export const SELECTOR_FIRST_OWN: u32 = Selector.CONTEXT;

// How far each selector's vectors move. That of a single token is selected seldom, and moves further each time.
const selectorRates: usize = memory.data<f32>([1, 1, 3, 1, 1, 1, 1, 3]);

// Families of weight vectors, by the selectors of the same names: the class of recent acceptance; that of match
// recovery; the token before (hashed); length and writer of the context, and whether the token is its likeliest; how
// often the longest context that has the token was continued; when the sequence last wrote the token, and whether it
// is likeliest; its states in the followers of two and of one token; the token (hashed).
export const CONTEXT_KINDS: u32 = 6;
export const CONTINUED_CLASSES: u32 = 16;
export const TOKEN_VECTORS_BITS: u32 = 11;
// biome-ignore format: one family a line
export const enum Vector {
  RECENT, RECENT_LAST = RECENT + RECENT_CLASSES - 1,
  RECOVERED, RECOVERED_LAST = RECOVERED + RECOVERED_CLASSES - 1,
  BEFORE, BEFORE_LAST = BEFORE + (1 << TOKEN_VECTORS_BITS) - 1,
  CONTEXT, CONTEXT_LAST = CONTEXT + LENGTH_CLASSES * CONTEXT_KINDS - 1,
  CONTINUED, CONTINUED_LAST = CONTINUED + CONTINUED_CLASSES - 1,
  LAST_USE, LAST_USE_LAST = LAST_USE + 2 * LAST_USE_CLASSES - 1,
  FOLLOWERS, FOLLOWERS_LAST = FOLLOWERS + FOLLOWER_STATES * FOLLOWER_STATES - 1,
  TOKEN, TOKEN_LAST = TOKEN + (1 << TOKEN_VECTORS_BITS) - 1,
  COUNT,
}
export const VECTOR_BYTES: usize = (<usize>INPUTS) << 2;

const states: usize = memory.data(State.COUNT * <i32>STATE_BYTES, 16);
const vectors: usize = memory.data(Vector.COUNT * <i32>VECTOR_BYTES, 16);

export function stateAt(state: u32): usize {
  return states + <usize>state * STATE_BYTES;
}

export function vectorAt(vector: u32): usize {
  return vectors + <usize>vector * VECTOR_BYTES;
}

export function selectorRate(selector: u32): f32 {
  return load<f32>(selectorRates + ((<usize>selector) << 2));
}

function followerOneGuess(cls: u32): f64 {
  return followerGuess(cls / AGES);
}

export function modelBegin(): void {
  // A feature vector names both in 16 bits.
  assert(State.COUNT <= 65536 && Vector.COUNT <= 65536);
  statesBegin(stateAt(State.CROSS_TWO), stateAt(State.CROSS_TWO_LAST), crossNgramGuess);
  statesBegin(stateAt(State.CROSS_THREE), stateAt(State.CROSS_THREE_LAST), crossNgramGuess);
  statesBegin(stateAt(State.RECOVERY), stateAt(State.RECOVERY_LAST), recoveryGuess);
  statesBegin(stateAt(State.ONE), stateAt(State.ONE_LAST), followerOneGuess);
  statesBegin(stateAt(State.TWO), stateAt(State.TWO_LAST), followerGuess);
  statesBegin(stateAt(State.SKIP), stateAt(State.SKIP_LAST), followerGuess);
  // One vector of the sum begins with the weights, the others with zeros.
  memory.fill(vectors, 0, <usize>Vector.COUNT * VECTOR_BYTES);
  for (let i: u32 = 0; i < LENGTH_CLASSES * CONTEXT_KINDS; i++) {
    const vector = vectorAt(Vector.CONTEXT + i);
    memory.copy(vector, inputWeights, VECTOR_BYTES);
    store<f32>(vector, <f32>(BIAS + BIAS_RISE * <f64>(i / CONTEXT_KINDS)));
  }
}
