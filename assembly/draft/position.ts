// The position that is drafted: the context in which the model judges candidates. One record at a fixed address, for the
// position being drafted now; a tree keeps a copy for each of its tokens.

import { G_PROMPT } from "../suffix/arena";
import { matchState, ownEnds } from "../suffix/automaton";
import { contextState } from "../suffix/context";
import { edgeOf } from "../suffix/node";
import { Q_AGREED, Q_LEFT, Q_RECOVERY, Q_SECOND, Q_THIRD, Q_TOKEN } from "../suffix/record";
import { LENGTH_CLASSES, lengthClass } from "./classes";
import { RECENT_CLASSES, recentBehind, recentClass } from "./recent-acceptance";

@unmanaged
export class Position {
  // The match state: the class of the last tokens in the group's automaton, and how many of its occurrences have no
  // continuation.
  state: usize;
  ends: u32;
  // The three tokens before the position, the latest first.
  first: u32;
  second: u32;
  third: u32;
  // Match recovery: the state that the text the response parted from is in, 0 if none; how many tokens have agreed with
  // it since; the class of the length of the context that was left for it.
  recovery: usize;
  agreed: u32;
  left: u32;
  // The class of the sequence's recent acceptance.
  recent: u32;
}

export const POSITION_BYTES: usize = offsetof<Position>();
export const position = changetype<Position>(memory.data(offsetof<Position>(), 16));

// Where the draft of a sequence begins; 0: of one that has not begun, at the prompt's end.
export function positionBegin(group: usize, sequence: usize): void {
  const end = sequence == 0 ? group + G_PROMPT : sequence;
  position.state = matchState(group, sequence);
  position.ends = ownEnds(group, sequence);
  position.first = load<u32>(end, Q_TOKEN);
  position.second = load<u32>(end, Q_SECOND);
  position.third = load<u32>(end, Q_THIRD);
  position.recovery = load<u32>(end, Q_RECOVERY);
  position.agreed = load<u8>(end, Q_AGREED);
  position.left = load<u8>(end, Q_LEFT);
  position.recent = recentClass(end);
  assert(position.recent < RECENT_CLASSES && position.left < LENGTH_CLASSES);
}

// Advances by the token, which leads to `state`.
export function positionAdvance(token: u32, state: usize): void {
  position.state = state;
  position.ends = 0;
  position.third = position.second;
  position.second = position.first;
  position.first = token;
  if (position.recovery == 0) return;
  position.recovery = edgeOf(position.recovery, token);
  position.agreed += 1;
}

// Behind a token that was not the likeliest, where that leads to `state` (0: nowhere) from a context of `length` tokens,
// and `accepted` tokens of the draft are before it: as after the verification that would find it (feedback.ts).
export function positionPart(state: usize, length: u32, accepted: u32): void {
  position.recent = recentBehind(position.recent, accepted);
  if (state == 0 || (position.recovery != 0 && length <= position.agreed)) return;
  position.recovery = contextState(state);
  position.agreed = 0;
  position.left = lengthClass(length);
}

// A position as it is now, kept elsewhere and taken up again.
export function positionKeep(at: usize): void {
  memory.copy(at, changetype<usize>(position), offsetof<Position>());
}

export function positionTake(at: usize): void {
  memory.copy(changetype<usize>(position), at, offsetof<Position>());
}
