// Adaptive states: for each class that a source of candidates computes, how often tokens of that class were accepted
// (the StateMap of Mahoney's PAQ and lpaq, as in cmix: an indirect model, in which the class and not the count itself
// is mapped to a probability). The logit of that frequency is an input of the mixer.
//
// A state is 16 B: frequency (f32), its logit (f32), tokens seen (u32). A blank state, class 0 of each family, means
// that the source has no information: its logit is 0 and it is never updated.

import { stretch } from "./logistic";

export const STATE_BYTES: usize = 16;
const LOGIT: usize = 4;
const SEEN: usize = 8;
// Maximum number of tokens in a frequency's mean, so that it can follow the policy.
const SEEN_MAX: u32 = 1000;
// The weight of the initial guess, in tokens seen.
const SEEN_FIRST: u32 = 3;

// The states of a family begin with a guess for each class but 0.
export function statesBegin(first: usize, last: usize, guess: (cls: u32) => f64): void {
  memory.fill(first, 0, STATE_BYTES);
  for (let at = first; at <= last; at += STATE_BYTES) {
    const frequency = guess(<u32>((at - first) / STATE_BYTES));
    store<f32>(at, <f32>frequency);
    if (at == first) continue;
    store<f32>(at, <f32>stretch(frequency), LOGIT);
    store<u32>(at, SEEN_FIRST, SEEN);
  }
}

export function frequencyOf(state: usize): f64 {
  return <f64>load<f32>(state);
}

export function logitOf(state: usize): f32 {
  return load<f32>(state, LOGIT);
}

export function stateUpdate(state: usize, wasAccepted: bool): void {
  const seen = load<u32>(state, SEEN);
  if (seen == 0) return;
  const frequency = load<f32>(state);
  const moved = frequency + ((wasAccepted ? 1 : 0) - frequency) / (<f32>seen + 1.5);
  store<f32>(state, moved);
  store<f32>(state, <f32>stretch(max<f64>(<f64>moved, 1e-4)), LOGIT);
  if (seen < SEEN_MAX) store<u32>(state, seen + 1, SEEN);
}
