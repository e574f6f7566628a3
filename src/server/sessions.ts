// Sessions: conversations of many turns, each of which is a request whose prompt begins with the texts of those before.
// A turn joins the group of its session's first prompt, so that it drafts from its siblings' turns, and goes on from
// the KV of the turn before. What is kept for the next turn is bounded in time, and goes with the group, whose bytes count it.
// A client that names no session has one all the same: a prompt that begins with a finished request's text goes on
// from that.
//
//   first turn   [ prompt of the group ]                                          response 1
//   next turn    [ prompt of the group | response 1 | lead: what is new ]         response 2

import type { Clock, Later } from "../core/base/clock.ts";
import { fold32, hashString } from "../core/base/hash.ts";
import {
  contextTokens,
  type Group,
  type RolloutRequest,
  type SessionTurn,
} from "../core/request/buffer.ts";
import type { PreviousTurn } from "../core/rollout/rollout.ts";

const BLOCK_TOKENS = 16;
/** Limit of known blocks; the oldest are dropped first. */
const BLOCKS_MAX = 262_144;

/** Finds what a prompt of no named session goes on from, by hashes of its blocks; the caller compares the tokens. */
class KnownTexts {
  /** Key of each block's owner, by the hash of all tokens up to the block's end. */
  readonly #owners = new Map<number, string>();

  /** Adds the blocks of the request's response. Those of its prompt are left out: its siblings have them too. */
  add(owner: string, scope: number, { spec, response }: RolloutRequest): void {
    const from = spec.prompt.length;
    eachBlock(scope, [spec.prompt, response.tokens()], (hash, end) => {
      if (end <= from) return;
      this.#owners.delete(hash);
      this.#owners.set(hash, owner);
      const [oldest] = this.#owners.keys();
      if (this.#owners.size > BLOCKS_MAX && oldest !== undefined) this.#owners.delete(oldest);
    });
  }

  /** Owners whose texts may begin as the prompt does, the one with the most blocks in common last. */
  owners(scope: number, prompt: Int32Array): string[] {
    const found = new Set<string>();
    if (this.#owners.size === 0) return [];
    eachBlock(scope, [prompt], (hash) => {
      const owner = this.#owners.get(hash);
      if (owner === undefined) return;
      found.delete(owner);
      found.add(owner);
    });
    return [...found];
  }
}

function eachBlock(
  scope: number,
  texts: readonly Int32Array[],
  take: (hash: number, end: number) => void,
): void {
  let hash = scope;
  let end = 0;
  for (const text of texts) {
    for (const token of text) {
      hash = fold32(hash, token);
      end += 1;
      if (end % BLOCK_TOKENS === 0) take(hash, end);
    }
  }
}

interface SessionsOptions {
  /** Time after its last turn at which a session is forgotten. */
  readonly msMax: number;
  readonly clock: Clock;
  /** Runs `act` after `ms`, returns a function that cancels it; absent: sessions are forgotten when others begin. */
  readonly later?: Later | undefined;
  /** Called when no further turn can follow this finished one. */
  readonly letGo: (request: RolloutRequest) => void;
}

const PAUSED_SHOWN_MAX = 64;

interface TurnPlace {
  /** Key of the session. */
  readonly key: string;
  /** The group to join; null: the group of its prompt. */
  readonly group: Group | null;
  readonly turn: SessionTurn;
  /** The finished turn before it; null: there is none. */
  readonly previous: PreviousTurn | null;
}

/** Name of a session, within a scope of requests that may share KV; null: the client gave none. */
export interface SessionScope {
  readonly scope: string;
  readonly name: string | null;
}

interface Session extends SessionScope {
  readonly key: string;
  group: Group;
  /** The turn that was finished last; null: none, or it was given up. */
  last: RolloutRequest | null;
  dueMs: number;
}

export class SessionTable {
  readonly #options: SessionsOptions;
  /** The least recently used session comes first. */
  readonly #sessions = new Map<string, Session>();
  readonly #byGroup = new Map<Group, Set<Session>>();
  /** Session of each unfinished request, and whether the request is a later turn. */
  readonly #running = new Map<RolloutRequest, { session: Session; isLater: boolean }>();
  /** Keys of the sessions without a name, by their last turns. Sessions themselves would keep their closed groups alive. */
  readonly #texts = new KnownTexts();
  #unnamed = 0;
  #isWatched = false;
  readonly #figures = { turns: 0, promptTokens: 0, cachedTokens: 0, edited: 0 };

  constructor(options: SessionsOptions) {
    this.#options = options;
  }

  get count(): number {
    return this.#sessions.size;
  }

  /** Counts of turns after the first, their prompt and cached tokens, and those whose prompt edits the turn before. */
  get figures(): Readonly<Record<"turns" | "promptTokens" | "cachedTokens" | "edited", number>> {
    return this.#figures;
  }

  /** Key of the session whose next turn the prompt is, or of a new session. */
  #keyFor({ scope, name }: SessionScope, prompt: Int32Array): string {
    if (name !== null) return `${scope} ${name}`;
    const owners = this.#texts.owners(hashString(scope), prompt);
    const owner = owners.findLast((key) => {
      const session = this.#sessions.get(key);
      const last = session?.last ?? null;
      if (last === null || session?.scope !== scope) return false;
      return sharedWith(prompt, last) > last.spec.prompt.length;
    });
    this.#unnamed += 1;
    return owner ?? `#${this.#unnamed}`;
  }

  /** Sessions between two turns, whose clients run a tool, the longest paused first; and how many those are in all. */
  paused() {
    const nowMs = this.#options.clock.nowMs();
    const paused = [...this.#sessions.values()].flatMap(({ key, name, group, last, dueMs }) => {
      if (last === null) return [];
      const { tool, turn, response } = last;
      const since_s = (nowMs - (response.finishedMs ?? nowMs)) / 1000;
      const about = { session: name ?? key, group: group.groupId, turns: turn + 1, tool };
      return [{ ...about, since_s, deadline_s: (dueMs - nowMs) / 1000 }];
    });
    return { count: paused.length, longest: paused.slice(0, PAUSED_SHOWN_MAX) };
  }

