// The per-sequence n-gram cache: which tokens last followed a sequence's last token, its last two, and the two before
// its last (the run and indirect models of Mahoney's PAQ, for tokens). A response repeats its own names, formulas and
// habits more than its siblings do. Two direct-mapped tables of a fixed size serve all sequences of the instance; they
// are taken once, with the first draft that learns, and a new context replaces the one in its slot. The cache knows
// only sequences that this instance drafts for, and is never part of what replicas agree on.
//
// An entry (8 B): the last follower and the one before it, if another (21 bits each), the run, which is how often in
// turn the last one came (6 bits), check of the context (16 bits). The slot of a token holds its entry and the
// position where that was written, from which the token's last use is known. The slot of a pair holds the entry of
// the token next after it and the entry of the token after that: the context that skips the last token is found in
// the cache line that was read one token before.

import { tableTake } from "../memory/pool";
import { NONE } from "../suffix/node";

const SINGLES_BITS: u32 = 15;
const SINGLE_BYTES: usize = 16;
const WRITTEN_AT: usize = 8;
const PAIRS_BITS: u32 = 16;
const PAIR_BYTES: usize = 16;
const SKIP: usize = 8;
const TABLE_BYTES: usize = (SINGLE_BYTES << SINGLES_BITS) + (PAIR_BYTES << PAIRS_BITS);

const TOKEN_BITS: u64 = 21;
const NO_TOKEN: u32 = (1 << 21) - 1;
const RUN_SHIFT: u64 = 42;
const RUN_MAX: u32 = 63;
const CHECK_SHIFT: u64 = 48;

// The contexts, in the order in which their followers are proposed.
export const CONTEXT_TWO: u32 = 0;
export const CONTEXT_ONE: u32 = 1;
export const CONTEXT_SKIP: u32 = 2;
export const SEQUENCE_CONTEXTS: u32 = 3;
// States of a candidate in a context: 0 the context is new; 1 to 4 the candidate is its last follower, 5 to 8 the one
// before it, 9 to 12 the context has had one follower, another token, 13 to 16 it has had two others; by the run.
export const FOLLOWER_STATES: u32 = 17;
// Classes of how long ago the last token was followed before, by powers of two.
export const AGES: u32 = 8;
// Classes of when the sequence last wrote a token: 0 there is no cache; 1 never; by powers of two.
export const LAST_USE_CLASSES: u32 = 18;

let singles: usize = 0;
let pairs: usize = 0;
// The position looked at: the sequence's key, its tokens, the last token, how long ago that was followed before, and
// the entries of its contexts; 0: new.
let key: u32 = 0;
let now: u32 = 0;
let last: u32 = 0;
let age: u32 = 0;
const entries: usize = memory.data(8 * 3, 16);

export function sequenceNgramsBegin(): void {
  if (singles != 0) memory.fill(singles, 0, TABLE_BYTES);
}

// Whether there are tables; takes them if there is room.
export function sequenceNgramsReady(): bool {
  if (singles != 0) return true;
  singles = tableTake(TABLE_BYTES);
  pairs = singles + (SINGLE_BYTES << SINGLES_BITS);
  return singles != 0;
}

// Multiplicative hashing (Knuth 6.4): the top bits are the slot, the lowest are the check.
function hashed(hash: u32, token: u32): u32 {
  return (rotl<u32>(hash, 15) + token) * 0x9e3779b1;
}

// The key of a sequence, from the number of its group and its index.
export function sequenceKey(serial: u32, index: u32): u32 {
  return hashed(hashed(serial, index), index);
}

function singleAt(hash: u32): usize {
  return singles + ((<usize>(hash >> (32 - SINGLES_BITS))) << 4);
}

function pairAt(hash: u32): usize {
  return pairs + ((<usize>(hash >> (32 - PAIRS_BITS))) << 4);
}

function entryOf(slot: usize, hash: u32): u64 {
  const found = load<u64>(slot);
  // No branch: it would be mispredicted half the time.
  return select<u64>(found, 0, found >> CHECK_SHIFT == <u64>(hash & 0xffff));
}

