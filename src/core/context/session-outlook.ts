// The rest of a session, as expected from its siblings' sessions: the task of a group has short ones or long ones.
// As L_g is the longest finished response of a group, so is a session expected to grow as far as the longest of its
// group has; where that is less than what others have on the mean, as far as those.

import { contextTokens, type Group, type Request } from "../request/buffer.ts";

/** Tokens of a turn, where none is known. */
const TURN_TOKENS = 64;
/** With three, long sessions begin so late that they make a tail. */
const TURNS_AHEAD = 2;
/** Turns of others that a group's tokens of a turn begin with; and as many that came back before anything is known. */
const TURNS_PRIOR = 4;
/** Turns that count for the share that comes back. */
const TURNS_KEPT = 256;

interface Shown {
  /** Tokens behind the group's prompt, and turns, of the session that has most. */
  tokensMax: number;
  turnsMax: number;
  /** Sums over all of its sessions. */
  tokens: number;
  turns: number;
  sessions: number;
}

const NOTHING: Shown = { tokensMax: 0, turnsMax: 0, tokens: 0, turns: 0, sessions: 0 };

export class SessionOutlook {
  readonly #groups = new Map<Group, Shown>();
  /** Turns of late, and those that had a next one. */
  #ended = TURNS_PRIOR;
  #back = TURNS_PRIOR;
  /** Sums over all groups, those that are over too. */
  readonly #all = { tokens: 0, turns: 0, sessions: 0 };

  /** A turn of a session is over, and may have a next one. */
  ended(request: Request): void {
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

  /** A session has come back with its next turn. */
  came(): void {
    this.#back += 1;
  }

  /** Tokens that sessions of the group are expected to have behind its prompt in the end; null: nothing is known, or it has none. */
  tokens(group: Group): number | null {
    const { sessions, tokens } = this.#all;
    if (sessions === 0 || group.requests[0]?.spec.keepsKv !== true) return null;
    return Math.max(tokens / sessions, this.#groups.get(group)?.tokensMax ?? 0);
  }

  /** Tokens by which the request's session is expected to grow yet; those of one turn at least. */
  tokensLeft(request: Request): number {
    const { group } = request;
    return Math.max(this.#turnTokens(group), (this.tokens(group) ?? 0) - grownTokens(request));
  }

  /** Tokens by which a session is expected to grow soon, for which there must be room before another begins. */
  growthTokens(group: Group): number {
    return TURNS_AHEAD * Math.min(1, this.#back / this.#ended) * this.#turnTokens(group);
  }

  /** Whether no sibling's session has made more turns. */
  leads({ group, turn }: Request): boolean {
    return turn >= (this.#groups.get(group)?.turnsMax ?? 0);
  }

  /** Tokens of a turn: what is new in its prompt, and its response. */
  #turnTokens(group: Group): number {
    const { tokens, turns } = this.#all;
    const all = turns === 0 ? TURN_TOKENS : tokens / turns;
    const shown = this.#groups.get(group) ?? NOTHING;
    return (shown.tokens + TURNS_PRIOR * all) / (shown.turns + TURNS_PRIOR);
  }

  forget(group: Group): void {
    this.#groups.delete(group);
  }
}

function grownTokens(request: Request): number {
  return contextTokens(request) - request.group.prompt.length;
}
