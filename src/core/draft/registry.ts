// The registry of draft groups: which worker holds a replica of which group, and how much of each response it has been
// sent. It multicasts what a worker makes to every worker that runs a sibling, in rounds, so that messages stay few and
// turns short. The log of a response's tokens is its column in the request buffer, which the draft service reads as well:
// who follows it, a worker here or a client there, is a cursor. A response's sequence is its number in the group; replicas
// keep the tokens of a sequence, so one that restarts, perhaps with other tokens, gets the next that is free, and the old
// one stays as a sibling that does not grow. Responses beyond those that a replica has room for (SEQUENCES_MAX of a group)
// have no source: they are neither sent nor drafted for.

import type { Clock } from "../base/clock.ts";
import type { GroupId, WorkerId } from "../base/ids.ts";
import type { Group, RolloutRequest } from "../request/buffer.ts";
import type { TokenColumn } from "../request/columns.ts";
import { SEQUENCES_MAX } from "../wasm/abi.ts";
import type { DraftSource, GroupUpdate } from "./drafter.ts";

export const DRAFT_MODES = ["grouped", "off"] as const;
/** grouped: from all responses of the group. */
export type DraftMode = (typeof DRAFT_MODES)[number];

/**
 * Siblings' tokens go out to each worker at most so often. A message costs the engine it goes to about as
 * much as a hundred tokens of drafting, and a draft loses little by siblings that lag a few dozen tokens.
 */
const DELTA_INTERVAL_MS = 50;
/** Requests whose tokens go out in one turn, at most, so that no turn is long. */
const DELTA_REQUESTS_MAX = 256;
/** And in the long run: with more requests than that the pauses grow, and deltas take a few percent of a core. */
const DELTA_REQUESTS_PER_MS = 20;

/** The cursor of the worker that makes the tokens, and so has all of them. */
const MAKES = Number.POSITIVE_INFINITY;
const NO_TOKENS = new Int32Array(0);

/** A response and who follows it. In a later turn its log begins with the new part of its prompt. */
interface Log {
  readonly request: RolloutRequest;
  readonly source: DraftSource;
  /** Tokens that each worker has or has been sent. Absent: none. */
  readonly cursors: Map<WorkerId, number>;
  /** The workers with a replica of its group. */
  readonly holders: Set<WorkerId>;
}

export interface DraftRegistryOptions {
  readonly mode: DraftMode;
  readonly clock: Clock;
  readonly post: (workerId: WorkerId, update: GroupUpdate) => void;
  /** Responses to a group's prompt of earlier weight epochs, the latest first. */
  readonly past: (group: Group) => readonly Int32Array[];
}

export class DraftRegistry {
  readonly #options: DraftRegistryOptions;
  /** Logs by request index, which later requests may reuse. */
  readonly #logs: (Log | undefined)[] = [];
  readonly #holders = new Map<GroupId, Set<WorkerId>>();
  /** Requests of which a holder may lack tokens, those that have waited longest first. */
  readonly #stale = new Set<Log>();
  /** Sequences of each group that are taken, those of attempts that were given up included. */
  readonly #sequences = new Map<Group, Set<number>>();
  #dueMs = Number.NEGATIVE_INFINITY;
  /** Requests whose tokens are still to go out in this round. */
  #left = 0;

