// The groups that this engine drafts for: it registers them, and adds tokens to their replicas. The drafter holds the tokens.

import { InvalidFieldError } from "../../core/base/errors.ts";
import type { GroupId } from "../../core/base/ids.ts";
import type { Drafter, GroupUpdate, UpdateResult } from "../../core/draft/drafter.ts";
import type { WorkerEvent } from "../../core/rollout/worker.ts";
import type { Sequence } from "./sequence.ts";

type Registration = Extract<GroupUpdate, { kind: "register_group" }>;

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

  /** Registers a group. `resident`: the engine's requests; those of the group are added to the replica at once. */
  register(
    { groupId, prompt, past = [] }: Omit<Registration, "kind">,
    resident: Iterable<Sequence>,
  ): void {
    this.#groups.add(groupId);
    try {
      for (const tokens of [prompt, ...past]) this.#check(tokens);
      this.#drafter.register(groupId, prompt, past);
    } catch (error) {
      this.#giveUp(groupId, error);
    }
    for (const sequence of resident) {
      if (sequence.draft?.groupId === groupId) this.catchUp(sequence);
    }
  }

  /** Applies a delta of other workers. Returns the event to send if tokens before it are missing. */
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

  /** Adds the output that a new request comes with, so that its next tokens leave no gap. */
  catchUp(sequence: Sequence): void {
    const from = draftStart(sequence);
    if (sequence.length > from) this.append(sequence, from);
  }

  /** Adds the sequence's tokens from position `from` on, which were drawn here. */
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

  /** Stops drafting for a group with invalid tokens: a problem of drafting must never fail a request. */
  #giveUp(groupId: GroupId, error: unknown): void {
    if (!(error instanceof InvalidFieldError)) throw error;
    this.drop(groupId);
  }
}

/** Index of the request's first token that belongs to its draft sequence: the lead, then the output. */
function draftStart({ promptLength, draft }: Sequence): number {
  return promptLength - (draft?.turn?.leadTokens ?? 0);
}
