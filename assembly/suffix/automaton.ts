// The online generalized suffix automaton of one group: its sequences grow in any interleaving and
// every count and best edge is right after each token. Its links are the compressed suffix tree of the
// reversed texts. (Blumer et al. 1985 for the construction; Takagi et al. 2020 for many growing texts.)
//
// The prompt is stored once: its last state is where every response begins. A position of the prompt
// counts once; the prompt's end counts once for each response begun, so that the counts of what
// follows never exceed the count of what precedes.
//
// Counts and best edges are kept for classes whose shortest string has at most `depth` tokens: a
// sequence that repeats itself would otherwise cost time proportional to its length for every token.

import { GROUP_TOKENS_MAX, STATUS_FULL, STATUS_INVALID, STATUS_OK } from "../abi";
import { poolHasRoom } from "../memory/pool";
import {
  arenaDrop,
  blockGiveBack,
  blockTake,
  descriptorTake,
  G_DEAD,
  G_PROMPT,
  G_PROMPT_BEFORE,
  G_ROOT,
  G_SEQ_CAPACITY,
  G_SEQ_COUNT,
  G_SEQS,
  G_STARTED,
  G_TOKENS,
} from "./arena";
import { contextState, normalTop } from "./context";
import {
  countRaise,
  edgeAdd,
  edgeOf,
  edgeRaised,
  edgeRedirect,
  HISTORY_SOURCE,
  lenOf,
  linkOf,
  PROMPT_SOURCE,
  SOURCES,
  setLink,
  stateCopy,
  stateTake,
} from "./node";
import { Q_LAST, Q_SECOND, Q_SPLIT, Q_THIRD, Q_TOKEN, Q_TOP, Q_WHOLE, SEQ_BYTES } from "./record";

export function groupTake(): usize {
  const group = descriptorTake();
  if (group == 0) return 0;
  // It may have the place of one that was dropped.
  if (group == pastGroup) pastGroup = 0;
  const root = stateTake(group, group + G_PROMPT + Q_WHOLE, 0);
  if (root == 0) {
    arenaDrop(group);
    return 0;
  }
  store<u32>(group, <u32>root, G_ROOT);
  store<u32>(group, <u32>root, G_PROMPT + Q_LAST);
  store<u32>(group, <u32>root, G_PROMPT + Q_TOP);
  return group;
}

// The record of a sequence, made on first use; 0 if there is no room for it.
export function sequenceOf(group: usize, index: u32): usize {
  const count = load<u32>(group, G_SEQ_COUNT);
  if (index >= count && !sequencesExtend(group, index + 1)) return 0;
  return <usize>load<u32>(group, G_SEQS) + <usize>index * SEQ_BYTES;
}

// The record if the sequence has one, else 0.
export function sequenceSeen(group: usize, index: u32): usize {
  if (index >= load<u32>(group, G_SEQ_COUNT)) return 0;
  return <usize>load<u32>(group, G_SEQS) + <usize>index * SEQ_BYTES;
}

function sequencesExtend(group: usize, count: u32): bool {
  const capacity = load<u32>(group, G_SEQ_CAPACITY);
  const held = load<u32>(group, G_SEQ_COUNT);
  let table: usize = load<u32>(group, G_SEQS);
  if (count > capacity) {
    // Large blocks lose 8 B to their header; a table one record short of a power of two fits both.
    let room: u32 = capacity == 0 ? 8 : (capacity + 1) * 2;
    while (room - 1 < count) room *= 2;
    const wider = blockTake(group, <usize>room * SEQ_BYTES);
    if (wider == 0) return false;
    if (table != 0) {
      memory.copy(wider, table, <usize>held * SEQ_BYTES);
      blockGiveBack(group, table, <usize>(capacity + 1) * SEQ_BYTES);
    }
    table = wider;
    store<u32>(group, <u32>wider, G_SEQS);
    store<u32>(group, room - 1, G_SEQ_CAPACITY);
  }
  for (let i = held; i < count; i++) {
    const sequence = table + <usize>i * SEQ_BYTES;
    memory.fill(sequence, 0, SEQ_BYTES);
    atPromptEnd(group, sequence);
  }
  store<u32>(group, count, G_SEQ_COUNT);
  return true;
}

