// What a sequence itself has last written behind its last token, behind its last two, and behind the two before its
// last: a response repeats its own names, formulas and habits more than its siblings' (the run and indirect models
// of Mahoney's PAQ, for tokens). Two tables of a fixed size for all sequences of the instance, taken once with
// the first draft that learns; a context that comes takes the place of the one that was there. It knows only
// sequences that are drafted for here, and is never part of what replicas agree on.
//
// A follower (8 B): the last token that came and the one before it, if another (21 bits each), how often in turn
// the last one came (6 bits), check of the context (16 bits). The slot of a token holds its follower and when that
// came, so that it tells as well when the token was last written. The slot of a pair holds the token next after it
// and the one after that, so that what is behind the two before the last lies where the last token was looked for.

import { tableTake } from "../memory/pool";
import { NONE } from "./node";

const WORDS_BITS: u32 = 15;
const WORD_BYTES: usize = 16;
const WHEN: usize = 8;
const PAIRS_BITS: u32 = 16;
const PAIR_BYTES: usize = 16;
const AFTER_NEXT: usize = 8;
const TABLE_BYTES: usize = (WORD_BYTES << WORDS_BITS) + (PAIR_BYTES << PAIRS_BITS);

const TOKEN_BITS: u64 = 21;
const NO_TOKEN: u32 = (1 << 21) - 1;
const RUN_SHIFT: u64 = 42;
const RUN_MAX: u32 = 63;
const CHECK_SHIFT: u64 = 48;

// The contexts, in the order in which they propose.
export const AFTER_PAIR: u32 = 0;
export const AFTER_WORD: u32 = 1;
export const AFTER_SKIP: u32 = 2;
export const AFTER_CONTEXTS: u32 = 3;
// Classes of what a follower says of a token: 0 nothing; 1 to 4 it is the last one, 5 to 8 the one before it, 9 to 12
// there has been no other than the last one, which it is not, 13 to 16 it is neither; by length of the run.
export const FOLLOWER_CLASSES: u32 = 17;
// How long ago, by powers of two.
export const AGES: u32 = 8;
// Classes of when the sequence last wrote a token: 0 nothing is known; 1 never; by powers of two.
export const LAST_CLASSES: u32 = 18;

let words: usize = 0;
let pairs: usize = 0;
// The position looked at: the sequence's key, its tokens, the last token, when that was last followed, and the
// followers of its contexts; 0: never seen.
let key: u32 = 0;
let now: u32 = 0;
let last: u32 = 0;
let age: u32 = 0;
const followers: usize = memory.data(8 * 3, 16);

export function recencyBegin(): void {
  if (words != 0) memory.fill(words, 0, TABLE_BYTES);
}

// Whether there are tables; takes them if there is room.
export function recencyReady(): bool {
  if (words != 0) return true;
  words = tableTake(TABLE_BYTES);
  pairs = words + (WORD_BYTES << WORDS_BITS);
  return words != 0;
}

// Multiplicative hashing (Knuth 6.4): the top bits say where, the lowest are the check.
function hashed(hash: u32, token: u32): u32 {
  return (rotl<u32>(hash, 15) + token) * 0x9e3779b1;
}

// The key of a sequence, from the number of its group and its index.
export function recencyKey(serial: u32, index: u32): u32 {
  return hashed(hashed(serial, index), index);
}

function wordAt(hash: u32): usize {
  return words + ((<usize>(hash >> (32 - WORDS_BITS))) << 4);
}

function pairAt(hash: u32): usize {
  return pairs + ((<usize>(hash >> (32 - PAIRS_BITS))) << 4);
}

function follower(slot: usize, hash: u32): u64 {
  const found = load<u64>(slot);
  // No branch: it would be guessed wrong half the time.
  return select<u64>(found, 0, found >> CHECK_SHIFT == <u64>(hash & 0xffff));
}

// Token number `at` of the sequence with this key, after `first`, before it `second`, before it `third`.
export function recencyLearn(
  sequence: u32,
  first: u32,
  second: u32,
  third: u32,
  token: u32,
  at: u32,
): void {
  if (token >= NO_TOKEN) return;
  const hash = hashed(sequence, first);
  const word = wordAt(hash);
  raise(word, follower(word, hash), hash, token);
  store<u32>(word, at, WHEN);
  const before = hashed(hashed(sequence, second), third);
  const skip = pairAt(before);
  if (follower(skip, before) != 0) {
    raise(skip + AFTER_NEXT, load<u64>(skip, AFTER_NEXT), before, token);
  }
  const two = hashed(hash, second);
  const pair = pairAt(two);
  const found = follower(pair, two);
  if (found == 0) store<u64>(pair, 0, AFTER_NEXT);
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

function tokenOf(follower: u64): u32 {
  return <u32>follower & NO_TOKEN;
}

function earlierOf(follower: u64): u32 {
  return <u32>(follower >> TOKEN_BITS) & NO_TOKEN;
}

function runOf(follower: u64): u32 {
  return <u32>(follower >> RUN_SHIFT) & RUN_MAX;
}

// Looks at what follows `third`, `second`, `first` in the sequence, which has `tokens` tokens.
export function recencyLook(sequence: u32, first: u32, second: u32, third: u32, tokens: u32): void {
  key = sequence;
  now = tokens;
  last = first;
  const hash = hashed(sequence, first);
  const word = wordAt(hash);
  age = octaves(load<u32>(word, WHEN), AGES - 1);
  keep(AFTER_WORD, follower(word, hash));
  const pair = hashed(hash, second);
  keep(AFTER_PAIR, follower(pairAt(pair), pair));
  const before = hashed(hashed(sequence, second), third);
  const skip = pairAt(before);
  keep(AFTER_SKIP, follower(skip, before) == 0 ? 0 : load<u64>(skip, AFTER_NEXT));
}

// How long ago that was, by powers of two, at most `most`.
function octaves(when: u32, most: u32): u32 {
  return min<u32>(31 - clz<u32>(now - when + 1), most);
}

function keep(context: u32, found: u64): void {
  store<u64>(followers + ((<usize>context) << 3), found);
}

function kept(context: u32): u64 {
  return load<u64>(followers + ((<usize>context) << 3));
}

// The token that came last behind the context, or the one before it; NONE if there is none.
export function recencyToken(context: u32, isEarlier: bool): u32 {
  const found = kept(context);
  if (found == 0) return NONE;
  const token = isEarlier ? earlierOf(found) : tokenOf(found);
  return token == NO_TOKEN ? NONE : token;
}

// How often in turn the last token came behind the context, at most 4; 0: nothing is known.
export function recencyRun(context: u32): u32 {
  return min<u32>(runOf(kept(context)), 4);
}

// What the context says of the token, as one of FOLLOWER_CLASSES.
export function recencyEvidence(context: u32, token: u32): u32 {
  const found = kept(context);
  if (found == 0) return 0;
  const run = min<u32>(runOf(found), 4);
  if (tokenOf(found) == token) return run;
  const earlier = earlierOf(found);
  return (earlier == token ? 4 : earlier == NO_TOKEN ? 8 : 12) + run;
}

// How long ago the last token was followed before, as one of AGES.
export function recencyAge(): u32 {
  return age;
}

// When the sequence last wrote the token, as one of LAST_CLASSES.
export function recencyLast(token: u32): u32 {
  if (token == last) return 2;
  const hash = hashed(key, token);
  const word = wordAt(hash);
  return follower(word, hash) == 0 ? 1 : 2 + octaves(load<u32>(word, WHEN), LAST_CLASSES - 3);
}