// Token number `at` of the sequence with this key; `first`, `second` and `third` precede it, `first` directly.
export function sequenceNgramsUpdate(
  sequence: u32,
  first: u32,
  second: u32,
  third: u32,
  token: u32,
  at: u32,
): void {
  if (token >= NO_TOKEN) return;
  const hash = hashed(sequence, first);
  const single = singleAt(hash);
  raise(single, entryOf(single, hash), hash, token);
  store<u32>(single, at, WRITTEN_AT);
  const before = hashed(hashed(sequence, second), third);
  const skip = pairAt(before);
  if (entryOf(skip, before) != 0) {
    raise(skip + SKIP, load<u64>(skip, SKIP), before, token);
  }
  const two = hashed(hash, second);
  const pair = pairAt(two);
  const found = entryOf(pair, two);
  if (found == 0) store<u64>(pair, 0, SKIP);
  raise(pair, found, two, token);
}

function raise(slot: usize, found: u64, hash: u32, token: u32): void {
  const last = tokenOf(found);
  let earlier = found == 0 ? NO_TOKEN : last;
  let run: u32 = 1;
  if (found != 0 && last == token) {
    earlier = earlierOf(found);
    run = min<u32>(runOf(found) + 1, RUN_MAX);
  }
  const check = (<u64>(hash & 0xffff)) << CHECK_SHIFT;
  store<u64>(slot, check | ((<u64>run) << RUN_SHIFT) | ((<u64>earlier) << TOKEN_BITS) | <u64>token);
}

function tokenOf(entry: u64): u32 {
  return <u32>entry & NO_TOKEN;
}

function earlierOf(entry: u64): u32 {
  return <u32>(entry >> TOKEN_BITS) & NO_TOKEN;
}

function runOf(entry: u64): u32 {
  return <u32>(entry >> RUN_SHIFT) & RUN_MAX;
}

// Looks the contexts up that end in `third`, `second`, `first` in the sequence, which has `tokens` tokens.
export function sequenceNgramsLook(
  sequence: u32,
  first: u32,
  second: u32,
  third: u32,
  tokens: u32,
): void {
  key = sequence;
  now = tokens;
  last = first;
  const hash = hashed(sequence, first);
  const single = singleAt(hash);
  age = octaves(load<u32>(single, WRITTEN_AT), AGES - 1);
  keep(CONTEXT_ONE, entryOf(single, hash));
  const pair = hashed(hash, second);
  keep(CONTEXT_TWO, entryOf(pairAt(pair), pair));
  const before = hashed(hashed(sequence, second), third);
  const skip = pairAt(before);
  keep(CONTEXT_SKIP, entryOf(skip, before) == 0 ? 0 : load<u64>(skip, SKIP));
}

// How long ago that was written, by powers of two, at most `most`.
function octaves(at: u32, most: u32): u32 {
  return min<u32>(31 - clz<u32>(now - at + 1), most);
}

function keep(context: u32, found: u64): void {
  store<u64>(entries + ((<usize>context) << 3), found);
}

function kept(context: u32): u64 {
  return load<u64>(entries + ((<usize>context) << 3));
}

// The context's last follower, or the one before it; NONE if there is none.
export function followerToken(context: u32, isEarlier: bool): u32 {
  const found = kept(context);
  if (found == 0) return NONE;
  const token = isEarlier ? earlierOf(found) : tokenOf(found);
  return token == NO_TOKEN ? NONE : token;
}

// The run of the context's last follower, at most 4; 0: the context is new.
export function followerRun(context: u32): u32 {
  return min<u32>(runOf(kept(context)), 4);
}

// The state of a candidate in the context, one of FOLLOWER_STATES.
export function followerState(context: u32, token: u32): u32 {
  const found = kept(context);
  if (found == 0) return 0;
  const run = min<u32>(runOf(found), 4);
  if (tokenOf(found) == token) return run;
  const earlier = earlierOf(found);
  return (earlier == token ? 4 : earlier == NO_TOKEN ? 8 : 12) + run;
}

// How long ago the last token was followed before, as one of AGES.
export function followerAge(): u32 {
  return age;
}

// When the sequence last wrote the token, as one of LAST_USE_CLASSES.
export function lastUseClass(token: u32): u32 {
  if (token == last) return 2;
  const hash = hashed(key, token);
  const single = singleAt(hash);
  return entryOf(single, hash) == 0
    ? 1
    : 2 + octaves(load<u32>(single, WRITTEN_AT), LAST_USE_CLASSES - 3);
}

// The initial guess of how often a candidate in this state is accepted.
export function followerGuess(state: u32): f64 {
  const longer = <f64>((state - 1) & 3);
  if (state <= 4) return 0.62 + 0.1 * longer;
  return (state <= 8 ? 0.66 : 0.5) + 0.03 * longer;
}
