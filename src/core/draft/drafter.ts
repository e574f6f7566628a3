// The drafting port of an engine: it holds a replica of each registered group's token log and proposes continuations for
// many requests in one call (on core.wasm: replica.ts). What keeps it up to date are registrations and deltas. Deltas are
// idempotent by offset, so repeats are harmless and a replica can always be brought up to date from the log.

import type { GroupId } from "../base/ids.ts";
import type { Drafts, DraftWanted } from "../wasm/suffix-index.ts";

/** Where a request drafts from: a draft group, and which of its sequences the request itself is. */
export interface DraftSource {
  readonly groupId: GroupId;
  readonly sampleIndex: number;
  /** In a later turn of a session. Default: its prompt is the group's. */
  readonly turn?: TurnSource;
}

/**
 * The prompt of a turn:  [ the group's prompt | turns before it | lead ]
 * The sequence is the lead and the output; the turns before it are other sequences of the group.
 */
export interface TurnSource {
  readonly promptTokens: number;
  readonly leadTokens: number;
}

export type GroupUpdate =
  /**
   * The group will run here: keep a draft replica of it until it is dropped. `past`: responses to its prompt of earlier
   * weight epochs, the latest first. Default: none.
   */
  | {
      kind: "register_group";
      groupId: GroupId;
      prompt: Int32Array;
      past?: readonly Int32Array[];
    }
  /** Tokens of one response of a registered group, made on any worker. Idempotent by offset. */
  | { kind: "delta"; groupId: GroupId; sampleIndex: number; offset: number; tokens: Int32Array }
  | { kind: "drop_group"; groupId: GroupId };

export interface DraftQuery extends DraftWanted {
  readonly groupId: GroupId;
  readonly sampleIndex: number;
}

export { DRAFT_TOKENS_MAX, TREE_TOKENS_MAX } from "../wasm/abi.ts";
export type { Drafts } from "../wasm/suffix-index.ts";

/** gap: tokens before `offset` are missing; ask for the log from `have`. full: there is no room, and nothing is drafted. */
export type UpdateResult = { kind: "ok" } | { kind: "gap"; have: number } | { kind: "full" };

export interface Drafter {
  /** Idempotent. `prompt` is stored once for the group. `past`: responses to it of earlier weight epochs. */
  register(groupId: GroupId, prompt: Int32Array, past?: readonly Int32Array[]): void;
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
