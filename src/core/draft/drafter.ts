// The drafting port of an engine: it holds a replica of each registered group's token log and
// proposes continuations for many requests in one call. Implemented on core.wasm by replica.ts.

import type { GroupId } from "../base/ids.ts";

/** The draft query of one running request in one engine step. */
export interface DraftQuery {
  readonly groupId: GroupId;
  readonly sampleIndex: number;
  /** Draft tokens wanted at most, 0 <= tokensMax <= DRAFT_TOKENS_MAX, of a tree TREE_TOKENS_MAX. */
  readonly tokensMax: number;
  /** A draft token is proposed only if the whole path up to it is accepted with at least this probability. */
  readonly probabilityMin: number;
  /** true: a tree (several continuations); false: a path. */
  readonly tree: boolean;
}

export const DRAFT_TOKENS_MAX = 32;
/** Tokens of a tree, at most; no path in it is longer than DRAFT_TOKENS_MAX. */
export const TREE_TOKENS_MAX = 62;

/**
 * Drafts for the queries of one call, flat. Query i owns the range [start[i], start[i + 1]).
 * `parents[j]` is the index, within the query's own range, of the token before; -1: the request's last token.
 * Parents precede children. `probabilities[j]` is the probability that the path up to and including j is accepted.
 * The arrays belong to the drafter and are overwritten by its next call.
 */
export interface Drafts {
  readonly start: Int32Array;
  readonly tokens: Int32Array;
  readonly parents: Int32Array;
  readonly probabilities: Float32Array;
}

/**
 * gap: tokens before `offset` are missing; ask for the log from `have`. full: there is no room for them, and will be
 * none; nothing is drafted for the response.
 */
export type UpdateResult = { kind: "ok" } | { kind: "gap"; have: number } | { kind: "full" };

export interface Drafter {
  /** Idempotent. `prompt` is stored once for the group. */
  register(groupId: GroupId, prompt: Int32Array): void;
  has(groupId: GroupId): boolean;
  /**
   * Appends tokens of one response. `offset` counts its output tokens before these; what is already
   * there is skipped, so repeats are harmless. Unregistered groups are ignored.
   */
  update(groupId: GroupId, sampleIndex: number, offset: number, tokens: Int32Array): UpdateResult;
  /** O(1) in the group's tokens. */
  drop(groupId: GroupId): void;
  /** Forgets everything: a new weight epoch. */
  clear(): void;
  /** One call into WebAssembly for all queries. An unknown group gets no draft. Never throws for lack of room. */
  propose(queries: readonly DraftQuery[]): Drafts;
}
