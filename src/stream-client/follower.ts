// What a reader of a stream has had, over all connections: it says what to subscribe to next, and makes events of frames. What a
// resumed stream repeats is dropped by offset; a response of another attempt begins anew.

export type StreamFilter = Readonly<{ all: true } | { group: string } | { request: number }>;

export type StreamEvent = Readonly<
  /** The server follows the filter from here on. Sent once, and before all other events unless a snapshot was asked for. */
  | { kind: "subscribed"; weightEpoch: number }
  /** The stream has a new response; `offset` is that of its first token that comes. */
  | (Place & { kind: "joined"; offset: number; promptTokens: number })
  /** The response's tokens are void; it starts again from token 0. */
  | { kind: "restarted"; request: number }
  /** Tokens of a response, from position `offset` on. */
  | { kind: "tokens"; request: number; offset: number; tokens: readonly number[] }
  | { kind: "finished"; request: number; reason: Finish; length: number; weightEpoch: number }
  /** The group has no unfinished response. Others may still join. */
  | { kind: "group_finished"; group: string }
  | { kind: "weights"; weightEpoch: number }
  /** The response ended, or the server did, while there was no connection, and its tokens behind `offset` are gone. */
  | { kind: "lost"; request: number; offset: number }
>;

/** A response's number, its group, and its number in it. */
type Place = { request: number; group: string; index: number };
type Finish = "stop" | "length" | "abort";

/** `code`: the server's (`conflict`, `not_found`, ...), or unauthorized, refused, unreachable, protocol, usage. */
export class StreamError extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.name = "StreamError";
    this.code = code;
  }
}

/** A frame as in docs/STREAM.md; empty fields are absent. */
type Frame = Readonly<{
  state?: "subscribed" | "ended";
  refused?: { code: string; message: string };
  begun?: Begun;
  joined?: readonly Joined[];
  restarted?: readonly Restarted[];
  tokens?: readonly { request: number; offset: number; token_ids: readonly number[] }[];
  finished?: readonly Finished[];
  groups_finished?: readonly string[];
  weight_epoch?: number;
}>;
type Begun = { server: number; requests: number; joined: number };
type Restarted = { request: number; attempt: number };
type Joined = Place & Restarted & { prompt_tokens: number; offset: number };
type Finished = { request: number; finish_reason: Finish; length: number; weight_epoch: number };

interface ResponseState {
  attempt: number;
  have: number;
  isFinished: boolean;
}

/** Limit of remembered responses. The oldest finished ones are dropped; the server forgot those long before. */
const KNOWN_MAX = 262_144;
/** Limit of unfinished responses that fit into a frame of a client. */
const HAVE_MAX = 500;

export class Follower {
  /** Whether no further event can come. */
  isOver = false;
  readonly #filter: StreamFilter;
  readonly #snapshot: boolean;
  readonly #responses = new Map<number, ResponseState>();
  /** Groups of known responses, and whether the reader was notified of their end. */
  readonly #groups = new Map<string, boolean>();
  /** The first subscription, which all later ones continue; null: it has not begun. */
  #begun: { server: number; requests: number } | null = null;
  /** Responses with smaller numbers have been named, or are not in this stream. */
  #next = 0;
  /** Number of responses that a new subscription still has to name; `#named`: those that it has named. */
  #awaited = 0;
  #named = new Set<number>();
  /** Events of a subscription that has not begun yet. */
  #early: StreamEvent[] = [];
  #weightEpoch = -1;

  constructor(filter: StreamFilter, snapshot: boolean) {
    this.#filter = filter;
    this.#snapshot = snapshot;
  }

  /** Whether the subscription has brought everything that existed when it began. */
  get isLive(): boolean {
    return this.#begun !== null && this.#awaited === 0;
  }

