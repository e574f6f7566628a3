// The trajectories of all named sessions, within a bound of bytes. A session is whole, or it says why it is not: a turn
// that was given up and was not asked for again, a part that the bound or a restart took. What happens now and what a
// file says of an earlier process change a session in one way, `apply`.

import type { RolloutRequest } from "../../core/request/buffer.ts";
import { promptKey } from "../../core/request/prompt-key.ts";
import type { Kept } from "../kept.ts";
import { Trajectory, type Turn, type WeightsSpan } from "./trajectory.ts";

/** Names a session. Sessions of two groups may have the same name. */
export interface SessionName {
  readonly name: string;
  /** The client's name for the group; null: it gave none. */
  readonly group: string | null;
}

type Happened = SessionName &
  /** `prompt`: see promptKey. */
  (
    | { readonly kind: "began"; readonly requestId: number; readonly prompt: number }
    | { readonly kind: "ended"; readonly turn: Turn }
    /** The turn failed: its client got no response. */
    | { readonly kind: "failed"; readonly requestId: number; readonly reason: string }
    /** The session is incomplete, and no later turn makes it whole. */
    | { readonly kind: "flawed"; readonly reason: string }
    /** No turn follows: one with the same name begins another session. */
    | { readonly kind: "over" }
    | { readonly kind: "dropped"; readonly reason: string }
  );

/** An event as it is kept. `number`: events of the session before it. */
export type TrajectoryEvent = Happened & { readonly number: number };

/** The last event of a process that stopped in order. */
export type Stopped = { readonly kind: "stopped" };

/** Why a session that an earlier process left open may not be whole. */
const KILLED = "the server did not stop in order: turns of its last second may be missing";
const CUT = "its beginning is gone: the journal's bound was reached";

export interface TrajectoriesOptions {
  readonly bytesMax: number;
  /** Time after its last turn at which a session counts as ended. */
  readonly msMax: number;
  /** Unix time, milliseconds. */
  readonly nowMs: () => number;
  /** The trainer's name for the weights of an epoch. */
  readonly version: (epoch: number) => string;
  readonly iteration: () => number;
  /** Called with each event, in order. Default: nothing keeps them. */
  readonly keep?: (event: TrajectoryEvent) => void;
}

/** A session: its turns, and the reasons why it is not whole. Readers change nothing of it. */
export class Session implements SessionName {
  readonly name: string;
  readonly group: string | null;
  /** Number of the session among those of its name and group, from 1 on. */
  readonly run: number;
  readonly trajectory = new Trajectory();
  /** Running turns by request. `prompt`: see promptKey. */
  readonly running = new Map<number, { readonly prompt: number; readonly beganS: number }>();
  /** Reasons why turns failed, by prompt; a turn that repeats the prompt removes its reason. */
  readonly failed = new Map<number, string>();
  readonly faults: Set<string>;
  events = 0;
  isOver = false;
  /** Unix time of its last event, milliseconds. */
  lastMs = 0;

  constructor({ name, group }: SessionName, run: number, gone: string | undefined) {
    this.name = name;
    this.group = group;
    this.run = run;
    this.faults = new Set(gone === undefined ? [] : [`what came before is gone: ${gone}`]);
  }

  /** Reasons why it is not whole; empty: it is whole. */
  get flaws(): readonly string[] {
    const running = [...this.running.keys()].map((id) => `response ${id} runs`);
    return [...this.faults, ...this.failed.values(), ...running];
  }
}

/** Limit of dropped sessions for which the reason is kept. */
const DROPPED_MAX = 65_536;
/** Memory of a session's objects: its entry, maps and names. */
const SESSION_OVERHEAD = 1_024;
const FLAWS_MAX = 16;
/** Turns that came to nothing and may be asked for again. */
const FAILED_MAX = 1_024;
const MANY_FAILED = `more than ${FAILED_MAX} turns came to nothing`;
/** Number of newest segments that a prompt may continue with recorded tokens: agents go back and forth between branches. */
const SEGMENTS_TRIED = 4;

export class Trajectories {
  readonly #options: TrajectoriesOptions;
  /** Sessions, the least recently used first. */
  readonly #sessions = new Set<Session>();
  /** The runs of each session, by its name and its group. */
  readonly #runs = new Map<string, Map<string | null, Session[]>>();
  /** The sessions of turns that run, by request: one that is over by then gets the turn all the same. */
  readonly #turnsOf = new Map<number, Session>();
  readonly #dropped = new Map<string, string>();
  #bytes = 0;

  constructor(options: TrajectoriesOptions) {
    this.#options = options;
  }