// Output tokens of the sequence.
export function tokensOf(group: usize, sequence: usize): u32 {
  return lenOf(load<u32>(sequence, Q_LAST)) - lenOf(load<u32>(group, G_PROMPT + Q_LAST));
}

// Worst cases of one token: an edge for each state of the suffix path, each taking a new block.
function hasRoom(sequence: usize): bool {
  return poolHasRoom(65536 + <usize>lenOf(load<u32>(sequence, Q_LAST)) * 64);
}

// The prompt, in one or several calls, before any sequence has begun.
export function promptAppend(group: usize, tokens: usize, count: u32): i32 {
  if (load<u32>(group, G_STARTED) != 0 || load<u32>(group, G_SEQ_COUNT) != 0) return STATUS_INVALID;
  const sequence = group + G_PROMPT;
  for (let i: u32 = 0; i < count; i++) {
    const token = load<u32>(tokens + ((<usize>i) << 2));
    if (<i32>token < 0) return STATUS_INVALID;
    if (!canAppend(group, sequence)) return STATUS_FULL;
    const before = normalTop(load<u32>(sequence, Q_TOP));
    store<u32>(group, <u32>before, G_PROMPT_BEFORE);
    append(group, sequence, token, PROMPT_SOURCE);
  }
  return load<u32>(group, G_DEAD) == 0 ? STATUS_OK : STATUS_FULL;
}

// The record of the response of an earlier epoch that was appended last, its group and its tokens so far: a long one
// comes in pieces.
const past: usize = memory.data(64, 16);
let pastGroup: usize = 0;
let pastTokens: u32 = 0;

// Tokens of a response of an earlier epoch, after its first `offset`; 0 begins another response. Sequences see it as text
// without a writer.
export function historyAppend(group: usize, tokens: usize, count: u32, offset: u32): i32 {
  if (offset == 0) {
    memory.fill(past, 0, SEQ_BYTES);
    atPromptEnd(group, past);
    pastGroup = group;
    pastTokens = 0;
  } else if (group != pastGroup || offset != pastTokens) {
    return STATUS_INVALID;
  }
  for (let i: u32 = 0; i < count; i++) {
    const token = load<u32>(tokens + ((<usize>i) << 2));
    if (<i32>token < 0) return STATUS_INVALID;
    if (!canAppend(group, past)) return STATUS_FULL;
    if (pastTokens == 0) promptEndBegun(group);
    append(group, past, token, HISTORY_SOURCE);
    pastTokens += 1;
  }
  return load<u32>(group, G_DEAD) == 0 ? STATUS_OK : STATUS_FULL;
}

function atPromptEnd(group: usize, sequence: usize): void {
  store<u32>(sequence, load<u32>(group, G_PROMPT + Q_LAST), Q_LAST);
  store<u32>(sequence, load<u32>(group, G_PROMPT + Q_TOP), Q_TOP);
  store<u32>(sequence, load<u32>(group, G_PROMPT + Q_TOKEN), Q_TOKEN);
  store<u32>(sequence, load<u32>(group, G_PROMPT + Q_SECOND), Q_SECOND);
  store<u32>(sequence, load<u32>(group, G_PROMPT + Q_THIRD), Q_THIRD);
}

// Whether there is room for one token more. Once a group is full it stays so: a sequence with a hole is useless.
export function canAppend(group: usize, sequence: usize): bool {
  if (load<u32>(group, G_DEAD) != 0) return false;
  // A class counts at most the tokens and the responses begun, in 24 bits (node.ts).
  const counted = load<u32>(group, G_TOKENS) + load<u32>(group, G_STARTED);
  if (counted < <u32>GROUP_TOKENS_MAX && hasRoom(sequence)) return true;
  store<u32>(group, 1, G_DEAD);
  return false;
}

// One output token of a sequence, after canAppend.
export function outputAppend(group: usize, index: u32, sequence: usize, token: u32): void {
  if (tokensOf(group, sequence) == 0) promptEndBegun(group);
  append(group, sequence, token, index % SOURCES);
}

