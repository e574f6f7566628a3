// How many tokens of a sequence's last two drafts were accepted: where a text is being copied, it will be again.

import { Q_EARLIER, Q_SINCE } from "../suffix/record";

// Accepted tokens of the last draft, 0 to 7, times four; plus about half of those of the draft before, 0 to 3.
export const RECENT_CLASSES: u32 = 32;

export function recentClass(sequence: usize): u32 {
  return (min<u32>(acceptedOf(sequence), 7) << 2) + <u32>load<u8>(sequence, Q_EARLIER);
}

// The class of the next draft, if `accepted` tokens of one that has this class are.
export function recentBehind(recent: u32, accepted: u32): u32 {
  return (min<u32>(accepted, 7) << 2) + min<u32>(((recent >> 2) + 1) >> 1, 3);
}

// All tokens since the draft but the last were accepted tokens of it.
function acceptedOf(sequence: usize): u32 {
  const since: u32 = load<u8>(sequence, Q_SINCE);
  return since == 0 ? 0 : since - 1;
}

// The sequence gets a new draft.
export function acceptanceBegin(sequence: usize): void {
  store<u8>(sequence, <u8>min<u32>((acceptedOf(sequence) + 1) >> 1, 3), Q_EARLIER);
  store<u8>(sequence, 0, Q_SINCE);
}

// The sequence has one token more.
export function acceptanceRaise(sequence: usize): void {
  const since = load<u8>(sequence, Q_SINCE);
  if (since != 255) store<u8>(sequence, since + 1, Q_SINCE);
}
