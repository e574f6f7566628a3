// A feature vector: all that a candidate's probability is computed from, kept until verification shows whether the token
// was accepted. The logit of its interpolated probability (f32), the adaptive state of each further input, and the
// weight vector that each selector has selected (u16 each).

import { INPUT_FIRST_STATE, INPUTS, SELECTOR_FIRST_OWN, SELECTORS } from "./model";

const F_LOGIT: usize = 0;
const F_STATES: usize = 4;
const F_SELECTED: usize = F_STATES + 2 * <usize>(INPUTS - INPUT_FIRST_STATE);
export const FEATURE_BYTES: usize = (F_SELECTED + 2 * <usize>SELECTORS + 15) & ~15;

export function featuresCopy(to: usize, from: usize): void {
  for (let at: usize = 0; at < FEATURE_BYTES; at += 16) v128.store(to + at, v128.load(from + at));
}

export function logitSet(features: usize, logit: f32): void {
  store<f32>(features, logit, F_LOGIT);
}

export function logitIn(features: usize): f32 {
  return load<f32>(features, F_LOGIT);
}

export function stateSet(features: usize, input: u32, state: u32): void {
  store<u16>(features + ((<usize>(input - INPUT_FIRST_STATE)) << 1), <u16>state, F_STATES);
}

export function stateIn(features: usize, input: u32): u32 {
  return load<u16>(features + ((<usize>(input - INPUT_FIRST_STATE)) << 1), F_STATES);
}

export function vectorSet(features: usize, selector: u32, vector: u32): void {
  store<u16>(features + ((<usize>selector) << 1), <u16>vector, F_SELECTED);
}

export function vectorIn(features: usize, selector: u32): u32 {
  return load<u16>(features + ((<usize>selector) << 1), F_SELECTED);
}

// The selectors that all candidates of a position share: at most four.
export function sharedCopy(to: usize, from: usize): void {
  assert(SELECTOR_FIRST_OWN <= 4);
  store<u64>(to, load<u64>(from, F_SELECTED), F_SELECTED);
}
