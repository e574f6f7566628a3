// The groups that a draft server keeps: their token logs, lifetimes and bytes. Decides which group
// is dropped when there is no room: an expired one, else the least recently used. Knows no
// epochs and no messages.

import type { GroupId } from "../../base/ids.ts";
import type { TokenColumn } from "../../request/columns.ts";
import { type DraftServerLimits, SAMPLES_MAX, TOKEN_BYTES } from "./limits.ts";
import type { RefusalReason, SampleDelta } from "./message.ts";
import { TokenLog } from "./token-log.ts";

export interface ServerGroup {
  readonly groupId: GroupId;
  readonly prompt: Int32Array;
  /** Logs by sample index; null: none yet. */
  readonly logs: (TokenLog | null)[];
  ttlMs: number;
  usedAtMs: number;
  /** Counts the appends that added tokens. */
  version: number;
  bytes: number;
}

/** The owner of the groups' responses: a sidecar. */
export interface ResponseSource {
  /** Calls `take` with the tokens of each response of the group. */
  each(groupId: GroupId, take: (sampleIndex: number, tokens: TokenColumn) => void): void;
  /** null: it does not have it. */
  find(groupId: GroupId, sampleIndex: number): TokenColumn | null;
  /** Responses to the group's prompt of earlier weight epochs, the latest first. Absent: it keeps none. */
  readonly past?: (groupId: GroupId) => readonly Int32Array[];
}

/** Bytes of a group and a log beside their tokens: an estimate, so that empty ones count. */
const GROUP_BYTES = 512;
const LOG_BYTES = 256;
/** Looking for expired groups costs a walk over all of them. */
const SWEEP_MS = 1000;

export class ServerGroups {
  readonly #limits: DraftServerLimits;
  readonly #samplesMax: number;
  /** The group used longest ago comes first. */
  readonly #groups = new Map<GroupId, ServerGroup>();
  #bytes = 0;
  #sweptAtMs = Number.NEGATIVE_INFINITY;
  #evicted = 0;
  #followed = 0;
  readonly #source: ResponseSource | null;

  /** `source` null: all tokens come from clients. */
  constructor(limits: DraftServerLimits, source: ResponseSource | null) {
    this.#limits = limits;
    this.#source = source;
    this.#samplesMax = Math.min(limits.samplesMax, SAMPLES_MAX);
  }

