// How many tokens a session will still add, by its siblings' sessions: a group's task takes short sessions or long ones.
// As L_g is the longest finished response of a group, a session is expected to grow as long as the longest session of its
// group, or as long as the mean of all groups if that is more.

import { contextTokens, type Group, type RolloutRequest } from "../request/buffer.ts";

/** Assumed tokens of a turn before any turn has ended. */
const TURN_TOKENS = 64;
/** Turns of a session that there must be KV for. With three, long sessions begin so late that they make a tail. */
const TURNS_AHEAD = 2;
/** Weight of the prior, in turns: of the mean turn of all groups, and of sessions that come back after each turn. */
const TURNS_PRIOR = 4;
/** The share of sessions that come back is that of about this many recent turns. */
const TURNS_KEPT = 256;

interface Shown {
  /** The most tokens after the group's prompt, and the most turns, of a session of the group. */
  tokensMax: number;
  turnsMax: number;
  /** Sums over the group's sessions. */
  tokens: number;
  turns: number;
  sessions: number;
}

const NOTHING: Shown = { tokensMax: 0, turnsMax: 0, tokens: 0, turns: 0, sessions: 0 };

export class SessionOutlook {
  readonly #groups = new Map<Group, Shown>();
  /** Recent turns that ended, and how many of them were followed by another. */
  #ended = TURNS_PRIOR;
  #back = TURNS_PRIOR;
  /** Sums over all groups, finished ones included. */
  readonly #all = { tokens: 0, turns: 0, sessions: 0 };

  /** Records the end of a session's turn, which another turn may follow. */
  ended(request: RolloutRequest): void {
    this.#ended += 1;
    if (this.#ended >= TURNS_KEPT) {
      this.#ended /= 2;
      this.#back /= 2;
    }
    const { group, turn, spec, response } = request;
    const shown = this.#groups.getOrInsertComputed(group, () => ({ ...NOTHING }));
    shown.tokensMax = Math.max(shown.tokensMax, grownTokens(request));
    shown.turnsMax = Math.max(shown.turnsMax, turn + 1);
    for (const sum of [shown, this.#all]) {
      sum.tokens += (spec.leadTokens ?? 0) + response.length;
      sum.turns += 1;
      if (turn === 0) sum.sessions += 1;
    }
  }

  /** Records that a session came back with another turn. */
  came(): void {
    this.#back += 1;
  }

  /** Expected tokens of a session of the group, after its prompt; null: not known, or the group has no sessions. */
  tokens(group: Group): number | null {
    const { sessions, tokens } = this.#all;
    if (sessions === 0 || group.requests[0]?.spec.keepsKv !== true) return null;
    return Math.max(tokens / sessions, this.#groups.get(group)?.tokensMax ?? 0);
  }

  /** Tokens that the request's session is expected to add; at least those of one turn. */
  tokensLeft(request: RolloutRequest): number {
    const { group } = request;
    return Math.max(this.#turnTokens(group), (this.tokens(group) ?? 0) - grownTokens(request));
  }

  /** The part of recent turns that another one followed. */
  get backPart(): number {
    return Math.min(1, this.#back / this.#ended);
  }

  /** Tokens that a session is expected to add soon: another session begins only if there is KV for them. */
  growthTokens(group: Group): number {
    return TURNS_AHEAD * this.backPart * this.#turnTokens(group);
  }

  /** Whether no sibling's session has had more turns. */
  leads({ group, turn }: RolloutRequest): boolean {
    return turn >= (this.#groups.get(group)?.turnsMax ?? 0);
  }

  /** Expected tokens of a turn: the new ones of its prompt, and its response. */
  #turnTokens(group: Group): number {
    const { tokens, turns } = this.#all;
    const mean = turns === 0 ? TURN_TOKENS : tokens / turns;
    const shown = this.#groups.get(group) ?? NOTHING;
    return (shown.tokens + TURNS_PRIOR * mean) / (shown.turns + TURNS_PRIOR);
  }

  forget(group: Group): void {
    this.#groups.delete(group);
  }
}

function grownTokens(request: RolloutRequest): number {
  return contextTokens(request) - request.group.prompt.length;
}
