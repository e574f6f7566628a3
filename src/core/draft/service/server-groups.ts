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
  /** Logs by sample index; absent: none yet. */
  readonly logs: (TokenLog | undefined)[];
  ttlMs: number;
  usedAtMs: number;
  /** As of the last call that brought it up to date: tokens of all logs, those of responses of this process, and bytes. */
  tokens: number;
  own: number;
  bytes: number;
}

/** The owner of the groups' responses: a sidecar. */
export interface ResponseSource {
  /** The responses of a group by sample index: a column has all tokens, and nobody else adds to it. */
  responses(groupId: GroupId): Iterable<readonly [sampleIndex: number, tokens: TokenColumn]>;
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
  #sweptAtMs = Number.NEGATIVE_INFINITY;
  readonly #source: ResponseSource | null;
  bytes = 0;
  /** Tokens taken into logs, and those among them that the source had. */
  taken = 0;
  own = 0;
  evicted = 0;

  /** `source` null: all tokens come from clients. */
  constructor(limits: DraftServerLimits, source: ResponseSource | null) {
    this.#limits = limits;
    this.#source = source;
    this.#samplesMax = Math.min(limits.samplesMax, SAMPLES_MAX);
  }

  get size(): number {
    return this.#groups.size;
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
    const { ttlMs, nowMs } = options;
    const bytes = GROUP_BYTES + options.prompt.length * TOKEN_BYTES;
    if (bytes > this.#groupBytesMax) return null;
    this.#makeRoom(bytes, { nowMs, groups: 1 });
    const prompt = options.prompt.slice();
    const group = { groupId, prompt, logs: [], ttlMs, usedAtMs: nowMs, tokens: 0, own: 0, bytes };
    this.#groups.set(groupId, group);
    this.bytes += bytes;
    return group;
  }

  /**
   * Appends to a group that was used just now; null: it has the tokens. Others may be dropped to make room. `measure` it
   * after the last append: until then it counts with the most that it may have grown.
   */
  append(
    group: ServerGroup,
    { sampleIndex, offset, tokens }: SampleDelta,
    nowMs: number,
  ): { reason: RefusalReason; have: number } | null {
    if (group.logs[sampleIndex] === undefined) this.#follow(group);
    const known = group.logs[sampleIndex];
    if (known?.isFollowed) known.catchUp();
    const have = known?.length ?? 0;
    if (offset + tokens.length <= have) return null;
    if (sampleIndex >= this.#samplesMax) return { reason: "full", have };
    const log = known ?? new TokenLog();
    const growth = log.growthBytes(offset, tokens.length) + (known === undefined ? LOG_BYTES : 0);
    if (group.bytes + growth > this.#groupBytesMax) return { reason: "full", have };
    this.#makeRoom(growth, { nowMs, kept: group });
    const result = log.append(offset, tokens, this.#limits.windowTokens);
    if (result === "gap") return { reason: "gap", have };
    group.logs[sampleIndex] = log;
    group.bytes += growth;
    this.bytes += growth;
    return result === "held" ? { reason: "held", have } : null;
  }

  /** Brings the group, used just now, up to date with what the source has; others may be dropped to make room. */
  catchUp(group: ServerGroup, nowMs: number): void {
    if (this.#source === null) return;
    this.#follow(group);
    for (const log of group.logs) if (log?.isFollowed) log.catchUp();
    this.measure(group);
    this.#makeRoom(0, { nowMs, kept: group });
  }

  clear(): void {
    this.#groups.clear();
    this.bytes = 0;
  }

  sweep(nowMs: number): void {
    this.#sweptAtMs = nowMs;
    for (const group of this.#groups.values()) {
      if (nowMs > group.usedAtMs + group.ttlMs) this.#drop(group);
    }
  }

  get #groupBytesMax(): number {
    return Math.min(this.#limits.groupBytesMax, this.#limits.bytesMax);
  }

  #follow({ groupId, logs }: ServerGroup): void {
    for (const [sampleIndex, tokens] of this.#source?.responses(groupId) ?? []) {
      if (sampleIndex < this.#samplesMax) logs[sampleIndex] ??= new TokenLog(tokens);
    }
  }

  /** Brings the group's counts up to date. */
  measure(group: ServerGroup): void {
    let tokens = 0;
    let own = 0;
    let bytes = GROUP_BYTES + group.prompt.length * TOKEN_BYTES;
    for (const log of group.logs) {
      if (log === undefined) continue;
      tokens += log.length;
      own += log.own;
      bytes += LOG_BYTES + log.bytes;
    }
    this.taken += tokens - group.tokens;
    this.own += own - group.own;
    this.bytes += bytes - group.bytes;
    group.tokens = tokens;
    group.own = own;
    group.bytes = bytes;
  }

  /** Drops groups until there is room for so many bytes and groups more. */
  #makeRoom(bytes: number, about: { nowMs: number; groups?: number; kept?: ServerGroup }): void {
    const { nowMs, groups = 0, kept } = about;
    const { bytesMax, groupsMax } = this.#limits;
    const hasRoom = () => this.bytes + bytes <= bytesMax && this.size + groups <= groupsMax;
    if (hasRoom()) return;
    if (nowMs >= this.#sweptAtMs + SWEEP_MS) this.sweep(nowMs);
    for (const group of this.#groups.values()) {
      if (hasRoom()) return;
      if (group === kept) continue;
      this.#drop(group);
      this.evicted += 1;
    }
  }

  #drop(group: ServerGroup): void {
    this.#groups.delete(group.groupId);
    this.bytes -= group.bytes;
  }
}
