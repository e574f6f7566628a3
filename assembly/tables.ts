// Tables of continuations, from which a device drafts that is a step ahead of its host: a row for each of the engine's
// slots, in an area that the device reads while the host goes on (docs/PLUGIN.md).
//
//   area:  selected, then nothing up to TABLE_AREA_WORDS | two buffers of `slots` rows | followers (followers.ts)
//   row:   known | key | own key | matched | TABLE_NODES nodes
//   known  tokens of the request up to the tree's root; 0: there is no tree
//   key    of the request's group, and of the request, among the followers
//   matched  tokens before the root that the group has elsewhere, or the request has had before
//   node   token | (parent + 1) << TABLE_TOKEN_BITS | odds << ODDS_SHIFT; parent -1: the root; -1: no node. Parents come before
//          children, the likelier of two children of one parent comes first. Odds: of the node if its parent is right,
//          in sixteenths, rounded down.
//
// `selected` says which buffer is whole; a step writes the other one. A row that was torn all the same would give drafts
// that the model refuses, and nothing else.

import {
  DRAFT_FLAG_TABLE,
  FOLLOWERS_BITS,
  FOLLOWERS_WORDS,
  STATUS_INVALID,
  STATUS_OK,
  TABLE_AREA_WORDS,
  TABLE_HEAD_WORDS,
  TABLE_NODES,
  TABLE_PARENT_BITS,
  TABLE_ROW_WORDS,
  TABLE_STEP_WORDS,
  TABLE_TOKEN_BITS,
} from "./abi";
import { sequenceAppend } from "./append";
import { drafts, draftsBegin, wordAt } from "./draft/drafts";
import { followerKey, followersPlace } from "./followers";
import { areaTake } from "./memory/pool";
import { draftFor, inputHolds, remember } from "./step";
import { groupAt, isGroup } from "./suffix/arena";
import { matchState, sequenceSeen } from "./suffix/automaton";
import { lenOf } from "./suffix/node";

const HEAD_BYTES: usize = (<usize>TABLE_AREA_WORDS) << 2;
const ROW_BYTES: usize = (<usize>TABLE_ROW_WORDS) << 2;
const FOLLOWERS_BYTES: usize = (<usize>FOLLOWERS_WORDS) << 2;
const ODDS_SHIFT: u32 = TABLE_TOKEN_BITS + TABLE_PARENT_BITS;
const ODDS_MAX: u32 = 15;
const SLOTS_MAX: i32 = 1 << 16;
// A record of a step: group, sequence, count of tokens, slot, known, longest path (0: no table; below: it stays as it is).
const COUNT: usize = 8;
const SLOT: usize = 12;
const KNOWN: usize = 16;
const PATH: usize = 20;
const RECORD_BYTES: usize = (<usize>TABLE_STEP_WORDS) << 2;

let area: usize = 0;
let slots: i32 = 0;

// Takes the area for `count` slots, of zeros, once and before the first group; its address, 0 if there is no room. From
// then on every token that is appended is among the followers.
export function tablesReserve(count: i32): usize {
  assert(area == 0 && count > 0 && count <= SLOTS_MAX);
  assert(
    TABLE_HEAD_WORDS + TABLE_NODES == TABLE_ROW_WORDS && 1 << FOLLOWERS_BITS == FOLLOWERS_WORDS,
  );
  const rows = 2 * <usize>count * ROW_BYTES;
  area = areaTake(HEAD_BYTES + rows + FOLLOWERS_BYTES);
  if (area == 0) return 0;
  slots = count;
  followersPlace(area + HEAD_BYTES + rows);
  return area;
}

function bufferAt(index: i32): usize {
  return area + HEAD_BYTES + <usize>index * <usize>slots * ROW_BYTES;
}

function odds(index: i32, from: i32): u32 {
  const parent = load<i32>(wordAt(drafts.parents, from + index));
  const before: f32 = parent < 0 ? 1 : load<f32>(wordAt(drafts.probabilities, from + parent));
  const part =
    (<f32>16 * load<f32>(wordAt(drafts.probabilities, from + index))) / max<f32>(before, <f32>1e-9);
  return min<u32>(<u32>part, ODDS_MAX);
}

// Draft number `index` of the step, of which `count` tokens begin at `from`, as the row at `row`.
function rowWrite(row: usize, record: usize, from: i32, count: i32): void {
  const group = load<u32>(record);
  store<u32>(row, group, 4);
  store<u32>(row, followerKey(group, load<i32>(record, 4)), 8);
  if (count > 0) {
    const sequence = sequenceSeen(groupAt(group), load<i32>(record, 4));
    store<u32>(row, lenOf(matchState(groupAt(group), sequence)), 12);
  }
  const nodes = row + ((<usize>TABLE_HEAD_WORDS) << 2);
  for (let i: i32 = 0; i < count; i++) {
    const parent = <u32>(load<i32>(wordAt(drafts.parents, from + i)) + 1);
    const word =
      load<u32>(wordAt(drafts.tokens, from + i)) |
      (parent << TABLE_TOKEN_BITS) |
      (odds(i, from) << ODDS_SHIFT);
    store<u32>(wordAt(nodes, i), word);
  }
  memory.fill(wordAt(nodes, count), 0xff, (<usize>(<i32>TABLE_NODES - count)) << 2);
  store<i32>(row, load<i32>(record, KNOWN));
}

// A step: of each of `records` requests its new tokens are appended, `width` words in a row behind all records, of which
// `count` belong to it; then all get new tables, and the device sees them. Where an append fails, the record's count
// is replaced by the status, and there is no table.
// Returns how many appends failed, or STATUS_INVALID if a reserve is missing or too small.
export function tableStep(records: i32, width: i32): i32 {
  const bytes = <usize>records * (RECORD_BYTES + ((<usize>width) << 2));
  const begin = inputHolds(bytes, records);
  if (area == 0 || begin == 0) return STATUS_INVALID;
  let failed: i32 = 0;
  let tokens = begin + <usize>records * RECORD_BYTES;
  for (let i: i32 = 0; i < records; i++) {
    const record = begin + <usize>i * RECORD_BYTES;
    const group = groupAt(load<u32>(record));
    const count = load<u32>(record, COUNT);
    assert(count <= <u32>width);
    let status = isGroup(group) ? STATUS_OK : STATUS_INVALID;
    if (status == STATUS_OK && count > 0)
      status = sequenceAppend(group, load<u32>(record, 4), tokens, count);
    if (status != STATUS_OK) {
      failed += 1;
      store<i32>(record, status, COUNT);
      store<i32>(record, 0, PATH);
    }
    tokens += (<usize>width) << 2;
  }
  const selected = load<i32>(area);
  const buffer = bufferAt(1 - selected);
  // Those of requests that are not in this step stay as they are.
  memory.copy(buffer, bufferAt(selected), <usize>slots * ROW_BYTES);
  draftsBegin();
  let at: i32 = 0;
  for (let i: i32 = 0; i < records; i++) {
    const record = begin + <usize>i * RECORD_BYTES;
    const slot = load<i32>(record, SLOT);
    assert(slot >= 0 && slot < slots);
    const row = buffer + <usize>slot * ROW_BYTES;
    const path = load<i32>(record, PATH);
    if (path == 0) store<i32>(row, 0);
    if (path <= 0) continue;
    const count = draftFor(record, i, at, path, DRAFT_FLAG_TABLE, 0, records);
    remember(record, i, at, at + count, DRAFT_FLAG_TABLE);
    rowWrite(row, record, at, count);
    at += count;
  }
  store<i32>(area, 1 - selected);
  return failed;
}
