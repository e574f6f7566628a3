// The group indexes of one core instance, driven by batches: appended tokens are written straight into
// the core's input area and cross together with the next drafts, in one call. Owns the instance's
// input and output areas; knows handles, not names.

import { assert } from "../base/assert.ts";
import { AppError } from "../base/errors.ts";
import {
  APPEND_HEADER_WORDS,
  DRAFT_FLAG_TABLE,
  DRAFT_FLAG_TREE,
  DRAFT_WORDS,
  STATUS_FULL,
  STATUS_OK,
  TREE_TOKENS_MAX,
} from "./abi.ts";
import { type CoreExports, type CoreOptions, loadCore } from "./load.ts";

/**
 * Drafts for the queries of one call, flat. Query i owns the range [start[i], start[i + 1]).
 * `parents[j]` is the index, within the query's own range, of the token before; -1: the request's last token.
 * Parents precede children. `probabilities[j]` is the probability that the path up to and including j is accepted.
 * Views of the core's memory: valid until the next call of the index.
 */
export interface Drafts {
  readonly start: Int32Array;
  readonly tokens: Int32Array;
  readonly parents: Int32Array;
  readonly probabilities: Float32Array;
}

/** A query for one draft. */
export interface DraftWanted {
  /** Maximum of draft tokens: 0 <= tokensMax <= DRAFT_TOKENS_MAX, or TREE_TOKENS_MAX for a tree. */
  readonly tokensMax: number;
  /** A draft token is proposed only if the whole path up to it is accepted with at least this probability. */
  readonly probabilityMin: number;
  /**
   * true: a tree (several continuations). false: a path. "table": a path of `tokensMax` and branches of it, TABLE_NODES in
   * all, for a GPU that is one step ahead of the host. No path is longer than DRAFT_TOKENS_MAX.
   */
  readonly tree: boolean | "table";
}

/**
 * Room for about 60,000 tokens between two steps; more makes an extra call, nothing else. With the
 * records of 900 drafts it fills 256 KiB.
 */
const INPUT_WORDS = 60_000;
/** Tokens of a past response that count: they cross in one call. */
export const HISTORY_TOKENS_MAX = INPUT_WORDS;
const DRAFTS_MIN = 128;
const TOKENS_MAX = 0x7fffffff;

