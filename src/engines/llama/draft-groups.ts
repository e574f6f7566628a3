// The groups this engine drafts for: which are registered, and what flows into their replicas. The drafter holds the tokens.

import { InvalidFieldError } from "../../core/base/errors.ts";
import type { GroupId } from "../../core/base/ids.ts";
import type { Drafter, UpdateResult } from "../../core/draft/drafter.ts";
import type { WorkerEvent } from "../../core/rollout/worker.ts";
import type { Sequence } from "./sequence.ts";

const FULL: UpdateResult = { kind: "full" };

export class DraftGroups {
  readonly #drafter: Drafter;
  readonly #vocabularySize: number;
  readonly #groups = new Set<GroupId>();

  constructor(drafter: Drafter, vocabularySize: number) {
    this.#drafter = drafter;
    this.#vocabularySize = vocabularySize;
  }

  get size(): number {
    return this.#groups.size;
  }

  /** `resident`: requests of any group that are here; the group's own enter the replica at once. */
  register(
    { groupId, prompt }: { groupId: GroupId; prompt: Int32Array },
    resident: Iterable<Sequence>,
  ): void {
    this.#groups.add(groupId);
    try {
      this.#check(prompt);
      this.#drafter.register(groupId, prompt);
    } catch (error) {
      this.#giveUp(groupId, error);
    }
    for (const sequence of resident) {
      if (sequence.draft?.groupId === groupId) this.catchUp(sequence);
    }
  }

  /** A delta from elsewhere; the event to send when tokens before it are missing. */
  delta(command: {
    groupId: GroupId;
    sampleIndex: number;
    offset: number;
    tokens: Int32Array;
  }): WorkerEvent | null {
    const { groupId, sampleIndex, offset, tokens } = command;
    if (!this.#groups.has(groupId)) return null;
    const result = this.#update(groupId, sampleIndex, offset, tokens);
    return result.kind === "gap"
      ? { kind: "gap", groupId, sampleIndex, offset: result.have }
      : null;
  }

  /** All that a request which has just come brings, so that its own tokens have no gap. */
  catchUp(sequence: Sequence): void {
    const from = draftStart(sequence);
    if (sequence.length > from) this.append(sequence, from);
  }

  /** The sequence's tokens from position `from` on have been drawn here. */
  append(sequence: Sequence, from: number): void {
    if (sequence.draft === null || !this.#groups.has(sequence.draft.groupId)) return;
    const { groupId, sampleIndex } = sequence.draft;
    const tokens = sequence.tokens.subarray(from, sequence.length);
    this.#update(groupId, sampleIndex, from - draftStart(sequence), tokens);
  }

  drop(groupId: GroupId): void {
    this.#groups.delete(groupId);
    this.#drafter.drop(groupId);
  }

  clear(): void {
    this.#groups.clear();
    this.#drafter.clear();
  }

  #update(groupId: GroupId, sampleIndex: number, offset: number, tokens: Int32Array): UpdateResult {
    try {
      this.#check(tokens);
      return this.#drafter.update(groupId, sampleIndex, offset, tokens);
    } catch (error) {
      this.#giveUp(groupId, error);
      return FULL;
    }
  }

  /** @throws InvalidFieldError: a draft with such a token would fail a step, and with it every request. */
  #check(tokens: Int32Array): void {
    const wrong = tokens.find((token) => token >= this.#vocabularySize);
    if (wrong !== undefined) {
      const problem = `holds token ${wrong}`;
      throw new InvalidFieldError({ where: "a draft group", field: "tokens", problem });
    }
  }

  /** A group that the drafter cannot make sense of is not drafted for: drafting may only ever cost time. */
  #giveUp(groupId: GroupId, error: unknown): void {
    if (!(error instanceof InvalidFieldError)) throw error;
    this.drop(groupId);
  }
}

/** Index in the request's tokens at which its sequence of the group begins. */
function draftStart({ promptLength, draft }: Sequence): number {
  return promptLength - (draft?.turn?.leadTokens ?? 0);
}