  constructor(options: DraftRegistryOptions) {
    this.#options = options;
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
   * The request is about to run on the worker, which makes its tokens from now on: its replica gets to know the group, and
   * the tokens that it lacks of this request. Those of siblings can follow.
   */
  begin(request: RolloutRequest, workerId: WorkerId): void {
    const log = this.#log(request);
    if (log === null) return;
    const { source, cursors, holders } = log;
    const { group, response } = request;
    const { column } = response;
    const { post, past } = this.#options;
    if (!holders.has(workerId)) {
      holders.add(workerId);
      for (const sibling of group.requests) {
        const other = sibling.response.column.length > 0 ? this.#log(sibling) : null;
        if (other !== null) this.#stale.add(other);
      }
      const { groupId, prompt } = group;
      post(workerId, { kind: "register_group", groupId, prompt, past: past(group) });
    }
    // The worker that made them has all that there is.
    for (const [id, at] of cursors) if (at === MAKES) cursors.set(id, column.length);
    const offset = cursors.get(workerId) ?? 0;
    cursors.set(workerId, MAKES);
    if (offset >= column.length) return;
    post(workerId, { kind: "delta", ...source, offset, tokens: column.view(offset).slice() });
  }

  /** The request's worker made tokens; they are in its response already. */
  generated(request: RolloutRequest): void {
    const log = this.#known(request);
    if (log !== null && log.holders.size > 1) this.#stale.add(log);
  }

  /** The worker's replica has only `have` tokens of a sequence of the group. */
  missing(group: Group, sampleIndex: number, workerId: WorkerId, have: number): void {
    for (const request of group.requests) {
      const log = this.#known(request);
      if (log?.source.sampleIndex !== sampleIndex) continue;
      log.cursors.set(workerId, have);
      this.#stale.add(log);
    }
  }

  post(): void {
    if (this.#left === 0) {
      const nowMs = this.#options.clock.nowMs();
      if (nowMs < this.#dueMs) return;
      this.#left = this.#stale.size;
      this.#dueMs = nowMs + Math.max(DELTA_INTERVAL_MS, this.#left / DELTA_REQUESTS_PER_MS);
    }
    let count = Math.min(this.#left, DELTA_REQUESTS_MAX);
    this.#left -= count;
    for (const log of this.#stale) {
      if (count === 0) return;
      count -= 1;
      this.#stale.delete(log);
      this.#bringUpToDate(log);
    }
  }

  /** The group has no use any more. */
  retired(group: Group): void {
    const { groupId, requests } = group;
    for (const request of requests) this.restarted(request);
    this.#sequences.delete(group);
    for (const workerId of this.#holders.get(groupId) ?? []) {
      this.#options.post(workerId, { kind: "drop_group", groupId });
    }
    this.#holders.delete(groupId);
  }

  /** The response restarts, perhaps with other tokens. */
  restarted(request: RolloutRequest): void {
    const log = this.#known(request);
    if (log === null) return;
    this.#stale.delete(log);
    this.#logs[request.index] = undefined;
  }

  /** No worker has a replica any more. */
  clear(): void {
    this.#logs.length = 0;
    this.#holders.clear();
    this.#stale.clear();
    this.#sequences.clear();
  }

  forget(workerId: WorkerId): void {
    for (const holders of this.#holders.values()) holders.delete(workerId);
    for (const log of this.#logs) log?.cursors.delete(workerId);
  }

  #bringUpToDate({ request, source, cursors, holders }: Log): void {
    const { column } = request.response;
    let from = -1;
    let tokens = NO_TOKENS;
    for (const workerId of holders) {
      const offset = cursors.get(workerId) ?? 0;
      if (offset >= column.length) continue;
      // Most holders lack the same tokens: they share one copy.
      if (offset !== from) tokens = column.view(offset).slice();
      from = offset;
      cursors.set(workerId, column.length);
      this.#options.post(workerId, { kind: "delta", ...source, offset, tokens });
    }
  }

  #known(request: RolloutRequest): Log | null {
    const log = this.#logs[request.index];
    return log?.request === request ? log : null;
  }

  #log(request: RolloutRequest): Log | null {
    const known = this.#known(request);
    if (known !== null || this.#options.mode === "off") return known;
    const source = this.#sourceOf(request);
    if (source === null) return null;
    const holders = this.#holders.getOrInsertComputed(source.groupId, () => new Set());
    const log: Log = { request, source, cursors: new Map(), holders };
    this.#logs[request.index] = log;
    return log;
  }

  #sourceOf({ spec, group }: RolloutRequest): DraftSource | null {
    const taken = this.#sequences.getOrInsertComputed(group, () => new Set());
    let { sampleIndex } = spec;
    if (taken.has(sampleIndex)) sampleIndex = group.requests.length;
    while (taken.has(sampleIndex)) sampleIndex += 1;
    if (sampleIndex >= SEQUENCES_MAX) return null;
    taken.add(sampleIndex);
    const { groupId, leadTokens } = spec;
    const isTurn = leadTokens !== undefined && spec.prompt !== group.prompt;
    if (!isTurn) return { groupId, sampleIndex };
    return { groupId, sampleIndex, turn: { promptTokens: group.prompt.length, leadTokens } };
  }
}
