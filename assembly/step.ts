// The batched call of one engine step: append records, then draft records, both read from the input
// area; statuses and drafts go to the output area. All appends come first, so that drafts see every
// sibling's newest tokens and do not depend on the order of records.

import {
  APPEND_HEADER_WORDS,
  DRAFT_FLAG_TABLE,
  DRAFT_FLAG_TREE,
  DRAFT_WORDS,
  STATUS_INVALID,
  STATUS_OK,
} from "./abi";
import { sequenceAppend } from "./append";
import { budgetCut } from "./budget";
import { draftBegin, draftPlace } from "./draft/draft";
import {
  drafts,
  draftsBegin,
  draftsBytes,
  draftsPlace,
  headAt,
  headCandidates,
  headClear,
  wordAt,
} from "./draft/drafts";
import { draftRemember } from "./draft/feedback";
import { draftPath } from "./draft/path";
import { positionBegin } from "./draft/position";
import { draftTable } from "./draft/table";
import { draftTree } from "./draft/tree";
import { largeGiveBack, largeTake } from "./memory/pool";
import { G_DEAD, groupAt, isGroup } from "./suffix/arena";
import { sequenceSeen } from "./suffix/automaton";

// A draft record's words.
const RECORD_BYTES: usize = (<usize>DRAFT_WORDS) << 2;
const TOKENS_MAX: usize = 8;
const FLAGS: usize = 12;
const PROBABILITY_MIN: usize = 16;
const WEIGHT: usize = 20;
// Beyond these an area's bytes would not fit in 32 bits.
const WORDS_MAX: i32 = 1 << 28;
const DRAFTS_MAX: i32 = 1 << 18;
let input: usize = 0;
let inputBytes: usize = 0;
let output: usize = 0;
let outputBytes: usize = 0;
let outputDrafts: i32 = 0;

function area(at: usize, held: usize, bytes: usize): usize {
  if (held != 0) largeGiveBack(at, held);
  return largeTake(bytes);
}

// Makes the input area hold `words` words; returns its address, 0 if there is no room. What it held is lost.
export function inputReserve(words: i32): usize {
  assert(words >= 0);
  if (words > WORDS_MAX) return 0;
  const bytes = (<usize>words) << 2;
  if (bytes > inputBytes) {
    input = area(input, inputBytes, bytes);
    inputBytes = input == 0 ? 0 : bytes;
  }
  return input;
}

// Makes the output area hold `count` drafts: how many appends failed, starts (count + 1 words), then tokens, parents and
// probabilities, each with room for TREE_TOKENS_MAX words for each draft; what follows is for the core alone
// (draft/drafts.ts). Returns its address, 0 if there is no room. Earlier drafts are lost.
export function outputReserve(count: i32): usize {
  assert(count >= 0);
  if (count > DRAFTS_MAX) return 0;
  const bytes = draftsBytes(count);
  if (bytes > outputBytes) {
    output = area(output, outputBytes, bytes);
    outputBytes = output == 0 ? 0 : bytes;
  }
  outputDrafts = count;
  draftsPlace(output, count);
  draftsBegin();
  return output;
}

// Appends of `records` records; each record's group word is replaced by its status. Returns the
// address after them.
function appends(records: i32): usize {
  const end = input + inputBytes;
  let at = input;
  let failed: i32 = 0;
  for (let i: i32 = 0; i < records; i++) {
    const tokens = at + ((<usize>APPEND_HEADER_WORDS) << 2);
    const group = groupAt(load<u32>(at));
    const count = load<u32>(at, 8);
    assert(tokens <= end && <usize>count <= (end - tokens) >> 2);
    let status = STATUS_INVALID;
    if (isGroup(group)) status = sequenceAppend(group, load<u32>(at, 4), tokens, count);
    if (status != STATUS_OK) failed += 1;
    store<i32>(at, status);
    at = tokens + ((<usize>count) << 2);
  }
  store<i32>(output, failed);
  return at;
}

function isDrafted(group: usize): bool {
  return isGroup(group) && load<u32>(group, G_DEAD) == 0;
}

// The address of the input area if it has `bytes`, and the output area room for `count` drafts; else 0.
export function inputHolds(bytes: usize, count: i32): usize {
  return bytes <= inputBytes && count >= 0 && count <= outputDrafts ? input : 0;
}

// Draft number `i` of the step, behind the `at` tokens that it has drafted before; how many. The record begins with the
// words group and sequence; `drafts`: of the step.
export function draftFor(
  record: usize,
  i: i32,
  at: i32,
  tokensMax: i32,
  flags: i32,
  probabilityMin: f64,
  drafts: i32,
): i32 {
  headClear(headAt(i), flags == DRAFT_FLAG_TREE);
  const group = groupAt(load<u32>(record));
  if (!isDrafted(group) || tokensMax <= 0) return 0;
  const index = load<u32>(record, 4);
  const sequence = sequenceSeen(group, index);
  draftBegin(group, index, sequence, tokensMax, probabilityMin, flags == DRAFT_FLAG_TREE);
  draftPlace(i, at);
  positionBegin(group, sequence);
  if (flags == DRAFT_FLAG_TABLE) return draftTable(drafts);
  return flags == DRAFT_FLAG_TREE ? draftTree() : draftPath();
}

// Remembers draft number `i` of the step, tokens [at, end), for the verification feedback on it: of a table, the places
// that were judged.
export function remember(record: usize, i: i32, at: i32, end: i32, flags: i32): void {
  const group = groupAt(load<u32>(record));
  if (!isDrafted(group)) return;
  const count =
    flags == DRAFT_FLAG_TABLE ? min<i32>(end - at, headCandidates(headAt(i))) : end - at;
  draftRemember(sequenceSeen(group, load<u32>(record, 4)), i, at, count);
}

// Returns the number of draft tokens, at most `budget` for all records together, or STATUS_INVALID if a
// reserve is missing or too small.
export function step(appendRecords: i32, draftRecords: i32, budget: i32): i32 {
  if (input == 0 || output == 0 || draftRecords > outputDrafts) return STATUS_INVALID;
  assert(appendRecords >= 0 && draftRecords >= 0);
  const records = appends(appendRecords);
  assert(records + <usize>draftRecords * RECORD_BYTES <= input + inputBytes);
  let count: i32 = 0;
  if (draftRecords > 0) draftsBegin();
  for (let i: i32 = 0; i < draftRecords; i++) {
    store<i32>(wordAt(drafts.starts, i), count);
    const record = records + <usize>i * RECORD_BYTES;
    const least = load<f32>(record, PROBABILITY_MIN);
    count += draftFor(
      record,
      i,
      count,
      load<i32>(record, TOKENS_MAX),
      load<i32>(record, FLAGS),
      least,
      draftRecords,
    );
  }
  store<i32>(wordAt(drafts.starts, draftRecords), count);
  count = budgetCut(draftRecords, records + WEIGHT, RECORD_BYTES, budget);
  for (let i: i32 = 0; i < draftRecords; i++) {
    const record = records + <usize>i * RECORD_BYTES;
    const at = load<i32>(wordAt(drafts.starts, i));
    remember(record, i, at, load<i32>(wordAt(drafts.starts, i + 1)), load<i32>(record, FLAGS));
  }
  return count;
}
