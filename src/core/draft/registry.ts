// The registry of draft groups: which worker holds a replica of which group, and how much of each response it has been
// sent. It multicasts what a worker makes to every worker that runs a sibling. The log of a response's tokens is its column
// in the request buffer, which the draft service reads as well: who follows it, a worker here or a client there, is a
// cursor. A response gets the next sequence of its group when it is first asked for; replicas keep the tokens of a sequence,
// so one that restarts, perhaps with other tokens, gets another, and the old one stays as a sibling that does not grow.
// Responses beyond those that a replica has room for (SEQUENCES_MAX of a group) have no source: they are neither sent nor
// drafted for.

import type { GroupId, WorkerId } from "../base/ids.ts";
import type { Group, RolloutRequest } from "../request/buffer.ts";
import type { TokenColumn } from "../request/columns.ts";
import { SEQUENCES_MAX } from "../wasm/abi.ts";
import type { DraftSource, GroupUpdate } from "./group-update.ts";

export const DRAFT_MODES = ["grouped", "off"] as const;
/** grouped: from all responses of the group. */
export type DraftMode = (typeof DRAFT_MODES)[number];

/** The cursor of the worker that makes the tokens, and so has all of them. */
const MAKES = Number.POSITIVE_INFINITY;

/** A response and who follows it. In a later turn its log begins with the new part of its prompt. */
interface Log {
  readonly request: RolloutRequest;
  readonly source: DraftSource;
  /** Tokens that each worker has or has been sent. Absent: none. */
  readonly cursors: Map<WorkerId, number>;
  /** The workers with a replica of its group. */
  readonly holders: Set<WorkerId>;
}

/** Update of one worker. */
export interface Multicast {
  readonly workerId: WorkerId;
  readonly update: GroupUpdate;
}

export class DraftRegistry {
  readonly #mode: DraftMode;
  readonly #past: (group: Group) => readonly Int32Array[];
  /** Logs by request index, which later requests may reuse. */
  readonly #logs: (Log | undefined)[] = [];
  /** Workers with a replica, by draft group. */
  readonly #holders = new Map<GroupId, Set<WorkerId>>();
  /** Requests of which a holder may lack tokens. */
  readonly #dirty = new Set<Log>();
  /** Sequences that each group has. */
  readonly #sequences = new Map<Group, number>();

  /** `past`: responses to a group's prompt of earlier weight epochs, the latest first. */
  constructor(mode: DraftMode, past: (group: Group) => readonly Int32Array[] = () => []) {
    this.#mode = mode;
    this.#past = past;
  }

  /** Requests with tokens that some replica lacks. */
  get staleCount(): number {
    return this.#dirty.size;
  }

  source(request: RolloutRequest): DraftSource | null {
    return this.#log(request)?.source ?? null;
  }

  /** The responses of a group by sequence, those alone that have one. */
  *responses(group: Group): Iterable<readonly [sampleIndex: number, tokens: TokenColumn]> {
    for (const request of group.requests) {
      const source = this.source(request);
      if (source !== null) yield [source.sampleIndex, request.response.column];
    }
  }

  /**
   * The request is about to run on the worker, which makes its tokens from now on: updates by which its replica knows the
   * group, and the tokens that the worker lacks of this request.
   */
  begin(request: RolloutRequest, workerId: WorkerId): GroupUpdate[] {
    const log = this.#log(request);
    if (log === null) return [];
    const { source, cursors, holders } = log;
    const { column } = request.response;
    const updates: GroupUpdate[] = [];
    if (!holders.has(workerId)) {
      holders.add(workerId);
      for (const sibling of request.group.requests) {
        const other = sibling.response.column.length > 0 ? this.#log(sibling) : null;
        if (other !== null) this.#dirty.add(other);
      }
      const { group } = request;
      const past = this.#past(group);
      const { groupId, prompt } = group;
      updates.push({ kind: "register_group", groupId, prompt, past });
    }
    // The worker that made them has all that there is.
    for (const [id, at] of cursors) if (at === MAKES) cursors.set(id, column.length);
    const offset = cursors.get(workerId) ?? 0;
    cursors.set(workerId, MAKES);
    if (offset < column.length) {
      updates.push({ kind: "delta", ...source, offset, tokens: column.view(offset).slice() });
    }
    return updates;
  }