// Another response begins: from the second on, the end of the prompt counts once more.
function promptEndBegun(group: usize): void {
  const started = load<u32>(group, G_STARTED);
  store<u32>(group, started + 1, G_STARTED);
  const before: usize = load<u32>(group, G_PROMPT_BEFORE);
  if (started == 0 || before == 0) return;
  const token = load<u32>(group, G_PROMPT + Q_TOKEN);
  const t = normalTop(before);
  raise(t, normalTop(edgeOf(t, token)), token, PROMPT_SOURCE);
}

function append(group: usize, sequence: usize, token: u32, source: u32): void {
  const last: usize = load<u32>(sequence, Q_LAST);
  const splits = sequence + Q_SPLIT;
  let current = edgeOf(last, token);
  if (current == 0) {
    current = stateTake(group, sequence + Q_WHOLE, lenOf(last) + 1);
    if (current == 0) return;
    edgeAdd(group, last, token, current);
    const p = edgesTo(group, linkOf(last), token, current);
    if (p == 0) {
      setLink(current, load<u32>(group, G_ROOT));
    } else {
      setLink(current, split(group, splits, p, token, found));
    }
  } else {
    current = split(group, splits, last, token, current);
  }
  const top = normalTop(load<u32>(sequence, Q_TOP));
  const target = top == last ? current : edgeOf(top, token);
  // An edge has found no room: the group is dead and will not be read again.
  if (target == 0) return;
  const counted = normalTop(target);
  store<u32>(sequence, <u32>current, Q_LAST);
  store<u32>(sequence, <u32>counted, Q_TOP);
  store<u32>(sequence, token, Q_TOKEN);
  store<u32>(group, load<u32>(group, G_TOKENS) + 1, G_TOKENS);
  raise(top, counted, token, source);
}

// Where the edge leads that ended the last walk of edgesTo.
let found: usize = 0;

// Adds the edge to every state of the suffix path that lacks it; returns the first that has it, 0 if
// none, and sets `found`.
function edgesTo(group: usize, from: usize, token: u32, target: usize): usize {
  let p = from;
  while (p != 0) {
    found = edgeOf(p, token);
    if (found != 0) return p;
    edgeAdd(group, p, token, target);
    p = linkOf(p);
  }
  return 0;
}

// The class of exactly the strings that end at p's strings followed by the token: q itself, or a new
// class with q's shorter strings.
function split(group: usize, cursor: usize, p: usize, token: u32, q: usize): usize {
  const length = lenOf(p) + 1;
  if (lenOf(q) == length) return q;
  const clone = stateTake(group, cursor, length);
  if (clone == 0) return q;
  stateCopy(group, clone, q);
  setLink(q, clone);
  let at = p;
  while (at != 0 && edgeRedirect(at, token, q, clone)) at = linkOf(at);
  return clone;
}

// Adds one occurrence to every class on the link path of `counted`, and updates the states whose edge
// leads there: exactly those on the link path of `from` (two pointers, both paths in decreasing length).
// Edges of longer states than `counted` lead to classes that are not counted. Every class but the root
// has such a state, so one test for each state moves both pointers.
function raise(from: usize, counted: usize, token: u32, source: u32): void {
  let v = counted;
  let p = from;
  const length = lenOf(v);
  while (p != 0 && lenOf(p) >= length) p = linkOf(p);
  let count = countRaise(v, source);
  let link = linkOf(v);
  let shorter = lenOf(link);
  while (p != 0) {
    if (lenOf(p) < shorter) {
      v = link;
      count = countRaise(v, source);
      link = linkOf(v);
      shorter = lenOf(link);
    }
    edgeRaised(p, token, v, count);
    p = linkOf(p);
  }
  if (link != 0) countRaise(link, source);
}

// The class of the sequence's last `context` tokens: a draft that starts there reads only counted classes.
export function matchState(group: usize, sequence: usize): usize {
  return contextState(
    normalTop(sequence == 0 ? load<u32>(group, G_PROMPT + Q_TOP) : load<u32>(sequence, Q_TOP)),
  );
}

// How many of the occurrences of a sequence's own end have no continuation: its end is one, except
// at the prompt's end once others have continued from there.
export function ownEnds(group: usize, sequence: usize): u32 {
  if (sequence != 0 && tokensOf(group, sequence) != 0) return 1;
  return load<u32>(group, G_STARTED) == 0 ? 1 : 0;
}
