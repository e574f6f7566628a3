// The cross-request n-gram cache: which tokens followed the last one, two and three tokens in any request of this
// instance, in whatever group. It proposes where a group's texts differ. A table of a fixed size, taken once with the
// first draft that learns; the least frequent contexts are replaced. It is updated only from sequences that are
// drafted for here, once for each token, and only where the group has no long context. It is never part of what
// replicas agree on.
//
// A slot of 16 B: three tokens of 21 bits, the most frequent first (8 B), check of the context (u16),
// occurrences of the context and of each token (u8 each, halved together when they grow). Contexts of one
// token have a table of slots. A pair of tokens has a line of the cache: its own slot and three of contexts of
// three tokens that end with it, so that a position costs one miss.

import { tableTake } from "../memory/pool";
import { NONE } from "../suffix/node";
import { countClass } from "./classes";

export const CROSS_ORDERS: u32 = 3;
// Where the group's context has this many tokens, the cache is neither read nor updated: update exclusion
// (Moffat 1990) drafts 0.1 % better on both sets and saves the table's cache misses.
export const CROSS_CONTEXT_MAX: u32 = 8;
// 2 MiB, which a core's second-level cache holds: twice as many lines draft 0.1 % better and take a tenth longer.
const LINES_BITS: u32 = 15;
const SINGLES_BITS: u32 = 13;
const LINE_BYTES: usize = 64;
const SLOT_BYTES: usize = 16;
const TABLE_BYTES: usize = (LINE_BYTES << LINES_BITS) + (SLOT_BYTES << SINGLES_BITS);
export const CROSS_TOKENS: u32 = 3;
export const CROSS_STATES: u32 = 128;
const TOKENS: usize = 3;
const TOKEN_BITS: usize = 21;
// Larger ids are not learned; no vocabulary has them.
const TOKEN_MAX: u32 = (1 << 21) - 1;
const CHECK: usize = 8;
const COUNT: usize = 10;
const COUNTS: usize = 11;
const COUNT_MAX: u8 = 255;
// A context seen more often than this is halved before it is replaced.
const KEPT: u8 = 2;
// A token with less than this part of the context's occurrences is not proposed, unless it is the first.
const TOKEN_PART: u32 = 16;

let table: usize = 0;
let singles: usize = 0;
// Slots of the position's contexts, by order - 1; 0: new.
const slots: usize = memory.data(4 * 3, 16);

export function crossNgramsBegin(): void {
  crossNgramsClear();
  if (table != 0) memory.fill(table, 0, TABLE_BYTES);
}

// Whether there is a table; takes it if there is room.
export function crossNgramsReady(): bool {
  if (table != 0) return true;
  table = tableTake(TABLE_BYTES);
  singles = table + (LINE_BYTES << LINES_BITS);
  return table != 0;
}

// The slot of a context of one token with this hash.
function singleAt(hash: u32): usize {
  return singles + ((<usize>(hash >> (32 - SINGLES_BITS))) << 4);
}

// The line of a pair with this hash: begins with the pair's own slot.
function lineAt(hash: u32): usize {
  return table + ((<usize>(hash >> (32 - LINES_BITS))) << 6);
}

// Multiplicative hashing (Knuth 6.4): the top bits are the slot, those below them the check.
function hashed(hash: u32, token: u32): u32 {
  return (rotl<u32>(hash, 15) + token) * 0x9e3779b1;
}

// `token` has followed `third`, `second`, `first`.
export function crossNgramsUpdate(first: u32, second: u32, third: u32, token: u32): void {
  if (token > TOKEN_MAX) return;
  let hash = hashed(0, first);
  raise(singleAt(hash), <u16>hash, token);
  hash = hashed(hash, second);
  const line = lineAt(hash);
  raise(line, <u16>hash, token);
  hash = hashed(hash, third);
  raise(tripleFor(line, <u16>hash), <u16>hash, token);
}

// The slot of the context of three tokens with this check, or of the least frequent one, which it replaces.
function tripleFor(line: usize, check: u16): usize {
  let least = line + SLOT_BYTES;
  for (let slot = least; slot < line + LINE_BYTES; slot += SLOT_BYTES) {
    if (load<u16>(slot, CHECK) == check) return slot;
    if (load<u8>(slot, COUNT) < load<u8>(least, COUNT)) least = slot;
  }
  return least;
}