  /** Prompt and response of the turn before this prompt; null: there is none. */
  textBefore(scope: SessionScope, prompt: Int32Array): Int32Array | null {
    const last = this.#sessions.get(this.#keyFor(scope, prompt))?.last ?? null;
    if (last === null) return null;
    const text = new Int32Array(contextTokens(last));
    text.set(last.spec.prompt);
    text.set(last.response.tokens(), last.spec.prompt.length);
    return text;
  }

  place(scope: SessionScope, prompt: Int32Array): TurnPlace {
    const key = this.#keyFor(scope, prompt);
    this.#sweep();
    const session = this.#sessions.get(key);
    const first = { key, group: null, turn: { prompt, leadTokens: 0 }, previous: null };
    if (session === undefined) return first;
    const root = session.group.prompt;
    const { last } = session;
    const sharedWithLast = last === null ? 0 : sharedWith(prompt, last);
    if (last !== null && sharedWithLast < contextTokens(last)) this.#figures.edited += 1;
    if (prompt.length <= root.length || sharedTokens(prompt, root, 0) < root.length) return first;
    const shared = last === null ? root.length : sharedWithLast;
    // The last token is computed anew: the next one is drawn from it.
    const previous = last && { request: last, sharedTokens: Math.min(shared, prompt.length - 1) };
    const leadTokens = prompt.length - Math.max(shared, root.length);
    return { key, group: session.group, turn: { prompt, leadTokens }, previous };
  }

  /** Records that the request has joined its group as a turn of the session. */
  joined(request: RolloutRequest, about: SessionScope & { key: string; isLater: boolean }): void {
    const { key, name, scope, isLater } = about;
    const existing = this.#sessions.get(key);
    const empty = { group: request.group, last: null, dueMs: 0 };
    const session = existing ?? { key, name, scope, ...empty };
    if (existing?.group !== request.group) this.#regroup(session, request.group);
    // Its KV is the new turn's now.
    if (isLater) this.#setLast(session, null);
    this.#running.set(request, { session, isLater });
    this.#use(session);
  }

  finished(request: RolloutRequest): void {
    const { session, isLater } = this.#running.get(request) ?? {};
    if (session === undefined) return;
    this.#running.delete(request);
    if (isLater) {
      this.#figures.turns += 1;
      this.#figures.promptTokens += request.spec.prompt.length;
      this.#figures.cachedTokens += request.response.promptTokensCached ?? 0;
    }
    const isOpen = this.#sessions.get(session.key) === session && session.group === request.group;
    if (!isOpen || request.response.finish === "abort") {
      this.#options.letGo(request);
      return;
    }
    this.#setLast(session, request);
    if (session.name === null) this.#texts.add(session.key, hashString(session.scope), request);
    this.#use(session);
  }

  /** Ends the sessions with this name; returns how many there were. */
  end(name: string): number {
    const over = [...this.#sessions.values()].filter((session) => session.name === name);
    for (const session of over) this.#forget(session);
    return over.length;
  }

  /** Forgets the group's sessions: no request joins it any more. */
  closed(group: Group): void {
    for (const session of this.#byGroup.get(group) ?? []) this.#forget(session);
  }

  #regroup(session: Session, group: Group): void {
    this.#byGroup.get(session.group)?.delete(session);
    this.#setLast(session, null);
    session.group = group;
    this.#byGroup.getOrInsertComputed(group, () => new Set()).add(session);
  }

  #setLast(session: Session, request: RolloutRequest | null): void {
    const { last } = session;
    session.last = request;
    if (last !== null && last !== request) this.#options.letGo(last);
  }

  #use(session: Session): void {
    const { clock, msMax } = this.#options;
    session.dueMs = clock.nowMs() + msMax;
    this.#sessions.delete(session.key);
    this.#sessions.set(session.key, session);
    this.#watch();
  }

  #forget(session: Session): void {
    if (this.#sessions.get(session.key) !== session) return;
    this.#sessions.delete(session.key);
    const members = this.#byGroup.get(session.group);
    members?.delete(session);
    if (members?.size === 0) this.#byGroup.delete(session.group);
    this.#setLast(session, null);
  }

  #sweep(): void {
    const nowMs = this.#options.clock.nowMs();
    for (const session of this.#sessions.values()) {
      if (session.dueMs > nowMs) return;
      this.#forget(session);
    }
  }

  /** Frees the KV of abandoned sessions in time, even if nothing else happens. */
  #watch(): void {
    const { later, msMax } = this.#options;
    if (this.#isWatched || later === undefined) return;
    this.#isWatched = true;
    later(() => {
      this.#isWatched = false;
      this.#sweep();
      if (this.#sessions.size > 0) this.#watch();
    }, msMax);
  }
}

/** Number of first tokens of `prompt` that are those of the turn's prompt and response. */
function sharedWith(prompt: Int32Array, { spec, response }: RolloutRequest): number {
  const shared = sharedTokens(prompt, spec.prompt, 0);
  if (shared < spec.prompt.length) return shared;
  return shared + sharedTokens(prompt, response.tokens(), shared);
}

/** Number of first tokens of `text` that `prompt` has from position `from` on. */
export function sharedTokens(prompt: Int32Array, text: Int32Array, from: number): number {
  const end = Math.min(text.length, prompt.length - from);
  let shared = 0;
  while (shared < end && prompt[from + shared] === text[shared]) shared += 1;
  return shared;
}
