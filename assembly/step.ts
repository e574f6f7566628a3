// The batched call of one engine step: append records, then draft records, both read from the input
// area; statuses and drafts go to the output area. All appends come first, so that drafts see every
// sibling's newest tokens and do not depend on the order of records.

import {
  APPEND_HEADER_WORDS,
  DRAFT_FLAG_TREE,
  DRAFT_TOKENS_MAX,
  DRAFT_WORDS,
  STATUS_INVALID,
  STATUS_OK,
} from "./abi";
import { budgetCut } from "./budget";
import { draftKeep, draftsBegin, recentOf } from "./draft/feedback";
import { FEATURE_BYTES } from "./draft/mixer";
import { sequenceKey } from "./draft/ngram-sequence";
import {
  draftAfter,
  draftInto,
  draftOf,
  draftPath,
  draftRecovers,
  draftTree,
  HEAD_BYTES,
  headClear,
  PROBABILITY_FLOOR,
} from "./draft/propose";
import { largeGiveBack, largeTake } from "./memory/pool";
import { G_DEAD, G_PROMPT, G_SERIAL, groupAt, isGroup } from "./suffix/arena";
import { matchState, ownEnds, sequenceAppend, sequenceSeen } from "./suffix/automaton";
import { lenOf, SOURCES } from "./suffix/node";
import { Q_AGREED, Q_LAST, Q_LEFT, Q_RECOVERY, Q_SECOND, Q_THIRD, Q_TOKEN } from "./suffix/record";

const RECORD_BYTES: usize = (<usize>DRAFT_WORDS) << 2;
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
  const bytes = (<usize>words) << 2;
  if (bytes > inputBytes) {
    input = area(input, inputBytes, bytes);
    inputBytes = input == 0 ? 0 : bytes;
  }
  return input;
}

// The output area: how many appends failed, starts (drafts + 1 words), then tokens, parents and
// probabilities, each with room for DRAFT_TOKENS_MAX words for each of the `drafts` reserved; then, for the
// core alone, as many feature vectors (draft/mixer.ts) and a head (draft/propose.ts) for each draft. Returns
// its address, 0 if there is no room.
export function outputReserve(drafts: i32): usize {
  const perDraft = (FEATURE_BYTES + 12) * <usize>DRAFT_TOKENS_MAX + HEAD_BYTES + 4;
  const bytes = <usize>drafts * perDraft + 16;
  if (bytes > outputBytes) {
    output = area(output, outputBytes, bytes);
    outputBytes = output == 0 ? 0 : bytes;
  }
  outputDrafts = drafts;
  draftsBegin(0, 0, 0, 0);
  return output;
}

// Appends of `records` records; each record's group word is replaced by its status. Returns the
// address after them.
function appends(records: i32): usize {
  let at = input;
  let failed: i32 = 0;
  for (let i: i32 = 0; i < records; i++) {
    const group = groupAt(load<u32>(at));
    const count = load<u32>(at, 8);
    const tokens = at + ((<usize>APPEND_HEADER_WORDS) << 2);
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

// Drafts for one record, to `tokens`, `reasons` and `head`; how many.
function draft(record: usize, tokens: usize, room: usize, features: usize, head: usize): i32 {
  headClear(head);
  const group = groupAt(load<u32>(record));
  if (!isDrafted(group)) return 0;
  const sequence = sequenceSeen(group, load<u32>(record, 4));
  const tokensMax = min<i32>(load<i32>(record, 8), DRAFT_TOKENS_MAX);
  if (tokensMax <= 0) return 0;
  const pMin = max<f64>(<f64>load<f32>(record, 16), PROBABILITY_FLOOR);
  const match = matchState(group, sequence);
  const ends = ownEnds(group, sequence);
  const end = sequence == 0 ? group + G_PROMPT : sequence;
  draftInto(tokens, room, features, head, load<u32>(record, 4) % SOURCES);
  draftAfter(load<u32>(end, Q_TOKEN), load<u32>(end, Q_SECOND), load<u32>(end, Q_THIRD));
  draftOf(
    sequenceKey(load<u32>(group, G_SERIAL), load<u32>(record, 4)),
    lenOf(load<u32>(end, Q_LAST)),
  );
  draftRecovers(
    load<u32>(end, Q_RECOVERY),
    load<u8>(end, Q_AGREED),
    load<u8>(end, Q_LEFT),
    recentOf(end),
  );
  if ((load<i32>(record, 12) & DRAFT_FLAG_TREE) != 0)
    return draftTree(match, ends, tokensMax, pMin);
  return draftPath(match, ends, tokensMax, pMin);
}

// Remembers each record's draft, so that its fate can be learnt from.
function keep(records: usize, count: i32, starts: usize): void {
  let record = records;
  for (let i: i32 = 0; i < count; i++) {
    const at = load<i32>(starts + ((<usize>i) << 2));
    const end = load<i32>(starts + ((<usize>i) << 2), 4);
    const group = groupAt(load<u32>(record));
    if (isDrafted(group)) draftKeep(sequenceSeen(group, load<u32>(record, 4)), i, at, end - at);
    record += RECORD_BYTES;
  }
}

// Returns the number of draft tokens, at most `budget` for all records together, or STATUS_INVALID if a
// reserve is missing or too small.
export function step(appendRecords: i32, draftRecords: i32, budget: i32): i32 {
  if (input == 0 || output == 0 || draftRecords > outputDrafts) return STATUS_INVALID;
  const records = appends(appendRecords);
  const room = (<usize>outputDrafts * <usize>DRAFT_TOKENS_MAX) << 2;
  const starts = output + 4;
  const tokens = starts + ((<usize>outputDrafts + 1) << 2);
  let count: i32 = 0;
  const features = (tokens + 3 * room + 7) & ~7;
  const heads = features + <usize>outputDrafts * <usize>DRAFT_TOKENS_MAX * FEATURE_BYTES;
  if (draftRecords > 0) draftsBegin(tokens, room, features, heads);
  for (let i: i32 = 0; i < draftRecords; i++) {
    store<i32>(starts + ((<usize>i) << 2), count);
    const at = <usize>count;
    count += draft(
      records + <usize>i * RECORD_BYTES,
      tokens + (at << 2),
      room,
      features + at * FEATURE_BYTES,
      heads + <usize>i * HEAD_BYTES,
    );
  }
  store<i32>(starts + ((<usize>draftRecords) << 2), count);
  const weights = records + 20;
  count = budgetCut(starts, draftRecords, tokens, room, features, weights, RECORD_BYTES, budget);
  keep(records, draftRecords, starts);
  return count;
}