  get size(): number {
    return this.#groups.size;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Tokens that logs have from the source, and not from a client before. */
  get followed(): number {
    return this.#followed;
  }

  /** Groups removed for lack of room. */
  get evicted(): number {
    return this.#evicted;
  }

  /** The group, used now; null: not registered, or expired. */
  use(groupId: GroupId, nowMs: number): ServerGroup | null {
    const group = this.#groups.get(groupId);
    if (group === undefined) return null;
    if (nowMs > group.usedAtMs + group.ttlMs) {
      this.#drop(group);
      return null;
    }
    group.usedAtMs = nowMs;
    this.#groups.delete(groupId);
    this.#groups.set(groupId, group);
    return group;
  }

  /** A new group, used now; null: it is larger than any room that could be made for it. */
  create(
    groupId: GroupId,
    options: { prompt: Int32Array; ttlMs: number; nowMs: number },
  ): ServerGroup | null {
    const bytes = GROUP_BYTES + options.prompt.length * TOKEN_BYTES;
    const { groupBytesMax, bytesMax, groupsMax } = this.#limits;
    if (bytes > Math.min(groupBytesMax, bytesMax)) return null;
    if (this.#groups.size >= groupsMax) this.#makeRoom(0, { nowMs: options.nowMs, slots: 1 });
    this.#makeRoom(bytes, { nowMs: options.nowMs });
    const { ttlMs, nowMs } = options;
    const prompt = options.prompt.slice();
    const group = { groupId, prompt, logs: [], ttlMs, usedAtMs: nowMs, version: 0, bytes };
    this.#groups.set(groupId, group);
    this.#bytes += bytes;
    return group;
  }

  /**
   * Appends to a log of a group that was used just now. The number of tokens added, or why none were;
   * others may be dropped to make room, the group itself never.
   */
  append(
    group: ServerGroup,
    delta: SampleDelta,
    nowMs: number,
  ): { added: number } | { reason: RefusalReason; have: number } {
    const { sampleIndex, offset, tokens } = delta;
    const known = this.#known(group, sampleIndex);
    const have = known?.length ?? 0;
    if (offset + tokens.length <= have) return { added: 0 };
    if (sampleIndex >= this.#samplesMax) return { reason: "full", have };
    const log = known ?? new TokenLog();
    const growth = log.growthBytes(offset, tokens.length) + (known === null ? LOG_BYTES : 0);
    const { groupBytesMax, bytesMax, windowTokens } = this.#limits;
    if (group.bytes + growth > Math.min(groupBytesMax, bytesMax)) return { reason: "full", have };
    this.#makeRoom(growth, { nowMs, kept: group });
    const before = log.bytes;
    const result = log.append(offset, tokens, windowTokens);
    if (result.kind === "gap") return { reason: "gap", have };
    if (known === null) this.#put(group, sampleIndex, log);
    this.#grow(group, log.bytes - before);
    if (result.kind === "held") return { reason: "held", have };
    group.version += 1;
    return { added: result.added };
  }

  /** Brings the group, used just now, up to date with what the source has; others may be dropped to make room. */
  catchUp(group: ServerGroup, nowMs: number): void {
    this.#source?.each(group.groupId, (sampleIndex, tokens) => {
      const isNew = tokens.length > 0 && sampleIndex < this.#samplesMax;
      if (isNew && (group.logs[sampleIndex] ?? null) === null)
        this.#follow(group, sampleIndex, tokens);
    });
    for (const log of group.logs) if (log?.isFollowed) this.#refresh(group, log);
    this.#makeRoom(0, { nowMs, kept: group });
  }

  clear(): void {
    this.#groups.clear();
    this.#bytes = 0;
  }

  /** Drops expired groups. */
  sweep(nowMs: number): void {
    this.#sweptAtMs = nowMs;
    for (const group of this.#groups.values()) {
      if (nowMs > group.usedAtMs + group.ttlMs) this.#drop(group);
    }
  }

  /** The current log of a response; null: none. */
  #known(group: ServerGroup, sampleIndex: number): TokenLog | null {
    const known = group.logs[sampleIndex] ?? null;
    if (known?.isFollowed) this.#refresh(group, known);
    if (known !== null || sampleIndex >= this.#samplesMax) return known;
    const tokens = this.#source?.find(group.groupId, sampleIndex) ?? null;
    return tokens === null ? null : this.#follow(group, sampleIndex, tokens);
  }

  #follow(group: ServerGroup, sampleIndex: number, tokens: TokenColumn): TokenLog {
    const log = new TokenLog(tokens);
    this.#put(group, sampleIndex, log);
    this.#refresh(group, log);
    return log;
  }

  #refresh(group: ServerGroup, log: TokenLog): void {
    const before = log.bytes;
    const added = log.catchUp();
    this.#grow(group, log.bytes - before);
    if (added === 0) return;
    this.#followed += added;
    group.version += 1;
  }

  #put(group: ServerGroup, sampleIndex: number, log: TokenLog): void {
    while (group.logs.length <= sampleIndex) group.logs.push(null);
    group.logs[sampleIndex] = log;
    this.#grow(group, LOG_BYTES);
  }

  #makeRoom(bytes: number, options: { nowMs: number; slots?: number; kept?: ServerGroup }): void {
    const { nowMs, slots = 0, kept } = options;
    const hasRoom = () =>
      this.#bytes + bytes <= this.#limits.bytesMax &&
      this.#groups.size + slots <= this.#limits.groupsMax;
    if (hasRoom()) return;
    if (nowMs >= this.#sweptAtMs + SWEEP_MS) this.sweep(nowMs);
    for (const group of this.#groups.values()) {
      if (hasRoom()) return;
      if (group === kept) continue;
      this.#drop(group);
      this.#evicted += 1;
    }
  }

  #grow(group: ServerGroup, bytes: number): void {
    group.bytes += bytes;
    this.#bytes += bytes;
  }

  #drop(group: ServerGroup): void {
    this.#groups.delete(group.groupId);
    this.#bytes -= group.bytes;
  }
}