  /** The request's worker made tokens; they are in its response already. */
  generated(request: RolloutRequest): void {
    const log = this.#known(request);
    if (log !== null && log.holders.size > 1) this.#dirty.add(log);
  }

  /** The worker's replica has only `have` tokens of a sequence of the group. */
  missing(group: Group, sampleIndex: number, workerId: WorkerId, have: number): void {
    for (const request of group.requests) {
      const log = this.#known(request);
      if (log?.source.sampleIndex !== sampleIndex) continue;
      log.cursors.set(workerId, have);
      this.#dirty.add(log);
    }
  }

  /** Brings all holders up to date with `countMax` requests, those that have waited longest. */
  *flush(countMax = Number.POSITIVE_INFINITY): Iterable<Multicast> {
    let count = 0;
    for (const log of this.#dirty) {
      if (count >= countMax) return;
      count += 1;
      this.#dirty.delete(log);
      yield* this.#deltas(log);
    }
  }

  /** The group has no use any more: updates to send. */
  retired(group: Group): Multicast[] {
    const { groupId: id, requests } = group;
    for (const request of requests) this.restarted(request);
    this.#sequences.delete(group);
    const holders = [...(this.#holders.get(id) ?? [])];
    this.#holders.delete(id);
    return holders.map((workerId) => ({
      workerId,
      update: { kind: "drop_group", groupId: id },
    }));
  }

  /** The response restarts, perhaps with other tokens. */
  restarted(request: RolloutRequest): void {
    const log = this.#known(request);
    if (log === null) return;
    this.#dirty.delete(log);
    this.#logs[request.index] = undefined;
  }

  /** No worker has a replica any more. */
  clear(): void {
    this.#logs.length = 0;
    this.#holders.clear();
    this.#dirty.clear();
    this.#sequences.clear();
  }

  /** The worker was removed. */
  forget(workerId: WorkerId): void {
    for (const holders of this.#holders.values()) holders.delete(workerId);
    for (const log of this.#logs) log?.cursors.delete(workerId);
  }

  *#deltas(log: Log): Iterable<Multicast> {
    const { column } = log.request.response;
    let from = -1;
    let tokens = NO_TOKENS;
    for (const workerId of log.holders) {
      const offset = log.cursors.get(workerId) ?? 0;
      if (offset >= column.length) continue;
      // Most holders lack the same tokens: they share one copy.
      if (offset !== from) tokens = column.view(offset).slice();
      from = offset;
      log.cursors.set(workerId, column.length);
      yield { workerId, update: { kind: "delta", ...log.source, offset, tokens } };
    }
  }

  #known(request: RolloutRequest): Log | null {
    const log = this.#mode === "off" ? undefined : this.#logs[request.index];
    return log?.request === request ? log : null;
  }

  #log(request: RolloutRequest): Log | null {
    if (this.#mode === "off") return null;
    const known = this.#known(request);
    if (known !== null) return known;
    const source = this.#sourceOf(request);
    if (source === null) return null;
    const holders = this.#holders.getOrInsertComputed(source.groupId, () => new Set());
    const log: Log = { request, source, cursors: new Map(), holders };
    this.#logs[request.index] = log;
    return log;
  }

  #sourceOf({ spec, group }: RolloutRequest): DraftSource | null {
    const sampleIndex = this.#sequences.get(group) ?? 0;
    if (sampleIndex >= SEQUENCES_MAX) return null;
    this.#sequences.set(group, sampleIndex + 1);
    const { groupId, leadTokens } = spec;
    const isTurn = leadTokens !== undefined && spec.prompt !== group.prompt;
    if (!isTurn) return { groupId, sampleIndex };
    return { groupId, sampleIndex, turn: { promptTokens: group.prompt.length, leadTokens } };
  }
}

const NO_TOKENS = new Int32Array(0);