export class SuffixIndex {
  readonly core: CoreExports;
  readonly #onFull: (handle: number) => void;
  /** Words of the input area, which grows with the drafts of one step. */
  #inputWords = 0;
  #inputAt = 0;
  #input = new Int32Array(0);
  #inputFloats = new Float32Array(0);
  #outputAt = 0;
  #outputDrafts = 0;
  #failed = new Int32Array(0);
  #views: Drafts = {
    start: new Int32Array(1),
    tokens: new Int32Array(0),
    parents: new Int32Array(0),
    probabilities: new Float32Array(0),
  };
  /** Words and records of queued appends in the input area, and the draft queries after them. */
  #words = 0;
  #appends = 0;
  #drafts = 0;
  readonly #appendHandles: number[] = [];
  /** `onFull` is being called: it may drop groups, but not run a step, which would overwrite this one's views. */
  #isReporting = false;

  /** `onFull` is called with each group that ran out of memory, after the step in which it did. */
  constructor(options: CoreOptions, onFull: (handle: number) => void) {
    this.core = loadCore(options);
    this.#onFull = onFull;
    this.#reserve(DRAFTS_MIN);
  }

  /** Creates a group and returns its handle; null: there is no memory. `prompt` holds ids >= 0. */
  create(prompt: Int32Array): number | null {
    this.flush();
    const handle = this.core.group_create();
    if (handle === STATUS_FULL) return null;
    for (let from = 0; from < prompt.length; from += INPUT_WORDS) {
      const part = prompt.subarray(from, from + INPUT_WORDS);
      this.#refresh();
      this.#input.set(part, 0);
      const status = this.core.group_prompt(handle, this.#inputAt, part.length);
      if (status === STATUS_OK) continue;
      this.drop(handle);
      return null;
    }
    return handle;
  }

  /**
   * Adds a whole response of an earlier epoch. Tokens are ids >= 0; the first HISTORY_TOKENS_MAX count. false: the group
   * is full, and must be dropped.
   */
  past(handle: number, tokens: Int32Array): boolean {
    this.flush();
    const part = tokens.subarray(0, HISTORY_TOKENS_MAX);
    this.#refresh();
    this.#input.set(part, 0);
    const status = this.core.group_history(handle, this.#inputAt, part.length, 0);
    assert(status === STATUS_OK || status === STATUS_FULL, `core history: status ${status}`);
    return status === STATUS_OK;
  }

  /** Drops a group, in O(1) of its tokens. Queued appends are carried out first. */
  drop(handle: number): void {
    this.flush();
    this.core.group_drop(handle);
  }

  /** Discards queued appends, before all groups are dropped. */
  discard(): void {
    this.#words = 0;
    this.#appends = 0;
    this.#appendHandles.length = 0;
  }

  /** Queues `tokens[from..]` for the sequence. Tokens are ids >= 0, 0 <= sequence < SEQUENCES_MAX. */
  append(handle: number, sequence: number, tokens: Int32Array, from: number): void {
    let at = from;
    while (at < tokens.length) {
      if (this.#words + APPEND_HEADER_WORDS + 1 > INPUT_WORDS) this.flush();
      this.#refresh();
      const room = INPUT_WORDS - this.#words - APPEND_HEADER_WORDS;
      const count = Math.min(room, tokens.length - at);
      const input = this.#input;
      let word = this.#words;
      input[word] = handle;
      input[word + 1] = sequence;
      input[word + 2] = count;
      word += APPEND_HEADER_WORDS;
      for (let i = 0; i < count; i += 1) input[word + i] = tokens[at + i] ?? 0;
      this.#words = word + count;
      this.#appends += 1;
      this.#appendHandles.push(handle);
      at += count;
    }
  }

  /** Makes room for `drafts` drafts in the next step. Call before its first `draft`. */
  begin(drafts: number): void {
    if (drafts > this.#outputDrafts) {
      this.flush();
      this.#reserve(2 * drafts);
    }
    this.#refresh();
    this.#drafts = 0;
  }

  /**
   * Adds a query to the next step; a handle below zero gets no draft. Under a budget, tokens of all drafts
   * are ranked by their probability times `weight`.
   */
  draft(handle: number, sequence: number, wanted: DraftWanted, weight = 1): void {
    const at = this.#words + this.#drafts * DRAFT_WORDS;
    const input = this.#input;
    input[at] = Math.max(handle, 0);
    input[at + 1] = sequence;
    input[at + 2] = wanted.tokensMax;
    const flags = wanted.tree ? DRAFT_FLAG_TREE : 0;
    input[at + 3] = wanted.tree === "table" ? DRAFT_FLAG_TABLE : flags;
    this.#inputFloats[at + 4] = wanted.probabilityMin;
    this.#inputFloats[at + 5] = weight;
    this.#drafts += 1;
  }

  /**
   * Carries out queued appends and then the queries, in one call. Of all drafts together, the `tokensMax`
   * tokens with the highest weight times probability are kept.
   */
  step(tokensMax = TOKENS_MAX): Drafts {
    if (this.#isReporting) assert(false, "core step: called from onFull");
    const status = this.core.step(this.#appends, this.#drafts, tokensMax);
    // The message is not made for the many that succeed.
    if (status < 0) assert(false, `core step: status ${status}`);
    this.#refresh();
    this.#drafts = 0;
    const handles = (this.#failed[0] ?? 0) > 0 ? this.#failures() : null;
    this.discard();
    if (handles !== null) this.#report(handles);
    return this.#views;
  }

  /** Carries out queued appends. */
  flush(): void {
    if (this.#appends === 0) return;
    this.#drafts = 0;
    this.step();
  }

  /** The handles of groups whose appends failed, each once. */
  #failures(): number[] {
    const failed = new Set<number>();
    let word = 0;
    for (const handle of this.#appendHandles) {
      if (this.#input[word] !== STATUS_OK) failed.add(handle);
      word += APPEND_HEADER_WORDS + (this.#input[word + 2] ?? 0);
    }
    return [...failed];
  }

  #report(handles: readonly number[]): void {
    this.#isReporting = true;
    try {
      for (const handle of handles) this.#onFull(handle);
    } finally {
      this.#isReporting = false;
    }
  }

  #reserve(drafts: number): void {
    const words = INPUT_WORDS + drafts * DRAFT_WORDS;
    if (this.#isReporting) assert(false, "core reserve: called from onFull");
    this.#inputAt = this.core.input_reserve(words) >>> 0;
    this.#outputAt = this.core.output_reserve(drafts) >>> 0;
    if (this.#inputAt === 0 || this.#outputAt === 0) {
      throw new AppError("core_full", "the core's memory leaves no room for a step's records");
    }
    this.#inputWords = words;
    this.#outputDrafts = drafts;
    this.#input = new Int32Array(0);
    this.#refresh();
  }

  /** Growing memory detaches every view, which leaves it empty, so none is used without this check. */
  #refresh(): void {
    if (this.#input.length > 0) return;
    const { buffer } = this.core.memory;
    this.#input = new Int32Array(buffer, this.#inputAt, this.#inputWords);
    this.#inputFloats = new Float32Array(buffer, this.#inputAt, this.#inputWords);
    const drafts = this.#outputDrafts;
    const room = drafts * TREE_TOKENS_MAX;
    const startAt = this.#outputAt + 4;
    const tokensAt = startAt + (drafts + 1) * 4;
    this.#failed = new Int32Array(buffer, this.#outputAt, 1);
    this.#views = {
      start: new Int32Array(buffer, startAt, drafts + 1),
      tokens: new Int32Array(buffer, tokensAt, room),
      parents: new Int32Array(buffer, tokensAt + room * 4, room),
      probabilities: new Float32Array(buffer, tokensAt + room * 8, room),
    };
  }
}
