// The draft server of the paper (Table 5), without its sockets: aggregates the tokens of each group
// by response and answers what a client lacks. A state machine: one message in, one answer out, time
// passed in. It never pushes, and keeps nothing about a client but its name. A connection begins with a hello; peers of
// another protocol version or release, and messages out of place, are refused.

import { assert } from "../../base/assert.ts";
import type { Clock } from "../../base/clock.ts";
import { type GroupId, type WeightEpoch, weightEpoch } from "../../base/ids.ts";
import {
  COUNT_BYTES,
  DELTA_OVERHEAD_BYTES,
  DRAFT_PROTOCOL_VERSION,
  DRAFT_SERVER_LIMITS,
  type DraftServerLimits,
  FRAME_BYTES_MIN,
  FRAME_OVERHEAD_BYTES,
  GROUP_OVERHEAD_BYTES,
  idBytes,
  TOKEN_BYTES,
} from "./limits.ts";
import type {
  AnswerStatus,
  Budget,
  CacheState,
  ClientMessage,
  Fetch,
  Fetched,
  FetchedGroup,
  FetchPast,
  Hello,
  Past,
  Registered,
  RegisterGroup,
  SampleBehind,
  SampleDelta,
  ServerMessage,
  Telemetry,
  Update,
  Updated,
  UpdateRefusal,
} from "./message.ts";
import { type ResponseSource, type ServerGroup, ServerGroups } from "./server-groups.ts";

/** Receives the telemetry of engines with the plugin, and sets their draft budgets. */
export interface EngineReports {
  readonly telemetryMs: number;
  /** `engine`: the name it gave itself, "" if none. */
  report(engine: string, telemetry: Telemetry): Budget;
}

export interface DraftPeer {
  /** The name that it gave itself; null: it has not said hello. */
  engine: string | null;
}

export interface PeerRefusal {
  readonly kind: "refuse";
  readonly reason: "version" | "unexpected_message" | "invalid_message";
  readonly problem: string;
}

export interface DraftServerOptions {
  readonly clock: Clock;
  /** Any number below 2^32; a restarted server should take another. */
  readonly instanceId: number;
  readonly limits?: Partial<DraftServerLimits>;
  /** true: `advance` alone begins weight epochs, and messages of a newer one are stale. false: the first of them begins it. */
  readonly leads?: boolean;
  /** Responses of this process, which clients need not send. */
  readonly source?: ResponseSource;
  /** Absent: telemetry is refused. */
  readonly reports?: EngineReports;
  /** Release of Foretoken: clients of another one are refused. Not given: any may connect. */
  readonly release?: string;
}

/** Weight updates that a peer may have seen and the server not: more than a day's, at one a minute and a half. */
export const EPOCHS_AHEAD_MAX = 1024;

export class DraftServer {
  readonly limits: DraftServerLimits;
  readonly #options: DraftServerOptions;
  readonly #clock: Clock;
  readonly #groups: ServerGroups;
  readonly #leads: boolean;
  readonly #past: ResponseSource["past"];
  /** Tokens that were sent: of this epoch, and of earlier ones. */
  readonly #counts = { tokensFetched: 0, tokensPast: 0 };
  #epoch = weightEpoch(0);

  constructor(options: DraftServerOptions) {
    this.limits = { ...DRAFT_SERVER_LIMITS, ...options.limits };
    assert(this.limits.frameBytesMax >= FRAME_BYTES_MIN, "a frame has room for a group's name");
    this.#options = options;
    this.#clock = options.clock;
    this.#leads = options.leads ?? false;
    this.#groups = new ServerGroups(this.limits, options.source ?? null);
    this.#past = options.source?.past;
  }

  get epoch(): WeightEpoch {
    return this.#epoch;
  }

