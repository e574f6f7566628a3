// The groups that an engine's draft client keeps: their token logs, and the drafter fed from them. A
// log outlives connections and servers, so that whatever a server has lost can be sent again.
// Decides which groups go for lack of room or use; knows no messages.

import { InvalidFieldError } from "../../base/errors.ts";
import type { GroupId } from "../../base/ids.ts";
import type { Drafter, UpdateResult } from "../drafter.ts";
import { type DraftClientLimits, LOG_TOKENS_MAX, SAMPLES_MAX, TOKEN_BYTES } from "./limits.ts";
import { TokenLog } from "./token-log.ts";

/** One response's log, and how much of it its server has been sent or is known to have. */
export interface ClientSample {
  readonly group: ClientGroup;
  readonly sampleIndex: number;
  readonly log: TokenLog;
  sent: number;
  /** This engine made tokens of it; otherwise all came from the server. */
  isOwn: boolean;
  /** `sent` when the fetch under way was sent: a server that has less by then has lost some. */
  sentAtFetch: number;
  /**
   * Tokens that others made and the server has lost: its count, and since when it stands still. -1: none
   * known.
   */
  lostHave: number;
  lostSinceMs: number;
  /** Not sent before this time: the server had no room for it. */
  sendAtMs: number;
}

/**
 * new: not registered at the server. asked: the registration is under way. ready: registered.
 * refused: the server has another prompt under this name; the group drafts from this engine alone.
 */
export type ClientGroupState = "new" | "asked" | "ready" | "refused";

export interface ClientGroup {
  readonly groupId: GroupId;
  readonly prompt: Int32Array;
  readonly shardIndex: number;
  readonly samples: (ClientSample | null)[];
  ttlMs: number;
  usedAtMs: number;
  state: ClientGroupState;
  /** While new: not registered before this time. */
  retryAtMs: number;
  /** The server's version that was heard of last. */
  version: number;
  bytes: number;
  isFull: boolean;
}

export interface ClientGroupsOptions {
  readonly drafter: Drafter;
  readonly limits: DraftClientLimits;
  /** The group is gone; nothing may be sent for it any more. */
  readonly onDrop: (group: ClientGroup) => void;
}

const OK: UpdateResult = { kind: "ok" };
const FULL: UpdateResult = { kind: "full" };

export class ClientGroups {
  readonly #drafter: Drafter;
  readonly #limits: DraftClientLimits;
  readonly #onDrop: (group: ClientGroup) => void;
  readonly #groups = new Map<GroupId, ClientGroup>();
  #bytes = 0;
  dropped = 0;

  constructor(options: ClientGroupsOptions) {
    this.#drafter = options.drafter;
    this.#limits = options.limits;
    this.#onDrop = options.onDrop;
  }

  get size(): number {
    return this.#groups.size;
  }

  get bytes(): number {
    return this.#bytes;
  }

  get(groupId: GroupId): ClientGroup | undefined {
    return this.#groups.get(groupId);
  }

  values(): Iterable<ClientGroup> {
    return this.#groups.values();
  }

  /** A new group; the one used longest ago goes if there are too many. Throws on a negative token. */
  create(
    groupId: GroupId,
    options: { prompt: Int32Array; ttlMs: number; nowMs: number; shardIndex: number },
  ): ClientGroup {
    const { ttlMs, nowMs, shardIndex } = options;
    this.#drafter.register(groupId, options.prompt);
    const prompt = options.prompt.slice();
    const group: ClientGroup = {
      groupId,
      prompt,
      shardIndex,
      samples: [],
      ttlMs,
      usedAtMs: nowMs,
      state: "new",
      retryAtMs: Number.NEGATIVE_INFINITY,
      version: 0,
      bytes: prompt.length * TOKEN_BYTES,
      isFull: false,
    };
    this.#groups.set(groupId, group);
    this.#bytes += group.bytes;
    this.#makeRoom(group);
    return group;
  }