  get kept(): Kept {
    return { bytes: this.#bytes, bytesMax: this.#options.bytesMax, count: this.#sessions.size };
  }

  /** Begins a turn of the session. It must ask for one response: the agent goes on from one alone. */
  began({ name, group }: SessionName, requests: readonly RolloutRequest[]): void {
    const [request] = requests;
    if (request === undefined || requests.length > 1) {
      const reason = `a turn asked for ${requests.length} responses, and is not recorded`;
      this.#happened({ kind: "flawed", name, group, reason });
      return;
    }
    const { requestId, prompt } = request.spec;
    this.#happened({ kind: "began", name, group, requestId, prompt: promptKey(prompt) });
  }

  /** Ends a turn with what its client gets: nothing behind a stop string. */
  ended(
    request: RolloutRequest,
    { tokens, finish, toolCalls }: Pick<Turn, "finish" | "toolCalls"> & { readonly tokens: number },
  ): void {
    const { spec, response } = request;
    const { requestId } = spec;
    const session = this.#turnsOf.get(requestId);
    if (session === undefined) return;
    if (finish === "abort") {
      this.failed(request, `was given up after ${tokens} tokens (${finish})`);
      return;
    }
    const { name, group, trajectory, running } = session;
    const { segment, parent, shared } = trajectory.placeOf(spec.prompt);
    const turn: Turn = {
      requestId,
      iteration: this.#options.iteration(),
      promptTokens: spec.prompt.length,
      beganS: running.get(requestId)?.beganS ?? 0,
      endedS: this.#options.nowMs() / 1000,
      finish,
      cachedTokens: response.promptTokensCached,
      adapter: spec.sampling.adapter ?? null,
      toolCalls,
      place: { segment, parent },
      news: spec.prompt.slice(shared),
      output: response.tokens().slice(0, tokens),
      logprobs: response.logprobs().slice(0, tokens),
      spans: this.#spansOf(request, tokens),
    };
    this.#happened({ kind: "ended", name, group, turn });
  }

  /** Ends a turn whose client gets no response. */
  failed(request: RolloutRequest, problem: string): void {
    const { requestId } = request.spec;
    const session = this.#turnsOf.get(requestId);
    if (session === undefined) return;
    const { name, group } = session;
    const reason = `response ${requestId} ${problem}`;
    this.#happened({ kind: "failed", name, group, requestId, reason });
  }

  /** Ends the sessions with this name; returns how many there were. */
  end(name: string): number {
    const groups = [...(this.#runs.get(name)?.keys() ?? [])];
    const open = groups.filter((group) => this.#known({ name, group }) !== null);
    for (const group of open) this.#happened({ kind: "over", name, group });
    return open.length;
  }

  /** Sessions that match, the least recently used first. */
  *sessions(isMeant: (session: Session) => boolean): Generator<Session> {
    for (const session of [...this.#sessions]) if (isMeant(session)) yield session;
  }

  stateOf({ running, isOver, lastMs }: Session): "running" | "open" | "ended" {
    const { nowMs, msMax } = this.#options;
    if (running.size > 0) return "running";
    return isOver || nowMs() - lastMs > msMax ? "ended" : "open";
  }

  /** Texts that its next prompt may begin with: the ends of the turns of its newest segments, the shortest first. */
  textsBefore({ name, group }: SessionName): (() => Int32Array)[][] {
    return this.#known({ name, group })?.trajectory.endsOfTurns(SEGMENTS_TRIED) ?? [];
  }

  /** Why a session with this name is gone; null: none is. */
  whyDropped(name: string): string | null {
    for (const [key, reason] of this.#dropped) if (JSON.parse(key)[0] === name) return reason;
    return null;
  }

  /** Forgets all runs of the session, for good. */
  forget({ name, group }: SessionName): void {
    this.#happened({ kind: "dropped", name, group, reason: "a client deleted it" });
  }

  /** Applies the events that earlier processes kept, in order. Turns that ran when the last one ended have failed. */
  restore(events: Iterable<TrajectoryEvent | Stopped>): void {
    let isWhole = true;
    for (const event of events) {
      isWhole = event.kind === "stopped";
      if (event.kind === "stopped") continue;
      this.#apply(event);
      this.#shrink();
    }
    for (const { name, group, running, isOver } of [...this.#sessions]) {
      for (const requestId of [...running.keys()]) {
        const reason = `the server ended while response ${requestId} ran`;
        this.#happened({ kind: "failed", name, group, requestId, reason });
      }
      if (!isWhole && !isOver) this.#happened({ kind: "flawed", name, group, reason: KILLED });
    }
  }

  #happened(happened: Happened): void {
    const number = this.#known(happened, requestOf(happened))?.events ?? 0;
    const event = { ...happened, number };
    this.#apply(event);
    this.#options.keep?.(event);
    this.#shrink();
  }

  #apply(event: TrajectoryEvent): void {
    if (event.kind === "dropped") {
      this.#drop(event, event.reason);
      return;
    }
    const session = this.#known(event, requestOf(event)) ?? this.#begin(event);
    if (event.number !== session.events && event.kind !== "over") {
      this.#drop(event, CUT);
      return;
    }
    const { running, failed, faults, trajectory } = session;
    const nowMs = this.#options.nowMs();
    session.events += 1;
    session.lastMs = nowMs;
    this.#sessions.delete(session);
    this.#sessions.add(session);
    switch (event.kind) {
      case "began":
        running.set(event.requestId, { prompt: event.prompt, beganS: nowMs / 1000 });
        this.#turnsOf.set(event.requestId, session);
        break;
      case "ended": {
        const prompt = this.#endTurn(session, event.turn.requestId);
        if (prompt !== undefined) failed.delete(prompt);
        this.#bytes -= trajectory.bytes;
        trajectory.add(event.turn);
        this.#bytes += trajectory.bytes;
        break;
      }
      case "failed": {
        const prompt = this.#endTurn(session, event.requestId);
        if (prompt === undefined) break;
        if (failed.size < FAILED_MAX) failed.set(prompt, event.reason);
        else if (!failed.has(prompt)) faults.add(MANY_FAILED);
        break;
      }
      case "flawed":
        if (faults.size < FLAWS_MAX) faults.add(event.reason);
        break;
      case "over":
        session.isOver = true;
    }
  }

  /** The session that an event is about; null: a new one, where there is none or the last with its name is over. */
  #known({ name, group }: SessionName, turn: number | null = null): Session | null {
    const own = turn === null ? null : this.#turnsOf.get(turn);
    if (own?.name === name && own.group === group) return own;
    const last = this.#runs.get(name)?.get(group)?.at(-1);
    return last === undefined || last.isOver ? null : last;
  }

  #begin(of: SessionName): Session {
    const key = keyOf(of);
    const groups = this.#runs.getOrInsertComputed(of.name, () => new Map());
    const runs: Session[] = groups.getOrInsertComputed(of.group, () => []);
    const session = new Session(of, runs.length + 1, this.#dropped.get(key));
    this.#dropped.delete(key);
    runs.push(session);
    this.#sessions.add(session);
    this.#bytes += SESSION_OVERHEAD;
    return session;
  }

  /** Returns the turn's prompt; undefined: it did not run. */
  #endTurn({ running }: Session, requestId: number): number | undefined {
    const prompt = running.get(requestId)?.prompt;
    running.delete(requestId);
    this.#turnsOf.delete(requestId);
    return prompt;
  }

  #drop(of: SessionName, reason: string): void {
    const { name, group } = of;
    const key = keyOf(of);
    const groups = this.#runs.get(name);
    for (const session of groups?.get(group) ?? []) {
      this.#sessions.delete(session);
      this.#bytes -= SESSION_OVERHEAD + session.trajectory.bytes;
      for (const requestId of [...session.running.keys()]) this.#endTurn(session, requestId);
    }
    groups?.delete(group);
    if (groups?.size === 0) this.#runs.delete(name);
    this.#dropped.delete(key);
    this.#dropped.set(key, reason);
    if (this.#dropped.size <= DROPPED_MAX) return;
    const [oldest] = this.#dropped.keys();
    if (oldest !== undefined) this.#dropped.delete(oldest);
  }

  #shrink(): void {
    const { bytesMax, keep } = this.#options;
    for (const { name, group } of this.#sessions) {
      if (this.#bytes <= bytesMax) return;
      const reason = `the trajectories of all sessions had more than ${bytesMax} bytes`;
      const event = { kind: "dropped", name, group, reason, number: 0 } as const;
      this.#apply(event);
      keep?.(event);
    }
  }

  #spansOf({ response }: RolloutRequest, tokens: number): WeightsSpan[] {
    const spans: WeightsSpan[] = [];
    for (const { epoch, offset, tokens: count } of response.chunks) {
      const added = Math.min(tokens - offset, count);
      if (added <= 0) continue;
      const before = spans.at(-1)?.epoch === epoch ? spans.pop() : undefined;
      const version = this.#options.version(epoch);
      spans.push({ tokens: (before?.tokens ?? 0) + added, epoch, version });
    }
    return spans;
  }
}

/** The request of the turn that an event is about, null: it begins one, or is about none. */
function requestOf(event: Happened): number | null {
  if (event.kind === "ended") return event.turn.requestId;
  return event.kind === "failed" ? event.requestId : null;
}

function keyOf({ name, group }: SessionName): string {
  return JSON.stringify([name, group]);
}
