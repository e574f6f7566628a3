// What keeps a draft replica up to date: registrations and token-log deltas. Deltas are idempotent by
// offset, so repeats are harmless and a replica can always be brought up to date from the log.

import type { GroupId } from "../base/ids.ts";

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
  /** Length of the group's prompt. */
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
