// The registry of draft groups: which worker holds a replica of which group, and how much of each
// response it has been sent. It multicasts what a worker makes to every worker that runs a sibling.
// The token log is the request buffer itself; nothing is stored twice.

import { present } from "../base/assert.ts";
import { groupId, type WorkerId } from "../base/ids.ts";
import type { Request } from "../request/buffer.ts";
import type { DraftSource, GroupUpdate } from "./group-update.ts";

export const DRAFT_MODES = ["grouped", "self", "off"] as const;
/** grouped: from all responses of the group. self: from the request's own text only. */
export type DraftMode = (typeof DRAFT_MODES)[number];

/** A replica outlives its last use by this long: longer than any pause between two chunks of a group. */
const REPLICA_TTL_MS = 600_000;

interface Replica {
  /** By request id: output tokens that the worker has or has been sent. */
  readonly sent: Map<number, number>;
  readonly groups: Set<string>;
  readonly dirty: Set<Request>;
}

export class DraftRegistry {
  readonly #mode: DraftMode;
  readonly #replicas = new Map<WorkerId, Replica>();
  /** Replicas know another beginning of these: they are drafted for no more. */
  readonly #restarted = new Set<Request>();

  constructor(mode: DraftMode) {
    this.#mode = mode;
  }

  source(request: Request): DraftSource | null {
    const { groupId: id, sampleIndex } = request.spec;
    if (this.#mode === "off" || this.#restarted.has(request)) return null;
    if (this.#mode === "grouped") return { groupId: id, sampleIndex };
    return { groupId: groupId(`${id}#${sampleIndex}`), sampleIndex: 0 };
  }

  /** The request is about to run on the worker: its group must be known there. Before `flush`. */
  dispatched(request: Request, workerId: WorkerId): GroupUpdate[] {
    const source = this.source(request);
    if (source === null) return [];
    const replica = this.#replica(workerId);
    const siblings = this.#mode === "grouped" ? request.group.requests : [request];
    if (replica.groups.has(source.groupId)) return [];
    replica.groups.add(source.groupId);
    for (const sibling of siblings) {
      replica.sent.set(sibling.spec.requestId, 0);
      if (sibling.response.length > 0 && !this.#restarted.has(sibling)) replica.dirty.add(sibling);
    }
    const { prompt } = request.spec;
    return [{ kind: "register_group", groupId: source.groupId, prompt, ttlMs: REPLICA_TTL_MS }];
  }

  /** `workerId` made tokens of the request; they are in its response already. */
  generated(request: Request, workerId: WorkerId): void {
    const source = this.source(request);
    if (source === null) return;
    for (const [id, replica] of this.#replicas) {
      if (!replica.groups.has(source.groupId)) continue;
      if (id === workerId) replica.sent.set(request.spec.requestId, request.response.length);
      else replica.dirty.add(request);
    }
  }

  /** The worker's replica has only `have` output tokens of the request. */
  missing(request: Request, workerId: WorkerId, have: number): void {
    const replica = this.#replica(workerId);
    replica.sent.set(request.spec.requestId, have);
    replica.dirty.add(request);
  }

  /** Deltas that bring the worker up to date: with all requests, or with one of them. */
  flush(workerId: WorkerId, only: Request | null = null): GroupUpdate[] {
    const replica = this.#replicas.get(workerId);
    if (replica === undefined || replica.dirty.size === 0) return [];
    const updates: GroupUpdate[] = [];
    for (const request of only === null ? replica.dirty : [only]) {
      if (!replica.dirty.delete(request)) continue;
      const source = present(this.source(request), "a dirty request has a source");
      const offset = replica.sent.get(request.spec.requestId) ?? 0;
      if (offset >= request.response.length) continue;
      updates.push({
        kind: "delta",
        ...source,
        offset,
        tokens: request.response.tokens(offset).slice(),
      });
      replica.sent.set(request.spec.requestId, request.response.length);
    }
    return updates;
  }

  /** The source has no use any more: updates to send, by worker. */
  retired(request: Request): Map<WorkerId, GroupUpdate[]> {
    const updates = new Map<WorkerId, GroupUpdate[]>();
    const siblings = this.#mode === "grouped" ? request.group.requests : [request];
    for (const sibling of siblings) this.#restarted.delete(sibling);
    const source = this.source(request);
    if (source === null) return updates;
    for (const [workerId, replica] of this.#replicas) {
      if (!replica.groups.delete(source.groupId)) continue;
      for (const sibling of siblings) {
        replica.sent.delete(sibling.spec.requestId);
        replica.dirty.delete(sibling);
      }
      updates.set(workerId, [{ kind: "drop_group", groupId: source.groupId }]);
    }
    return updates;
  }

  /** The response was taken back and begins anew, with other tokens perhaps. */
  restarted(request: Request): void {
    if (this.#mode === "off") return;
    this.#restarted.add(request);
    for (const replica of this.#replicas.values()) replica.dirty.delete(request);
  }

  /** No worker has a replica any more. */
  clear(): void {
    this.#replicas.clear();
  }

  /** The worker is gone. */
  forget(workerId: WorkerId): void {
    this.#replicas.delete(workerId);
  }

  /** Workers with deltas to send. */
  *stale(): Iterable<WorkerId> {
    for (const [workerId, replica] of this.#replicas) if (replica.dirty.size > 0) yield workerId;
  }

  #replica(workerId: WorkerId): Replica {
    let replica = this.#replicas.get(workerId);
    if (replica === undefined) {
      replica = { sent: new Map(), groups: new Set(), dirty: new Set() };
      this.#replicas.set(workerId, replica);
    }
    return replica;
  }
}