function raise(slot: usize, check: u16, token: u32): void {
  let count = load<u8>(slot, COUNT);
  if (load<u16>(slot, CHECK) != check || count == 0) {
    if (count > KEPT) {
      halve(slot);
      return;
    }
    store<u64>(slot, token);
    store<u32>(slot, <u32>check | 0x01010000, CHECK);
    store<u16>(slot, 0, COUNTS + 1);
    return;
  }
  if (count == COUNT_MAX) {
    halve(slot);
    count = load<u8>(slot, COUNT);
  }
  store<u8>(slot, count + 1, COUNT);
  let place: usize = 0;
  while (place < TOKENS && countAt(slot, place) != 0 && tokenAt(slot, place) != token) place += 1;
  if (place == TOKENS) {
    // The least frequent token loses its place once it has lost its count.
    store<u8>(slot + TOKENS - 1, <u8>(countAt(slot, TOKENS - 1) - 1), COUNTS);
    return;
  }
  const now = countAt(slot, place) + 1;
  while (place > 0 && countAt(slot, place - 1) < now) {
    tokenSet(slot, place, tokenAt(slot, place - 1));
    store<u8>(slot + place, <u8>countAt(slot, place - 1), COUNTS);
    place -= 1;
  }
  tokenSet(slot, place, token);
  store<u8>(slot + place, <u8>now, COUNTS);
}

function tokenAt(slot: usize, place: usize): u32 {
  return <u32>(load<u64>(slot) >> (place * TOKEN_BITS)) & TOKEN_MAX;
}

function tokenSet(slot: usize, place: usize, token: u32): void {
  const shift = place * TOKEN_BITS;
  const others = load<u64>(slot) & ~((<u64>TOKEN_MAX) << shift);
  store<u64>(slot, others | ((<u64>token) << shift));
}

function countAt(slot: usize, place: usize): u32 {
  return load<u8>(slot + place, COUNTS);
}

// All four counts.
function halve(slot: usize): void {
  store<u32>(slot, (load<u32>(slot, COUNT) >> 1) & 0x7f7f7f7f, COUNT);
}

// Looks the contexts up that end in `third`, `second`, `first`.
export function crossNgramsLook(first: u32, second: u32, third: u32): void {
  if (table == 0) return;
  let hash = hashed(0, first);
  look(0, singleAt(hash), <u16>hash);
  hash = hashed(hash, second);
  const line = lineAt(hash);
  look(1, line, <u16>hash);
  hash = hashed(hash, third);
  look(2, tripleFor(line, <u16>hash), <u16>hash);
}

function look(order: usize, slot: usize, check: u16): void {
  const isSeen = load<u16>(slot, CHECK) == check && load<u8>(slot, COUNT) != 0;
  store<u32>(slots + (order << 2), isSeen ? <u32>slot : 0);
}

function slotOf(order: u32): usize {
  return load<u32>(slots + ((<usize>order) << 2));
}

// The token at `place` (0 to 2, the most frequent first) of the context of `order` + 1 tokens; NONE if it is missing
// or rare.
export function crossNgramToken(order: u32, place: u32): u32 {
  const slot = slotOf(order);
  if (slot == 0) return NONE;
  const count = countAt(slot, place);
  if (count == 0) return NONE;
  if (place != 0 && count * TOKEN_PART <= <u32>load<u8>(slot, COUNT)) return NONE;
  return tokenAt(slot, place);
}

// The relative frequency of the context's most frequent token.
export function crossNgramFrequency(order: u32): f64 {
  const slot = slotOf(order);
  return slot == 0 ? 0 : <f64>countAt(slot, 0) / <f64>load<u8>(slot, COUNT);
}

// Every context of the position is taken for new.
export function crossNgramsClear(): void {
  store<u64>(slots, 0);
  store<u32>(slots, 0, 8);
}

// The state of a candidate in the context of `order` + 1 tokens, one of CROSS_STATES: 0 the context is new; 1 to 7 the
// candidate is not one of its three tokens; else 8 + 8 r + c: c the class of its count, r the quarter octaves of the
// context's count over it, 0 if the context had no other.
export function crossNgramState(order: u32, token: u32): u32 {
  const slot = slotOf(order);
  if (slot == 0) return 0;
  const count: u32 = load<u8>(slot, COUNT);
  let own: u32 = 0;
  for (let place: usize = 0; place < TOKENS; place++) {
    if (tokenAt(slot, place) == token) {
      own = countAt(slot, place);
      break;
    }
  }
  if (own == 0) return 1 + min<u32>(6, countClass(count));
  if (own >= count) return 8 + countClass(own);
  const octaves = (reinterpret<u32>(<f32>count / <f32>own) >> 21) - (127 << 2);
  return 8 + ((1 + min<u32>(8, octaves)) << 3) + countClass(own);
}

// The initial guess of how often a candidate in this state is accepted.
export function crossNgramGuess(state: u32): f64 {
  if (state < 8) return 0.08;
  const count = <f64>(1 << (state & 7)) * 0.5 + 0.5;
  const octaves = <f64>(max<u32>((state - 8) >> 3, 1) - 1) / 4;
  return (count / (count + 1)) * Math.pow(2, -octaves);
}
