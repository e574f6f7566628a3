// Match recovery (as the match model of lpaq and paq8 recovers after a mismatch): a verification step ends with a token
// that the draft did not have, so contexts are shortest when the next draft begins. The state from which the draft
// would have continued is kept with the sequence, advances with its tokens, and proposes the next token of that text.

import { contextState } from "../suffix/context";
import { bestToken, countOf, degreeOf, edgeOf } from "../suffix/node";
import { Q_AGREED, Q_LEFT, Q_RECOVERY } from "../suffix/record";
import { countClass, lengthClass } from "./classes";
import { position } from "./position";

// Tokens that have agreed with the recovery, in its state and in the sequence's record.
const AGREED_STATES: u32 = 5;
const AGREED_MAX: u32 = 255;
// Adaptive states of a candidate: 0 there is no recovery; from 1 on it continues the recovery, from OTHER on it does not.
export const RECOVERY_STATES: u32 = 512;
const OTHER: u32 = 300;
// Weight vectors: none; length of the context that was left, and whether a token has agreed.
export const RECOVERED_CLASSES: u32 = 16;

export function recoveryGuess(cls: u32): f64 {
  if (cls >= OTHER) return 0.1;
  return (((cls - 1) >> 4) & 1) != 0 ? 0.4 : 0.15;
}

export function recoveredClass(): u32 {
  if (position.recovery == 0) return 0;
  return 1 + position.left + (position.agreed > 0 ? 8 : 0);
}

// The candidate's state: how many tokens have agreed, and whether and how often the recovered text continues with it.
export function recoveryState(token: u32): u32 {
  const recovery = position.recovery;
  if (recovery == 0 || degreeOf(recovery) == 0) return 0;
  const agreed = min<u32>(position.agreed, AGREED_STATES);
  const total = countOf(recovery);
  const target = edgeOf(recovery, token);
  if (target == 0) return OTHER + (agreed << 2) + fewer(total);
  const count = countOf(target);
  const isBest: u32 = bestToken(recovery) == token ? 1 : 0;
  // The prompt's end counts once for each response, so more often than what precedes it.
  const rest: u32 = count > total ? 3 : min<u32>(countClass(total - count), 3);
  return 1 + ((((agreed << 1) + isBest) << 2) + fewer(count)) * 4 + rest;
}

// 1, 2, 3 and more, from 0 on.
function fewer(count: u32): u32 {
  return min<u32>(max<u32>(count, 1), 4) - 1;
}

// The sequence continues with the token.
export function recoveryFollow(sequence: usize, token: u32): void {
  const recovery: usize = load<u32>(sequence, Q_RECOVERY);
  if (recovery == 0) return;
  const next = edgeOf(recovery, token);
  store<u32>(sequence, next == 0 ? 0 : <u32>contextState(next), Q_RECOVERY);
  const agreed: u32 = load<u8>(sequence, Q_AGREED);
  if (agreed < AGREED_MAX) store<u8>(sequence, <u8>(agreed + 1), Q_AGREED);
}

// The sequence differs from a draft that would have continued to `state`, from a context of `length` tokens: that state
// is recovered, unless an earlier recovery has already agreed for as long.
export function recoveryBegin(sequence: usize, state: usize, length: u32): void {
  if (load<u32>(sequence, Q_RECOVERY) != 0 && length <= load<u8>(sequence, Q_AGREED)) return;
  store<u32>(sequence, <u32>contextState(state), Q_RECOVERY);
  store<u8>(sequence, 0, Q_AGREED);
  store<u8>(sequence, <u8>lengthClass(length), Q_LEFT);
}
