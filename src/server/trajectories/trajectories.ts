// The trajectories of all named sessions, within a bound of bytes. A session is whole, or it says why it is not: a turn
// that was given up and was not asked for again, a part that the bound or a restart took. What happens now and what a
// file says of an earlier process change a session in one way, `apply`.

import type { RolloutRequest } from "../../core/request/buffer.ts";
import { promptKey } from "../../core/request/prompt-key.ts";
import { isCut } from "../../core/request/request.ts";
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

/** A session as readers see it. */
export interface Session extends SessionName {
  /** Number of the session among those of its name and group, from 1 on. */
  readonly run: number;
  readonly trajectory: Trajectory;
  readonly state: "running" | "open" | "ended";
  /** Reasons why it is not whole; empty: it is whole. */
  readonly flaws: readonly string[];
  /** Unix time of its last event, seconds. */
  readonly lastS: number;
}

interface Entry extends SessionName {
  readonly run: number;
  readonly trajectory: Trajectory;
  /** The prompt (see promptKey) of each running turn, by request. */
  readonly running: Map<number, number>;
  /** Reasons why turns failed, by prompt; a turn that repeats the prompt removes its reason. */
  readonly failed: Map<number, string>;
  readonly flaws: Set<string>;
  events: number;
  isOver: boolean;
  lastMs: number;
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
  readonly #entries = new Set<Entry>();
  /** The runs of each session, by its name and its group. */
  readonly #runs = new Map<string, Map<string | null, Entry[]>>();
  /** The sessions of turns that run, by request: one that is over by then gets the turn all the same. */
  readonly #turnsOf = new Map<number, Entry>();
  readonly #dropped = new Map<string, string>();
  /** Running turns by request, with the time at which each began. */
  readonly #running = new Map<RolloutRequest, SessionName & { readonly beganS: number }>();
  #bytes = 0;

  constructor(options: TrajectoriesOptions) {
    this.#options = options;
  }

