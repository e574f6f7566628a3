// Appends output tokens to a sequence: first the model learns from its last draft, then they enter the automaton.

import { SEQUENCES_MAX, STATUS_FULL, STATUS_INVALID, STATUS_OK } from "./abi";
import { feedback } from "./draft/feedback";
import { G_DEAD } from "./suffix/arena";
import { canAppend, outputAppend, sequenceOf } from "./suffix/automaton";
import { Q_DRAFTED } from "./suffix/record";

export function sequenceAppend(group: usize, index: u32, tokens: usize, count: u32): i32 {
  if (index >= <u32>SEQUENCES_MAX) return STATUS_INVALID;
  const sequence = sequenceOf(group, index);
  if (sequence == 0) return STATUS_FULL;
  for (let i: u32 = 0; i < count; i++) {
    const token = load<u32>(tokens + ((<usize>i) << 2));
    if (<i32>token < 0) return STATUS_INVALID;
    if (!canAppend(group, sequence)) return STATUS_FULL;
    if (load<u8>(sequence, Q_DRAFTED) != 0) feedback(group, index, sequence, token);
    outputAppend(group, index, sequence, token);
  }
  return load<u32>(group, G_DEAD) == 0 ? STATUS_OK : STATUS_FULL;
}
