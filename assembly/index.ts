// What the core exports. Only numbers cross: addresses as handles, counts, statuses below zero.

import { ABI_VERSION, STATUS_FULL, STATUS_INVALID, STATUS_OK } from "./abi";
import { mixerBegin } from "./draft/mixer";
import { crossNgramsBegin } from "./draft/ngram-cross-request";
import { sequenceNgramsBegin } from "./draft/ngram-sequence";
import { heapCheck } from "./heap/check";
import * as heaps from "./heap/heap";
import { poolHasRoom, poolLimit, poolUsedBytes } from "./memory/pool";
import {
  arenaBytes,
  arenaDrop,
  G_DEAD,
  G_PROMPT,
  G_ROOT,
  G_SEQ_COUNT,
  G_STATES,
  G_TOKENS,
  groupAt,
  groupHandle,
  isGroup,
} from "./suffix/arena";
import {
  groupTake,
  historyAppend,
  matchState,
  promptAppend,
  sequenceSeen,
} from "./suffix/automaton";
import { checkedStates, checkedSum, groupCheck } from "./suffix/check";
import { contextBegin } from "./suffix/context";
import { bestToken, countOf, edgeOf, lenOf } from "./suffix/node";

export { inputReserve as input_reserve, outputReserve as output_reserve, step } from "./step";

export function abi_version(): i32 {
  return ABI_VERSION;
}

// Before the first group: bytes all groups and heaps may take, the longest context to match, and whether
// probabilities learn from verification feedback.
export function configure(limitBytes: u32, contextTokens: u32, learning: bool): void {
  poolLimit(limitBytes);
  contextBegin(contextTokens);
  mixerBegin(learning);
  crossNgramsBegin();
  sequenceNgramsBegin();
}

export function used_bytes(): u32 {
  return <u32>poolUsedBytes();
}

// A handle, or STATUS_FULL.
export function group_create(): i32 {
  if (!poolHasRoom(65536)) return STATUS_FULL;
  const group = groupTake();
  return group == 0 ? STATUS_FULL : groupHandle(group);
}

// `count` tokens of the prompt, from the beginning of the input area.
export function group_prompt(handle: i32, tokens: usize, count: i32): i32 {
  const group = groupAt(handle);
  if (!isGroup(group) || count < 0) return STATUS_INVALID;
  return promptAppend(group, tokens, count);
}

// A whole response of an earlier epoch, from the beginning of the input area; after the prompt, before
// any sequence has begun. After STATUS_FULL the group is of no use any more.
export function group_history(handle: i32, tokens: usize, count: i32): i32 {
  const group = groupAt(handle);
  if (!isGroup(group) || count < 0) return STATUS_INVALID;
  return historyAppend(group, tokens, count);
}

export function group_drop(handle: i32): i32 {
  const group = groupAt(handle);
  if (!isGroup(group)) return STATUS_INVALID;
  arenaDrop(group);
  return STATUS_OK;
}

// Writes FIGURES_WORDS words: bytes, states, tokens, sequences, dead, prompt tokens.
export function group_figures(handle: i32, to: usize): i32 {
  const group = groupAt(handle);
  if (!isGroup(group)) return STATUS_INVALID;
  store<u32>(to, <u32>arenaBytes(group));
  store<u32>(to, load<u32>(group, G_STATES), 4);
  store<u32>(to, load<u32>(group, G_TOKENS), 8);
  store<u32>(to, load<u32>(group, G_SEQ_COUNT), 12);
  store<u32>(to, load<u32>(group, G_DEAD), 16);
  store<u32>(to, lenOf(load<u32>(group, G_PROMPT)), 20);
  return STATUS_OK;
}

// 0: sound; else the number of the broken rule (suffix/check.ts). Slow, for tests.
export function group_check(handle: i32): i32 {
  const group = groupAt(handle);
  return isGroup(group) ? groupCheck(group) : STATUS_INVALID;
}

export function checked_states(): u32 {
  return checkedStates();
}

export function checked_sum(): u32 {
  return checkedSum();
}

// For tests: states as numbers. 0: none.
export function root_state(handle: i32): usize {
  return load<u32>(groupAt(handle), G_ROOT);
}

export function match_state(handle: i32, sequence: i32): usize {
  const group = groupAt(handle);
  return matchState(group, sequenceSeen(group, sequence));
}

export function state_edge(state: usize, token: i32): usize {
  return edgeOf(state, token);
}

export function state_count(state: usize): u32 {
  return countOf(state);
}

export function state_length(state: usize): u32 {
  return lenOf(state);
}

export function state_best(state: usize): i32 {
  return <i32>bestToken(state);
}

export function heap_create(): i32 {
  const heap = heaps.heapTake();
  return heap == 0 ? STATUS_FULL : heaps.heapHandle(heap);
}

export function heap_drop(heap: i32): i32 {
  const at = heaps.heapAt(heap);
  if (!heaps.isHeap(at)) return STATUS_INVALID;
  heaps.heapDrop(at);
  return STATUS_OK;
}

export function heap_push(heap: i32, id: i32, key: f64): i32 {
  return heaps.heapPush(heaps.heapAt(heap), id, key);
}

export function heap_pop(heap: i32): i32 {
  return heaps.heapPop(heaps.heapAt(heap));
}

export function heap_peek(heap: i32): i32 {
  return heaps.heapPeek(heaps.heapAt(heap));
}

export function heap_update(heap: i32, id: i32, key: f64): i32 {
  return heaps.heapUpdate(heaps.heapAt(heap), id, key);
}

export function heap_remove(heap: i32, id: i32): i32 {
  return heaps.heapRemove(heaps.heapAt(heap), id);
}

export function heap_has(heap: i32, id: i32): bool {
  return heaps.placeOf(heaps.heapAt(heap), id) != 0;
}

export function heap_key(heap: i32, id: i32): f64 {
  return heaps.heapKey(heaps.heapAt(heap), id);
}

export function heap_count(heap: i32): i32 {
  return load<i32>(heaps.heapAt(heap), heaps.H_COUNT);
}

export function heap_check(heap: i32): i32 {
  return heaps.isHeap(heaps.heapAt(heap)) ? heapCheck(heaps.heapAt(heap)) : STATUS_INVALID;
}
