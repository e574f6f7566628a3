// The groups that a draft server keeps: their token logs, lifetimes and bytes. Decides which group
// goes when there is no room: an expired one, else the one that was used longest ago. Knows no
// epochs and no messages.

import type { GroupId } from "../../base/ids.ts";
import { type DraftServerLimits, SAMPLES_MAX, TOKEN_BYTES } from "./limits.ts";
import type { RefusalReason, SampleDelta } from "./message.ts";
import { TokenLog } from "./token-log.ts";

export interface ServerGroup {
  readonly groupId: GroupId;
  readonly prompt: Int32Array;
  /** By sample index; null: nothing yet. */
  readonly logs: (TokenLog | null)[];
  ttlMs: number;
  usedAtMs: number;
  /** Counts the appends that added tokens. */
  version: number;
  bytes: number;
}

/** Why groups went, and how many. */
export interface DroppedGroups {
  readonly expired: number;
  /** For lack of room. */
  readonly evicted: number;
}

/** What a group and a log take beside their tokens: an estimate, so that empty ones count. */
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
  #expired = 0;
  #evicted = 0;

  constructor(limits: DraftServerLimits) {
    this.#limits = limits;
    this.#samplesMax = Math.min(limits.samplesMax, SAMPLES_MAX);
  }

  get size(): number {
    return this.#groups.size;
  }

  get bytes(): number {
    return this.#bytes;
  }

  get dropped(): DroppedGroups {
    return { expired: this.#expired, evicted: this.#evicted };
  }

  /** The group, used now; null: not registered, or expired. */
  use(groupId: GroupId, nowMs: number): ServerGroup | null {
    const group = this.#groups.get(groupId);
    if (group === undefined) return null;
    if (nowMs > group.usedAtMs + group.ttlMs) {
      this.#drop(group);
      this.#expired += 1;
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
    this.#makeRoom(bytes, { nowMs: options.nowMs, slots: 0 });
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
    const known = group.logs[sampleIndex] ?? null;
    const have = known?.length ?? 0;
    if (offset + tokens.length <= have) return { added: 0 };
    if (sampleIndex >= this.#samplesMax) return { reason: "full", have };
    const log = known ?? new TokenLog();
    const growth = log.growthBytes(offset, tokens.length) + (known === null ? LOG_BYTES : 0);
    const { groupBytesMax, bytesMax, windowTokens } = this.#limits;
    if (group.bytes + growth > Math.min(groupBytesMax, bytesMax)) return { reason: "full", have };
    this.#makeRoom(growth, { nowMs, slots: 0 });
    const before = log.bytes;
    const result = log.append(offset, tokens, windowTokens);
    if (result.kind === "gap") return { reason: "gap", have };
    if (known === null) {
      while (group.logs.length <= sampleIndex) group.logs.push(null);
      group.logs[sampleIndex] = log;
      this.#grow(group, LOG_BYTES);
    }
    this.#grow(group, log.bytes - before);
    if (result.kind === "held") return { reason: "held", have };
    group.version += 1;
    return { added: result.added };
  }

  clear(): void {
    this.#groups.clear();
    this.#bytes = 0;
  }

  /** Drops what has expired. */
  sweep(nowMs: number): void {
    this.#sweptAtMs = nowMs;
    for (const group of this.#groups.values()) {
      if (nowMs <= group.usedAtMs + group.ttlMs) continue;
      this.#drop(group);
      this.#expired += 1;
    }
  }

  #makeRoom(bytes: number, options: { nowMs: number; slots: number }): void {
    const hasRoom = () =>
      this.#bytes + bytes <= this.#limits.bytesMax &&
      this.#groups.size + options.slots <= this.#limits.groupsMax;
    if (hasRoom()) return;
    if (options.nowMs >= this.#sweptAtMs + SWEEP_MS) this.sweep(options.nowMs);
    for (const group of this.#groups.values()) {
      if (hasRoom()) return;
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
