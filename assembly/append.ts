// Appends tokens to a sequence or a prompt: first the model learns from the sequence's last draft, then they enter the
// followers, where there are any, and the automaton.

import { SEQUENCES_MAX, STATUS_FULL, STATUS_INVALID, STATUS_OK } from "./abi";
import { feedback } from "./draft/feedback";
import { followersTake, hasFollowers } from "./followers";
import { G_DEAD, G_PROMPT, groupHandle } from "./suffix/arena";
import { canAppend, outputAppend, promptAppend, sequenceOf } from "./suffix/automaton";
import { Q_DRAFTED, Q_SECOND, Q_THIRD, Q_TOKEN } from "./suffix/record";

// The index of a prompt among the sequences of its group, for the followers' keys.
const PROMPT_INDEX: i32 = -1;

// The next token of a record is about to come: the tokens before it are those after the newest one.
function shift(record: usize): void {
  store<u32>(record, load<u32>(record, Q_SECOND), Q_THIRD);
  store<u32>(record, load<u32>(record, Q_TOKEN), Q_SECOND);
}

function follow(group: usize, index: i32, record: usize, token: u32): void {
  const second = load<u32>(record, Q_SECOND);
  const third = load<u32>(record, Q_THIRD);
  followersTake(groupHandle(group), index, load<u32>(record, Q_TOKEN), second, third, token);
}

// Output tokens of sequence number `index`. A status.
export function sequenceAppend(group: usize, index: u32, tokens: usize, count: u32): i32 {
  if (index >= <u32>SEQUENCES_MAX) return STATUS_INVALID;
  const sequence = sequenceOf(group, index);
  if (sequence == 0) return STATUS_FULL;
  for (let i: u32 = 0; i < count; i++) {
    const token = load<u32>(tokens + ((<usize>i) << 2));
    if (<i32>token < 0) return STATUS_INVALID;
    if (!canAppend(group, sequence)) return STATUS_FULL;
    const isDrafted = load<u8>(sequence, Q_DRAFTED) != 0;
    if (hasFollowers()) follow(group, index, sequence, token);
    if (isDrafted) feedback(group, index, sequence, token);
    if (isDrafted || hasFollowers()) shift(sequence);
    outputAppend(group, index, sequence, token);
  }
  return load<u32>(group, G_DEAD) == 0 ? STATUS_OK : STATUS_FULL;
}

// A piece of the group's prompt, before any of its sequences. A status.
export function promptTake(group: usize, tokens: usize, count: u32): i32 {
  if (!hasFollowers()) return promptAppend(group, tokens, count);
  const end = group + G_PROMPT;
  for (let i: u32 = 0; i < count; i++) {
    const at = tokens + ((<usize>i) << 2);
    follow(group, PROMPT_INDEX, end, load<u32>(at));
    shift(end);
    const status = promptAppend(group, at, 1);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}
