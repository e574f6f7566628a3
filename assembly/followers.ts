// The tokens that followed the same one, two or three tokens in a request's own text, in its group's and in any: a hash
// table of words that a device reads, and drafts from where it has left a request's tree (tables.ts). Tokens enter it as
// they are appended, whoever made them.
//
//   word:  token | sure << TABLE_TOKEN_BITS | check << CHECK_SHIFT; 0: nothing
//   sure   how often in turn the token came, at most SURE_MAX; other tokens lower it, and then take the place
//   check  tells a context from others of the same place
//
// The device may read while a word is written: a word is old or new, and a wrong one drafts a token that the model refuses.
// bench/lab/replay/followers.ts is the same table.

import { FOLLOWERS_BITS, TABLE_TOKEN_BITS } from "./abi";

const SURE_MAX: u32 = 3;
const TOKEN_MASK: u32 = (1 << TABLE_TOKEN_BITS) - 1;
const CHECK_SHIFT: u32 = TABLE_TOKEN_BITS + 2;
const FACTOR: u32 = 0x2c1b3c6d;
const HASH_BITS: u32 = 31;
// A context of all texts together.
const ANY: u32 = 0;

let words: usize = 0;

export function followersPlace(at: usize): void {
  words = at;
}

export function hasFollowers(): bool {
  return words != 0;
}

function mixed(hash: u32, token: u32): u32 {
  const product = ((hash ^ token) * FACTOR) & 0x7fffffff;
  return product ^ (product >> 15);
}

// Of one sequence of a group; -1: of the group's prompt.
export function followerKey(handle: u32, index: i32): u32 {
  return mixed(handle, <u32>(index + 1));
}

function raise(hash: u32, token: u32): void {
  const at = words + ((<usize>(hash >> (HASH_BITS - FOLLOWERS_BITS))) << 2);
  const word = load<u32>(at);
  const check = hash & 0xff;
  let now = token;
  if (word != 0 && word >> CHECK_SHIFT == check) {
    const sure = (word >> TABLE_TOKEN_BITS) & SURE_MAX;
    if ((word & TOKEN_MASK) == token) {
      now = token | (min<u32>(sure + 1, SURE_MAX) << TABLE_TOKEN_BITS);
    } else if (sure > 0) {
      now = (word & TOKEN_MASK) | ((sure - 1) << TABLE_TOKEN_BITS);
    }
  }
  store<u32>(at, now | (check << CHECK_SHIFT));
}

// `token` has followed `third`, `second`, `first` in sequence `index` of the group with this handle.
export function followersTake(
  handle: u32,
  index: i32,
  first: u32,
  second: u32,
  third: u32,
  token: u32,
): void {
  for (let source: i32 = 0; source < 3; source++) {
    const key = source == 0 ? followerKey(handle, index) : source == 1 ? handle : ANY;
    const one = mixed(key, first);
    const two = mixed(one, second);
    raise(one, token);
    raise(two, token);
    raise(mixed(two, third), token);
  }
}