  receive(peer: DraftPeer, message: ClientMessage): ServerMessage | PeerRefusal {
    const { reports } = this.#options;
    if (message.kind === "hello") return this.#greet(peer, message);
    if (peer.engine === null) return unexpected(`${message.kind} before hello`);
    // One begun by mistake would make every other peer's messages stale. A new server that does not lead takes the first.
    const isNew = !this.#leads && this.#epoch === 0;
    if (!isNew && message.epoch > this.#epoch + EPOCHS_AHEAD_MAX) {
      const bound = `more than ${EPOCHS_AHEAD_MAX} ahead of the server's ${this.#epoch}`;
      const problem = `epoch is ${message.epoch}, ${bound}`;
      return { kind: "refuse", reason: "invalid_message", problem };
    }
    switch (message.kind) {
      case "register_group":
        return this.register(message);
      case "update":
        return this.update(message);
      case "fetch":
        return this.fetchDeltas(message);
      case "telemetry":
        if (reports === undefined) return unexpected("telemetry is not asked for here");
        return reports.report(peer.engine, message);
      case "fetch_past":
        if (this.#past === undefined) return unexpected("there is no history here");
        return this.fetchPast(message);
    }
  }

  #greet(
    peer: DraftPeer,
    { protocolVersion: version, engine = "", release = "" }: Hello,
  ): ServerMessage | PeerRefusal {
    const { release: served, reports, instanceId } = this.#options;
    const protocolVersion = DRAFT_PROTOCOL_VERSION;
    const refused = (problem: string) => ({ kind: "refuse", reason: "version", problem }) as const;
    if (peer.engine !== null) return unexpected("a second hello");
    if (version !== protocolVersion) {
      return refused(`draft protocol ${version}; this server speaks ${protocolVersion}`);
    }
    if (release !== "" && served !== undefined && release !== served) {
      const fix = `install foretoken[vllm]==${served} beside vLLM`;
      return refused(`plugin ${release}, sidecar ${served}: ${fix}`);
    }
    peer.engine = engine;
    const { frameBytesMax } = this.limits;
    return {
      kind: "welcome",
      protocolVersion,
      instanceId,
      epoch: this.#epoch,
      frameBytesMax,
      ...(reports && { telemetryMs: reports.telemetryMs }),
      ...(this.#past && { hasPast: true }),
    };
  }

  /** Begins a weight epoch: every group of the one before is dropped. Nothing, if it is not newer. */
  advance(epoch: WeightEpoch): void {
    if (epoch <= this.#epoch) return;
    this.#epoch = epoch;
    this.#groups.clear();
  }

  /** Idempotent: registering again keeps the logs and renews the lifetime. */
  register(message: RegisterGroup): Registered {
    const { groupId } = message;
    const status = this.#admit(message.epoch);
    const epoch = this.#epoch;
    const answer = { kind: "registered", epoch, groupId, version: 0, have: [] } as const;
    if (status !== "ok") return { ...answer, status };
    const nowMs = this.#clock.nowMs();
    const known = this.#groups.use(groupId, nowMs);
    if (known !== null && !isEqual(known.prompt, message.prompt)) {
      return { ...answer, status: "conflict" };
    }
    const { prompt, ttlMs } = message;
    const group = known ?? this.#groups.create(groupId, { prompt, ttlMs, nowMs });
    if (group === null) return { ...answer, status: "full" };
    group.ttlMs = Math.max(group.ttlMs, ttlMs);
    this.#groups.catchUp(group, nowMs);
    const have = Array.from(group.logs, (log) => log?.length ?? 0);
    return { ...answer, status, version: group.tokens, have };
  }

  update(message: Update): Updated {
    const status = this.#admit(message.epoch);
    const nowMs = this.#clock.nowMs();
    const refusals: UpdateRefusal[] = [];
    // Refusals that do not fit in a frame are omitted: a fetch shows what the server lacks.
    const room = this.#room();
    const refuse = (refusal: UpdateRefusal) => {
      if (take(room, idBytes(refusal.groupId) + GROUP_OVERHEAD_BYTES)) refusals.push(refusal);
    };
    for (const { groupId, deltas } of status === "ok" ? message.groups : []) {
      const group = this.#groups.use(groupId, nowMs);
      if (group === null) {
        refuse({ groupId, sampleIndex: 0, reason: "unknown", have: 0 });
        continue;
      }
      for (const delta of deltas) {
        const refusal = this.#groups.append(group, delta, nowMs);
        if (refusal !== null) refuse({ groupId, sampleIndex: delta.sampleIndex, ...refusal });
      }
      this.#groups.measure(group);
    }
    return { kind: "updated", epoch: this.#epoch, status, refusals };
  }

  /** The answer fits in a frame; `more`: something was left for the next one. */
  fetchDeltas(message: Fetch): Fetched {
    const status = this.#admit(message.epoch);
    const nowMs = this.#clock.nowMs();
    const groups: FetchedGroup[] = [];
    const unknown: GroupId[] = [];
    const room = this.#room();
    for (const state of status === "ok" ? message.states : []) {
      const group = this.#groups.use(state.groupId, nowMs);
      // A frame that is full stays full; the rest is only kept alive.
      if (room.isSpent) continue;
      if (group !== null) {
        this.#groups.catchUp(group, nowMs);
        const fetched = lacking(group, state, room);
        if (fetched === null) continue;
        groups.push(fetched);
        for (const { tokens } of fetched.deltas) this.#counts.tokensFetched += tokens.length;
      } else if (take(room, idBytes(state.groupId) + COUNT_BYTES)) {
        unknown.push(state.groupId);
      }
    }
    const epoch = this.#epoch;
    return { kind: "fetched", epoch, status, groups, unknown, more: room.isSpent };
  }

  fetchPast({ epoch, groupId, have }: FetchPast): Past {
    const status = this.#admit(epoch);
    const isKnown = status === "ok" && this.#groups.use(groupId, this.#clock.nowMs()) !== null;
    const all = isKnown ? (this.#past?.(groupId) ?? []) : [];
    const responses: Int32Array[] = [];
    const room = this.#room();
    room.bytes -= idBytes(groupId);
    for (let i = have; i < all.length; i += 1) {
      const tokens = all[i] ?? new Int32Array(0);
      const roomTokens = Math.floor((room.bytes - DELTA_OVERHEAD_BYTES) / TOKEN_BYTES);
      // One that fits in no frame is cut: its beginning is of use too.
      if (tokens.length > roomTokens && responses.length > 0) break;
      const part = tokens.subarray(0, roomTokens);
      responses.push(part);
      this.#counts.tokensPast += part.length;
      room.bytes -= DELTA_OVERHEAD_BYTES + part.length * TOKEN_BYTES;
    }
    const more = have + responses.length < all.length;
    return { kind: "past", epoch: this.#epoch, status, groupId, have, responses, more };
  }

  /** Frees expired groups. The owner calls it periodically; it affects only memory. */
  sweep(): void {
    this.#groups.sweep(this.#clock.nowMs());
  }

  /** Counters since the server began; groups, bytes and epoch as of now. */
  stats() {
    const { taken, own, evicted, size, bytes } = this.#groups;
    return {
      ...this.#counts,
      /** Tokens taken into logs, and those among them that the source had. */
      tokensTaken: taken,
      tokensOwn: own,
      epoch: this.#epoch,
      groups: size,
      bytes,
      /** For lack of room. */
      groupsEvicted: evicted,
    };
  }

  #room(): Room {
    return { bytes: this.limits.frameBytesMax - FRAME_OVERHEAD_BYTES, isSpent: false };
  }

  /** A newer epoch drops everything: its drafts would be of other weights. */
  #admit(epoch: WeightEpoch): AnswerStatus {
    if (!this.#leads) this.advance(epoch);
    return epoch === this.#epoch ? "ok" : "stale_epoch";
  }
}

function unexpected(problem: string): PeerRefusal {
  return { kind: "refuse", reason: "unexpected_message", problem };
}

interface Room {
  bytes: number;
  /** Something did not fit. */
  isSpent: boolean;
}

function take(room: Room, bytes: number): boolean {
  if (room.bytes < bytes) {
    room.isSpent = true;
    return false;
  }
  room.bytes -= bytes;
  return true;
}

/** Tokens of the group that the client lacks, and those that the server lacks; null: neither. */
function lacking(group: ServerGroup, state: CacheState, room: Room): FetchedGroup | null {
  const deltas: SampleDelta[] = [];
  const behind: SampleBehind[] = [];
  const base = idBytes(group.groupId) + GROUP_OVERHEAD_BYTES;
  let isBaseTaken = false;
  const samples = Math.max(group.logs.length, state.have.length);
  for (let sampleIndex = 0; sampleIndex < samples; sampleIndex += 1) {
    const offset = state.have[sampleIndex] ?? 0;
    const log = group.logs[sampleIndex];
    const have = log?.length ?? 0;
    if (offset === have) continue;
    isBaseTaken ||= take(room, base);
    if (!isBaseTaken) return null;
    if (offset > have) {
      // Lost tokens of a response of this process need not be sent again.
      if (log?.isFollowed !== true && take(room, DELTA_OVERHEAD_BYTES))
        behind.push({ sampleIndex, have });
      continue;
    }
    if (log === undefined || !take(room, DELTA_OVERHEAD_BYTES)) continue;
    const fitting = Math.min(have - offset, Math.floor(room.bytes / TOKEN_BYTES));
    if (fitting < have - offset) room.isSpent = true;
    if (fitting === 0) continue;
    take(room, fitting * TOKEN_BYTES);
    deltas.push({ sampleIndex, offset, tokens: log.view(offset, offset + fitting) });
  }
  if (deltas.length === 0 && behind.length === 0) return null;
  return { groupId: group.groupId, version: group.tokens, deltas, behind };
}

function isEqual(a: Int32Array, b: Int32Array): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i += 1) if (a[i] !== b[i]) return false;
  return true;
}
