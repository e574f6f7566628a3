// States of the suffix automaton and their edges. A state is 24 B and is named by its address:
//
//   0  len:24 | kind:8     longest string of the class; how the edges are kept
//   4  link                class of the longest suffix with more occurrences; 0 for the root
//   8  count:24 | source:8 occurrences of the class's strings; who wrote the latest one
//  12  bestToken           token of the most frequent edge, lowest id on ties; NONE without edges
//  16  bestTarget          0 without edges
//  20  ref                 the edge block from two edges on
//
// So the best edge is followed without a look at blocks. An edge block is a power of two of bytes and
// holds all edges as pairs (token, target) in any order. Kinds 2 to 8 (= the degree): an array. Kind
// 16 + log2(bytes): a hash table; its first word is the degree, free slots hold token NONE.

import { blockGiveBack, blockRoom, blockTake, G_STATES, runTake } from "./arena";

export const NONE: u32 = 0xffffffff;
export const STATE_BYTES: usize = 24;
export const SOURCES: u32 = 128;
export const PROMPT_SOURCE: u32 = 128;
export const HISTORY_SOURCE: u32 = 129;
const LEN: usize = 0;
const KIND: usize = 3;
const LINK: usize = 4;
const COUNT: usize = 8;
const BEST: usize = 12;
const TARGET: usize = 16;
const REF: usize = 20;
const LOW_24: u32 = 0xffffff;
const ARRAY_MAX: u32 = 8;
const HASHED: u32 = 16;

export function lenOf(v: usize): u32 {
  return load<u32>(v, LEN) & LOW_24;
}

export function linkOf(v: usize): usize {
  return load<u32>(v, LINK);
}

export function setLink(v: usize, link: usize): void {
  store<u32>(v, <u32>link, LINK);
}

export function countOf(v: usize): u32 {
  return load<u32>(v, COUNT) & LOW_24;
}

// Who wrote the latest occurrence: a sequence's index modulo SOURCES, PROMPT_SOURCE, or HISTORY_SOURCE. The last means that
// no sequence has written it: history may come late, and is no writer of what a sequence has written before.
export function sourceOf(v: usize): u32 {
  return load<u8>(v, COUNT + 3);
}

// One occurrence more, written by `source`; returns the count, which canAppend (automaton.ts) keeps below 2^24.
export function countRaise(v: usize, source: u32): u32 {
  const count = countOf(v) + 1;
  const isLate = source == HISTORY_SOURCE && count > 1 && sourceOf(v) < SOURCES;
  store<u32>(v, count | ((isLate ? sourceOf(v) : source) << 24), COUNT);
  return count;
}

export function kindOf(v: usize): u32 {
  return load<u8>(v, KIND);
}

export function bestToken(v: usize): u32 {
  return load<u32>(v, BEST);
}

// 0 without edges.
export function bestTarget(v: usize): usize {
  return load<u32>(v, TARGET);
}

export function degreeOf(v: usize): u32 {
  const kind = kindOf(v);
  return kind < HASHED ? kind : load<u32>(load<u32>(v, REF));
}

// Sequences take states in runs of this many, so that states made one after the other for one
// sequence lie side by side however the sequences interleave (five runs fill a chunk).
const RUN_STATES: usize = 34;

// `cursor` holds two words, the next free state of the sequence's run and the run's end.
export function stateTake(group: usize, cursor: usize, len: u32): usize {
  assert(len <= LOW_24);
  let v: usize = load<u32>(cursor);
  if (v == <usize>load<u32>(cursor, 4)) {
    v = runTake(group, RUN_STATES * STATE_BYTES);
    if (v == 0) return 0;
    store<u32>(cursor, <u32>(v + RUN_STATES * STATE_BYTES), 4);
  }
  store<u32>(cursor, <u32>(v + STATE_BYTES));
  // The link too.
  store<u64>(v, len, LEN);
  store<u64>(v, (<u64>NONE) << 32, COUNT);
  store<u32>(v, 0, TARGET);
  store<u32>(group, load<u32>(group, G_STATES) + 1, G_STATES);
  return v;
}

function slotsOf(kind: u32): u32 {
  return <u32>(blockRoom(1 << (kind - HASHED)) >> 3) - 1;
}

function arrayBytes(degree: u32): usize {
  return degree <= 2 ? 16 : degree <= 4 ? 32 : 64;
}

// kind >= 2.
function blockBytes(kind: u32): usize {
  return kind < HASHED ? arrayBytes(kind) : 1 << (kind - HASHED);
}

// Fibonacci hashing (Knuth 6.4), scaled to the number of slots by a 64-bit product.
function slotOf(token: u32, slots: u32): usize {
  return 8 + ((<usize>((<u64>(token * 0x9e3779b1) * slots) >> 32)) << 3);
}

// The address of the pair of `token`, 0 if the block has none. kind >= 2.
function pairOf(ref: usize, kind: u32, token: u32): usize {
  if (kind < HASHED) {
    const end = ref + (kind << 3);
    for (let at = ref; at < end; at += 8) if (load<u32>(at) == token) return at;
    return 0;
  }
  const slots = slotsOf(kind);
  const end = ref + 8 + (slots << 3);
  let at = ref + slotOf(token, slots);
  while (true) {
    const seen = load<u32>(at);
    if (seen == token) return at;
    if (seen == NONE) return 0;
    at += 8;
    if (at == end) at = ref + 8;
  }
}

export function edgeOf(v: usize, token: u32): usize {
  if (load<u32>(v, BEST) == token) return load<u32>(v, TARGET);
  const kind = kindOf(v);
  if (kind <= 1) return 0;
  const at = pairOf(load<u32>(v, REF), kind, token);
  return at == 0 ? 0 : load<u32>(at, 4);
}