  get kept(): Kept {
    return { bytes: this.#bytes, bytesMax: this.#options.bytesMax, count: this.#entries.size };
  }

  /** Begins a turn of the session. It must ask for one response: the agent goes on from one alone. */
  began({ name, group }: SessionName, requests: readonly RolloutRequest[]): void {
    const session = { name, group };
    const [request] = requests;
    if (request === undefined || requests.length > 1) {
      const reason = `a turn asked for ${requests.length} responses, and is not recorded`;
      this.#happened({ kind: "flawed", ...session, reason });
      return;
    }
    const { requestId, prompt } = request.spec;
    this.#running.set(request, { ...session, beganS: this.#nowS });
    this.#happened({ kind: "began", ...session, requestId, prompt: promptKey(prompt) });
  }

  /** Ends a turn with what its client gets: nothing behind a stop string. */
  ended(
    request: RolloutRequest,
    { tokens, finish, toolCalls }: Pick<Turn, "finish" | "toolCalls"> & { readonly tokens: number },
  ): void {
    const running = this.#running.get(request);
    if (running === undefined) return;
    if (isCut(finish)) {
      this.failed(request, `was given up after ${tokens} tokens (${finish})`);
      return;
    }
    this.#running.delete(request);
    const { name, group, beganS } = running;
    const { spec, response } = request;
    const entry = this.#known(running, spec.requestId);
    const trajectory = entry?.trajectory ?? new Trajectory();
    const { segment, parent, shared } = trajectory.placeOf(spec.prompt);
    const turn: Turn = {
      requestId: spec.requestId,
      iteration: this.#options.iteration(),
      promptTokens: spec.prompt.length,
      beganS,
      endedS: this.#nowS,
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
    const running = this.#running.get(request);
    if (running === undefined) return;
    this.#running.delete(request);
    const { requestId } = request.spec;
    const reason = `response ${requestId} ${problem}`;
    this.#happened({ kind: "failed", name: running.name, group: running.group, requestId, reason });
  }

  /** Ends the sessions with this name; returns how many there were. */
  end(name: string): number {
    const groups = [...(this.#runs.get(name)?.keys() ?? [])];
    const open = groups.filter((group) => this.#known({ name, group }) !== null);
    for (const group of open) this.#happened({ kind: "over", name, group });
    return open.length;
  }

  /** Sessions that match, the least recently used first. */
  *sessions(
    isMeant: (session: Pick<Session, "name" | "group" | "run" | "trajectory">) => boolean,
  ): Generator<Session> {
    for (const entry of [...this.#entries]) if (isMeant(entry)) yield this.#viewOf(entry);
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
    for (const { name, group, running, isOver } of [...this.#entries]) {
      for (const requestId of [...running.keys()]) {
        const reason = `the server ended while response ${requestId} ran`;
        this.#happened({ kind: "failed", name, group, requestId, reason });
      }
      if (!isWhole && !isOver) this.#happened({ kind: "flawed", name, group, reason: KILLED });
    }
  }

  get #nowS(): number {
    return this.#options.nowMs() / 1000;
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
    const entry = this.#known(event, requestOf(event)) ?? this.#begin(event);
    if (event.number !== entry.events && event.kind !== "over") {
      this.#drop(event, CUT);
      return;
    }
    entry.events += 1;
    entry.lastMs = this.#options.nowMs();
    this.#entries.delete(entry);
    this.#entries.add(entry);
    switch (event.kind) {
      case "began":
        entry.running.set(event.requestId, event.prompt);
        this.#turnsOf.set(event.requestId, entry);
        break;
      case "ended": {
        const prompt = this.#endTurn(entry, event.turn.requestId);
        if (prompt !== undefined) entry.failed.delete(prompt);
        this.#bytes -= entry.trajectory.bytes;
        entry.trajectory.add(event.turn);
        this.#bytes += entry.trajectory.bytes;
        break;
      }
      case "failed": {
        const prompt = this.#endTurn(entry, event.requestId);
        if (prompt === undefined) break;
        if (entry.failed.size < FAILED_MAX) entry.failed.set(prompt, event.reason);
        else if (!entry.failed.has(prompt)) entry.flaws.add(MANY_FAILED);
        break;
      }
      case "flawed":
        if (entry.flaws.size < FLAWS_MAX) entry.flaws.add(event.reason);
        break;
      case "over":
        entry.isOver = true;
    }
  }

  /** The session that an event is about; null: a new one, where there is none or the last with its name is over. */
  #known({ name, group }: SessionName, turn: number | null = null): Entry | null {
    const own = turn === null ? null : this.#turnsOf.get(turn);
    if (own?.name === name && own.group === group) return own;
    const last = this.#runs.get(name)?.get(group)?.at(-1);
    return last === undefined || last.isOver ? null : last;
  }

  #begin({ name, group }: SessionName): Entry {
    const key = keyOf({ name, group });
    const groups = this.#runs.getOrInsertComputed(name, () => new Map<string | null, Entry[]>());
    const runs = groups.getOrInsertComputed(group, () => []);
    const gone = this.#dropped.get(key);
    this.#dropped.delete(key);
    const entry: Entry = {
      name,
      group,
      run: runs.length + 1,
      trajectory: new Trajectory(),
      running: new Map(),
      failed: new Map(),
      flaws: new Set(gone === undefined ? [] : [`what came before is gone: ${gone}`]),
      events: 0,
      isOver: false,
      lastMs: 0,
    };
    runs.push(entry);
    this.#entries.add(entry);
    this.#bytes += SESSION_OVERHEAD;
    return entry;
  }

  /** Returns the turn's prompt; undefined: it did not run. */
  #endTurn({ running }: Entry, requestId: number): number | undefined {
    const prompt = running.get(requestId);
    running.delete(requestId);
    this.#turnsOf.delete(requestId);
    return prompt;
  }

  #drop(of: SessionName, reason: string): void {
    const { name, group } = of;
    const key = keyOf(of);
    const groups = this.#runs.get(name);
    for (const entry of groups?.get(group) ?? []) {
      this.#entries.delete(entry);
      this.#bytes -= SESSION_OVERHEAD + entry.trajectory.bytes;
      for (const requestId of [...entry.running.keys()]) this.#endTurn(entry, requestId);
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
    for (const { name, group } of this.#entries) {
      if (this.#bytes <= bytesMax) return;
      const reason = `the trajectories of all sessions had more than ${bytesMax} bytes`;
      const event = { kind: "dropped", name, group, reason, number: 0 } as const;
      this.#apply(event);
      keep?.(event);
    }
  }

  #spansOf({ response }: RolloutRequest, tokens: number): WeightsSpan[] {
    const spans: WeightsSpan[] = [];
    let left = tokens;
    for (const chunk of response.chunks) {
      const count = Math.min(left, chunk.tokens);
      if (count === 0) continue;
      left -= count;
      const before = spans.at(-1);
      if (before?.epoch === chunk.epoch) {
        spans[spans.length - 1] = { ...before, tokens: before.tokens + count };
      } else {
        const { epoch } = chunk;
        spans.push({ tokens: count, epoch, version: this.#options.version(epoch) });
      }
    }
    return spans;
  }

  #viewOf(entry: Entry): Session {
    const { name, group, run, trajectory, running, failed, flaws, isOver, lastMs } = entry;
    const idleMs = this.#options.nowMs() - lastMs;
    const isIdle = isOver || idleMs > this.#options.msMax;
    const state = running.size > 0 ? "running" : isIdle ? "ended" : "open";
    const runs = [...running.keys()].map((id) => `response ${id} runs`);
    return {
      name,
      group,
      run,
      trajectory,
      state,
      flaws: [...flaws, ...failed.values(), ...runs],
      lastS: lastMs / 1000,
    };
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