  /** Returns the frame that subscribes a new connection. */
  subscribe(): string {
    // A subscription that broke before it named the responses that run never was.
    if (this.#early.length > 0) {
      this.#forgetResponses();
      this.#early = [];
      this.#begun = null;
    }
    const begun = this.#begun;
    const from = begun === null ? { snapshot: this.#snapshot } : this.#resumed(begun.server);
    return JSON.stringify({ subscribe: { ...this.#filter, ...from } });
  }

  /** The `resumed` field. Responses come in the order of their numbers: unnamed ones before the newest were received whole. */
  #resumed(server: number): object {
    const open = [...this.#responses].filter(([, { isFinished }]) => !isFinished);
    // The server's frames have a limit; without the list it sends all again, and what is repeated is dropped.
    const isListed = open.length <= HAVE_MAX;
    const have = isListed ? open.map(([id, { have, attempt }]) => [id, have, attempt]) : [];
    return { resumed: { server, requests: isListed ? this.#next : 0, have } };
  }

  /** Makes events of a frame. @throws StreamError: the server refuses the subscription, or breaks the protocol. */
  *read(text: string): Generator<StreamEvent, void> {
    const frame = parsed(text);
    if (frame.refused !== undefined) {
      yield* this.#refused(frame.refused);
      return;
    }
    if (frame.begun !== undefined) yield* this.#begin(frame.begun, frame.weight_epoch ?? 0);
    for (const entry of frame.joined ?? []) yield* this.#joined(entry);
    for (const entry of frame.restarted ?? []) yield* this.#restarted(entry);
    for (const { request, offset, token_ids: ids } of frame.tokens ?? []) {
      const state = this.#of(request);
      const repeated = state.have - offset;
      if (repeated < 0) throw protocol(`response ${request}: token ${state.have} is missing`);
      if (state.isFinished || repeated >= ids.length) continue;
      const tokens = repeated === 0 ? ids : ids.slice(repeated);
      yield { kind: "tokens", request, offset: state.have, tokens };
      state.have += tokens.length;
    }
    for (const { request, finish_reason: reason, length, weight_epoch } of frame.finished ?? []) {
      const state = this.#of(request);
      if (state.isFinished) continue;
      if (state.have !== length) throw protocol(`response ${request} ends without its tokens`);
      state.isFinished = true;
      yield { kind: "finished", request, reason, length, weightEpoch: weight_epoch };
    }
    for (const group of frame.groups_finished ?? []) {
      if (this.#groups.get(group) !== false) continue;
      this.#groups.set(group, true);
      yield { kind: "group_finished", group };
    }
    const { weight_epoch: epoch = this.#weightEpoch } = frame;
    if (epoch !== this.#weightEpoch && this.#early.length === 0) {
      this.#weightEpoch = epoch;
      yield { kind: "weights", weightEpoch: epoch };
    }
    this.#prune();
    if (frame.state === "ended") this.isOver = true;
  }

  *#refused({ code, message }: { code: string; message: string }): Generator<StreamEvent, void> {
    if (code !== "not_found" || this.#responses.size === 0) throw new StreamError(code, message);
    // The response ended while there was no connection.
    yield* this.#lost();
    this.isOver = true;
  }

  *#begin({ server, requests, joined }: Begun, weightEpoch: number): Generator<StreamEvent, void> {
    this.#awaited = joined;
    this.#named = new Set();
    if (this.#begun === null) {
      this.#begun = { server, requests };
      // Until then, a subscription without a snapshot counts as none.
      if (!this.#snapshot) this.#next = requests;
      this.#weightEpoch = weightEpoch;
      this.#early.push({ kind: "subscribed", weightEpoch });
      if (joined === 0 || this.#snapshot) yield* this.#early.splice(0);
      return;
    }
    const isAnother = this.#begun.server !== server;
    if (isAnother) this.#begun = { server, requests: 0 };
    if (joined === 0 || isAnother) yield* this.#lost();
    // All that the name was of has ended, whereas a group may be asked for again at another server.
    const isNamed = "request" in this.#filter || ("group" in this.#filter && !isAnother);
    if (joined === 0 && isNamed && this.#responses.size > 0) this.isOver = true;
    if (isAnother) this.#forgetResponses();
  }

  *#joined(entry: Joined): Generator<StreamEvent, void> {
    const { request, group, index, attempt, offset } = entry;
    const state = this.#responses.get(request);
    const isResumed = this.#early.length === 0 && this.#awaited > 0;
    this.#named.add(request);
    this.#next = Math.max(this.#next, request + 1);
    if (state !== undefined) yield* this.#restarted(entry);
    else {
      // The snapshot of a resumed stream has responses that had ended before it began.
      const isPast = isResumed && !this.#snapshot && request < (this.#begun?.requests ?? 0);
      this.#responses.set(request, { attempt, have: offset, isFinished: isPast });
      if (!isPast) {
        this.#groups.set(group, false);
        const { prompt_tokens: promptTokens } = entry;
        this.#early.push({ kind: "joined", request, group, index, promptTokens, offset });
      }
    }
    this.#awaited = Math.max(0, this.#awaited - 1);
    if (this.#awaited > 0 && !isResumed) return;
    yield* this.#early.splice(0);
    if (isResumed && this.#awaited === 0) yield* this.#lost();
  }

  *#restarted({ request, attempt }: Restarted): Generator<StreamEvent, void> {
    if (this.#of(request).attempt === attempt) return;
    this.#responses.set(request, { attempt, have: 0, isFinished: false });
    yield { kind: "restarted", request };
  }

  /** Reports responses that a resumed subscription does not name any more as lost. */
  *#lost(): Generator<StreamEvent, void> {
    for (const [request, state] of this.#responses) {
      if (state.isFinished || this.#named.has(request)) continue;
      state.isFinished = true;
      yield { kind: "lost", request, offset: state.have };
    }
  }

  /** Forgets all responses: another server numbers its responses anew. */
  #forgetResponses(): void {
    this.#next = 0;
    this.#responses.clear();
    this.#groups.clear();
  }

  #of(request: number): ResponseState {
    const state = this.#responses.get(request);
    if (state === undefined) throw protocol(`response ${request} was not declared`);
    return state;
  }

  #prune(): void {
    if (this.#responses.size <= KNOWN_MAX) return;
    for (const [request, { isFinished }] of this.#responses) {
      if (isFinished) this.#responses.delete(request);
      if (this.#responses.size <= KNOWN_MAX) break;
    }
    for (const [group, hasFinished] of this.#groups) if (hasFinished) this.#groups.delete(group);
  }
}

function parsed(text: string): Frame {
  try {
    return JSON.parse(text) as Frame;
  } catch {
    throw protocol("a frame is not JSON");
  }
}

function protocol(problem: string): StreamError {
  return new StreamError("protocol", problem);
}