// Replaces the edge's target if it is `from`; returns whether it was.
export function edgeRedirect(v: usize, token: u32, from: usize, to: usize): bool {
  const kind = kindOf(v);
  if (load<u32>(v, BEST) == token) {
    if (load<u32>(v, TARGET) != <u32>from) return false;
    store<u32>(v, <u32>to, TARGET);
    if (kind <= 1) return true;
  } else if (kind <= 1) {
    return false;
  }
  const at = pairOf(load<u32>(v, REF), kind, token);
  if (at == 0 || load<u32>(at, 4) != <u32>from) return false;
  store<u32>(at, <u32>to, 4);
  return true;
}

function hashedInsert(ref: usize, slots: u32, token: u32, target: u32): void {
  const end = ref + 8 + (slots << 3);
  let at = ref + slotOf(token, slots);
  while (load<u32>(at) != NONE) {
    at += 8;
    if (at == end) at = ref + 8;
  }
  store<u32>(at, token);
  store<u32>(at, target, 4);
}

// Moves the pairs [from, end) into a new hash table of `kind`; 0 if there is no room.
function hashedBuild(group: usize, kind: u32, from: usize, end: usize): usize {
  const bytes: usize = 1 << (kind - HASHED);
  const ref = blockTake(group, bytes);
  if (ref == 0) return 0;
  memory.fill(ref, 0xff, blockRoom(bytes));
  const slots = slotsOf(kind);
  for (let at = from; at < end; at += 8) {
    const token = load<u32>(at);
    if (token != NONE) hashedInsert(ref, slots, token, load<u32>(at, 4));
  }
  return ref;
}

function become(group: usize, v: usize, kind: u32, ref: usize): void {
  const old = kindOf(v);
  if (old >= 2) blockGiveBack(group, load<u32>(v, REF), blockBytes(old));
  store<u8>(v, <u8>kind, KIND);
  store<u32>(v, <u32>ref, REF);
}

// Adds an edge that is not there. Leaves the state as it was if there is no room (the group is dead then).
export function edgeAdd(group: usize, v: usize, token: u32, target: usize): void {
  const kind = kindOf(v);
  if (kind == 0) {
    store<u8>(v, 1, KIND);
    store<u32>(v, token, BEST);
    store<u32>(v, <u32>target, TARGET);
    return;
  }
  if (kind >= ARRAY_MAX) {
    hashedAdd(group, v, kind, token, target);
    return;
  }
  let block: usize = load<u32>(v, REF);
  if (kind == 1 || kind == 2 || kind == 4) {
    const wider = blockTake(group, arrayBytes(kind + 1));
    if (wider == 0) return;
    memory.copy(wider, kind == 1 ? v + BEST : block, kind << 3);
    become(group, v, kind + 1, wider);
    block = wider;
  } else {
    store<u8>(v, <u8>(kind + 1), KIND);
  }
  store<u32>(block + (kind << 3), token);
  store<u32>(block + (kind << 3), <u32>target, 4);
}

function hashedAdd(group: usize, v: usize, kind: u32, token: u32, target: usize): void {
  let table: usize = load<u32>(v, REF);
  let now = kind;
  if (kind == ARRAY_MAX) {
    now = HASHED + 7;
    table = hashedBuild(group, now, table, table + (kind << 3));
    if (table == 0) return;
    become(group, v, now, table);
    store<u32>(table, kind);
  } else {
    const slots = slotsOf(kind);
    // A load of 7/8 at most: probes stay short because growth halves it.
    const degree = load<u32>(table);
    if (degree + 1 > slots - (slots >> 3)) {
      now = kind + 1;
      table = hashedBuild(group, now, table + 8, table + 8 + (slots << 3));
      if (table == 0) return;
      become(group, v, now, table);
      store<u32>(table, degree);
    }
  }
  hashedInsert(table, slotsOf(now), token, <u32>target);
  store<u32>(table, load<u32>(table) + 1);
}

// Copies count, link and edges of `from` to the fresh state `to`.
export function stateCopy(group: usize, to: usize, from: usize): void {
  const kind = kindOf(from);
  setLink(to, linkOf(from));
  store<u32>(to, load<u32>(from, COUNT), COUNT);
  let copy: usize = 0;
  if (kind >= 2) {
    const bytes = blockBytes(kind);
    copy = blockTake(group, bytes);
    if (copy == 0) return;
    memory.copy(copy, load<u32>(from, REF), blockRoom(bytes));
  }
  store<u8>(to, <u8>kind, KIND);
  store<u64>(to, load<u64>(from, BEST), BEST);
  store<u32>(to, <u32>copy, REF);
}

// Updates the state for its edge `token`, to `target`, which now counts `count`: it becomes the best edge if
// it beats the present one, or ties with a lower token. Content alone decides, never arrival order,
// so replicas agree whatever the interleaving.
export function edgeRaised(v: usize, token: u32, target: usize, count: u32): void {
  const best = load<u32>(v, BEST);
  if (best == token) return;
  const seen = countOf(load<u32>(v, TARGET));
  if (count < seen || (count == seen && token > best)) return;
  store<u32>(v, token, BEST);
  store<u32>(v, <u32>target, TARGET);
}

// Iteration over the pairs of a state: `for (at = pairsBegin(v); at < pairsEnd(v); at += 8)`, skipping
// pairs whose token is NONE.
export function pairsBegin(v: usize): usize {
  const kind = kindOf(v);
  if (kind <= 1) return v + BEST;
  const ref: usize = load<u32>(v, REF);
  return kind < HASHED ? ref : ref + 8;
}

export function pairsEnd(v: usize): usize {
  const kind = kindOf(v);
  return pairsBegin(v) + ((kind < HASHED ? kind : slotsOf(kind)) << 3);
}