  /**
   * Appends tokens, made here (`isOwn`) or fetched, to a log and the drafter. gap: beyond the window.
   * Throws InvalidFieldError on indexes, offsets and tokens out of range.
   */
  append(
    group: ClientGroup,
    delta: { sampleIndex: number; offset: number; tokens: Int32Array },
    isOwn: boolean,
  ): UpdateResult {
    const sample = this.#sample(group, delta);
    sample.isOwn ||= isOwn;
    const { log } = sample;
    const [length, bytes] = [log.length, log.bytes];
    const result = log.append(delta.offset, delta.tokens, this.#limits.windowTokens);
    if (result.kind === "gap") return { kind: "gap", have: length };
    this.#grow(group, log.bytes - bytes);
    if (log.length > length) this.#feed(sample, length);
    this.#makeRoom(group);
    const isKept = this.#groups.get(group.groupId) === group;
    return group.isFull || !isKept ? FULL : OK;
  }

  drop(group: ClientGroup): void {
    if (!this.#groups.delete(group.groupId)) return;
    this.#bytes -= group.bytes;
    this.#drafter.drop(group.groupId);
    this.#onDrop(group);
  }

  /** Drops groups that were not used for their lifetime. */
  expire(nowMs: number): void {
    for (const group of this.#groups.values()) {
      if (nowMs <= group.usedAtMs + group.ttlMs) continue;
      this.drop(group);
      this.dropped += 1;
    }
  }

  /** Forgets everything, in the drafter too: a new weight epoch. */
  clear(): void {
    for (const group of this.#groups.values()) this.#onDrop(group);
    this.#groups.clear();
    this.#bytes = 0;
    this.#drafter.clear();
  }

  #sample(
    group: ClientGroup,
    delta: { sampleIndex: number; offset: number; tokens: Int32Array },
  ): ClientSample {
    const { sampleIndex, offset, tokens } = delta;
    const known = group.samples[sampleIndex];
    checkCount("sampleIndex", sampleIndex, SAMPLES_MAX - 1);
    checkCount("offset", offset, LOG_TOKENS_MAX - tokens.length);
    checkTokens(tokens);
    if (known !== undefined && known !== null) return known;
    while (group.samples.length <= sampleIndex) group.samples.push(null);
    const sample: ClientSample = {
      group,
      sampleIndex,
      log: new TokenLog(),
      sent: 0,
      isOwn: false,
      sentAtFetch: 0,
      lostHave: -1,
      lostSinceMs: 0,
      sendAtMs: Number.NEGATIVE_INFINITY,
    };
    group.samples[sampleIndex] = sample;
    return sample;
  }

  /** Hands the log's tokens from `from` to the drafter, or more if the drafter lacks more. */
  #feed(sample: ClientSample, from: number): void {
    const { group, sampleIndex, log } = sample;
    if (group.isFull) return;
    let result = this.#drafter.update(group.groupId, sampleIndex, from, log.view(from));
    if (result.kind === "gap") {
      const { have } = result;
      result = this.#drafter.update(group.groupId, sampleIndex, have, log.view(have));
    }
    if (result.kind === "full") group.isFull = true;
  }

  /** Drops the groups used longest ago until the limits hold: `last` goes only if it alone is too large. */
  #makeRoom(last: ClientGroup): void {
    const { bytesMax, groupsMax } = this.#limits;
    while (this.#bytes > bytesMax || this.#groups.size > groupsMax) {
      let oldest = last;
      for (const group of this.#groups.values()) {
        if (group === last) continue;
        if (oldest === last || group.usedAtMs < oldest.usedAtMs) oldest = group;
      }
      this.drop(oldest);
      this.dropped += 1;
    }
  }

  #grow(group: ClientGroup, bytes: number): void {
    group.bytes += bytes;
    this.#bytes += bytes;
  }
}

function checkCount(field: string, value: number, max: number): void {
  if (Number.isSafeInteger(value) && value >= 0 && value <= max) return;
  const problem = `is ${value}, not in [0, ${max}]`;
  throw new InvalidFieldError({ where: "draft client", field, problem });
}

/** Core and wire hold token ids in 32 bits, and ids are never negative. */
export function checkTokens(tokens: Int32Array): void {
  for (let i = 0; i < tokens.length; i += 1) {
    const token = tokens[i] ?? 0;
    if (token >= 0) continue;
    const problem = `is ${token}, below 0`;
    throw new InvalidFieldError({ where: "draft client", field: `tokens[${i}]`, problem });
  }
}
