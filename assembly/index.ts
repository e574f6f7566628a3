// What the core exports. Only numbers cross: addresses as handles, counts, statuses below zero. An invalid
// handle returns a status where a host may pass one (its group was dropped) and fails an assertion elsewhere; behind
// these functions nothing is checked.

import {
  ABI_VERSION,
  FIGURES_WORDS,
  GROUP_TOKENS_MAX,
  STATUS_FULL,
  STATUS_INVALID,
  STATUS_OK,
} from "./abi";
import { promptTake } from "./append";
import { mixerBegin } from "./draft/mixer";
import { crossNgramsBegin } from "./draft/ngram-cross-request";
import { sequenceNgramsBegin } from "./draft/ngram-sequence";
import { heapCheck } from "./heap/check";
import * as heaps from "./heap/heap";
import { arePoolWords, poolHasRoom, poolLimit, poolUsedBytes } from "./memory/pool";
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
import { groupTake, historyAppend, matchState, sequenceSeen } from "./suffix/automaton";
import { groupCheck } from "./suffix/check";
import { contextBegin } from "./suffix/context";
import { bestToken, countOf, edgeOf, lenOf, STATE_BYTES } from "./suffix/node";

const STATE_WORDS: u32 = <u32>STATE_BYTES >> 2;

export { inputReserve as input_reserve, outputReserve as output_reserve, step } from "./step";
export { tableStep as table_step, tablesReserve as tables_reserve } from "./tables";

export function abi_version(): i32 {
  return ABI_VERSION;
}

// Before the first group: bytes all groups and heaps may take, the longest context to match, and whether
// probabilities learn from verification feedback.
export function configure(limitBytes: u32, contextTokens: u32, learning: bool): void {
  assert(contextTokens >= 1 && contextTokens <= <u32>GROUP_TOKENS_MAX);
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
  assert(arePoolWords(tokens, count));
  return promptTake(group, tokens, count);
}

// Tokens of a response of an earlier epoch, after its first `offset`, from the beginning of the input area; after the
// prompt. 0 begins another response; pieces of two responses do not mix. After STATUS_FULL the group is of no use any more.
export function group_history(handle: i32, tokens: usize, count: i32, offset: i32): i32 {
  const group = groupAt(handle);
  if (!isGroup(group) || count < 0 || offset < 0) return STATUS_INVALID;
  assert(arePoolWords(tokens, count));
  return historyAppend(group, tokens, count, offset);
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
  assert(arePoolWords(to, FIGURES_WORDS));
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

function groupOf(handle: i32): usize {
  const group = groupAt(handle);
  assert(isGroup(group));
  return group;
}

function stateOf(state: usize): usize {
  assert(arePoolWords(state, STATE_WORDS));
  return state;
}

// For tests: states as numbers. 0: none.
export function root_state(handle: i32): usize {
  return load<u32>(groupOf(handle), G_ROOT);
}

export function match_state(handle: i32, sequence: i32): usize {
  const group = groupOf(handle);
  return matchState(group, sequenceSeen(group, sequence));
}

export function state_edge(state: usize, token: i32): usize {
  return edgeOf(stateOf(state), token);
}

export function state_count(state: usize): u32 {
  return countOf(stateOf(state));
}

export function state_best(state: usize): i32 {
  return <i32>bestToken(stateOf(state));
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

function heapOf(handle: i32): usize {
  const heap = heaps.heapAt(handle);
  assert(heaps.isHeap(heap));
  return heap;
}

export function heap_push(heap: i32, id: i32, key: f64): i32 {
  assert(key == key);
  return heaps.heapPush(heapOf(heap), id, key);
}

export function heap_pop(heap: i32): i32 {
  return heaps.heapPop(heapOf(heap));
}

export function heap_peek(heap: i32): i32 {
  return heaps.heapPeek(heapOf(heap));
}

export function heap_update(heap: i32, id: i32, key: f64): i32 {
  assert(key == key);
  return heaps.heapUpdate(heapOf(heap), id, key);
}

export function heap_remove(heap: i32, id: i32): i32 {
  return heaps.heapRemove(heapOf(heap), id);
}

export function heap_has(heap: i32, id: i32): bool {
  return heaps.placeOf(heapOf(heap), id) != 0;
}

export function heap_key(heap: i32, id: i32): f64 {
  return heaps.heapKey(heapOf(heap), id);
}

export function heap_count(heap: i32): i32 {
  return load<i32>(heapOf(heap), heaps.H_COUNT);
}

export function heap_check(heap: i32): i32 {
  return heapCheck(heapOf(heap));
}
