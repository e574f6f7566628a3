// The draft client that an engine embeds (paper, Table 6): registers groups, takes what the engine
// makes, brings the engine's drafter up to date with what other engines made, and drafts. Its owner
// drives it with `poll`. A draft server that is away costs its own groups the tokens of others, and
// nothing else: they go on drafting from what this engine has.

import { assert } from "../../base/assert.ts";
import { InvalidFieldError } from "../../base/errors.ts";
import { hashString } from "../../base/hash.ts";
import type { GroupId, WeightEpoch } from "../../base/ids.ts";
import type { DraftAsk, Drafter, Drafts, UpdateResult } from "../drafter.ts";
import { type ClientGroup, ClientGroups, checkTokens } from "./client-groups.ts";
import {
  DRAFT_CLIENT_LIMITS,
  type DraftClientLimits,
  GROUP_ID_BYTES_MAX,
  idBytes,
  TTL_MS_MAX,
} from "./limits.ts";
import type { Dial } from "./link.ts";
import { shardOf } from "./rendezvous.ts";
import { DraftShard, type DraftShardStats } from "./shard.ts";

export interface DraftServerAddress {
  /** The same in every client: it decides which groups the server keeps. */
  readonly name: string;
  readonly dial: Dial;
}

export interface DraftClientOptions {
  /** Fed by this client alone, and empty. */
  readonly drafter: Drafter;
  /** At least one; the same list in every client, in any order. */
  readonly servers: readonly DraftServerAddress[];
  /** Tells clients apart; any number. */
  readonly clientId: number;
  readonly epoch: WeightEpoch;
  /** The time now, on the clock that `poll` goes by. */
  readonly nowMs: number;
  readonly limits?: Partial<DraftClientLimits>;
}

/** Counters since the client began; groups and bytes as of now. */
export interface DraftClientStats {
  readonly groups: number;
  readonly logBytes: number;
  /** Groups dropped for lack of use or room. */
  readonly groupsDropped: number;
  /** Groups whose server is away, now. */
  readonly groupsDegraded: number;
  /** Asks for drafts of groups whose server was away. */
  readonly asksDegraded: number;
  readonly servers: readonly DraftShardStats[];
}

/** Looking for groups whose time is over costs a walk over all of them. */
const EXPIRE_MS = 1000;
const OK: UpdateResult = { kind: "ok" };

export class DraftClient {
  readonly #drafter: Drafter;
  readonly #names: readonly string[];
  readonly #shards: readonly DraftShard[];
  readonly #groups: ClientGroups;
  #epoch: WeightEpoch;
  #nowMs: number;
  #expiredAtMs: number;
  #asksDegraded = 0;

  constructor(options: DraftClientOptions) {
    assert(options.servers.length > 0, "a draft client needs a draft server");
    const limits = { ...DRAFT_CLIENT_LIMITS, ...options.limits };
    const { drafter, epoch, clientId } = options;
    this.#drafter = drafter;
    this.#epoch = epoch;
    this.#nowMs = options.nowMs;
    this.#expiredAtMs = options.nowMs;
    const onDrop = (group: ClientGroup) => this.#shards[group.shardIndex]?.remove(group);
    const groups = new ClientGroups({ drafter, limits, onDrop });
    this.#groups = groups;
    this.#names = options.servers.map(({ name }) => name);
    this.#shards = options.servers.map(({ name, dial }) => {
      const jitterKey = { hi: clientId, lo: hashString(name) };
      return new DraftShard({ name, dial, groups, limits, jitterKey, epoch });
    });
  }

  get epoch(): WeightEpoch {
    return this.#epoch;
  }

  /**
   * The engine runs the group: drafts are wanted until `ttlMs` after its last use. Idempotent; the
   * longer time counts. Throws InvalidFieldError on a bad id, time or token.
   */
  registerGroup(groupId: GroupId, options: { prompt: Int32Array; ttlMs: number }): void {
    const { prompt, ttlMs } = options;
    const known = this.#groups.get(groupId);
    if (!Number.isFinite(ttlMs) || ttlMs < 1 || ttlMs > TTL_MS_MAX) {
      throw wrong("ttlMs", `is ${ttlMs}, not in [1, ${TTL_MS_MAX}]`);
    }
    if (known !== undefined) {
      known.ttlMs = Math.max(known.ttlMs, ttlMs);
      known.usedAtMs = this.#nowMs;
      return;
    }
    if (groupId === "" || idBytes(groupId) > GROUP_ID_BYTES_MAX) {
      throw wrong("groupId", `is empty or takes more than ${GROUP_ID_BYTES_MAX} bytes`);
    }
    checkTokens(prompt);
    const shardIndex = shardOf(groupId, this.#names);
    const group = this.#groups.create(groupId, { prompt, ttlMs, nowMs: this.#nowMs, shardIndex });
    if (this.#groups.get(groupId) === group) this.#shards[shardIndex]?.add(group);
  }

  has(groupId: GroupId): boolean {
    return this.#groups.get(groupId) !== undefined;
  }

  /**
   * Appends that the group's server had taken when it last told of the group; null: not registered here.
   * A number that fell belongs to a group that was dropped and made anew.
   */
  versionOf(groupId: GroupId): number | null {
    return this.#groups.get(groupId)?.version ?? null;
  }

  /**
   * The engine made tokens of a response, or was given them with it; `offset` counts its output tokens
   * before these. Idempotent. gap: tokens before `offset` are missing, here and in what is held back;
   * hand over the response from `have`. Groups that are not registered are ignored.
   */
  append(
    groupId: GroupId,
    delta: { sampleIndex: number; offset: number; tokens: Int32Array },
  ): UpdateResult {
    const group = this.#groups.get(groupId);
    if (group === undefined) return OK;
    group.usedAtMs = this.#nowMs;
    const result = this.#groups.append(group, delta, true);
    const sample = group.samples[delta.sampleIndex] ?? null;
    if (result.kind === "gap" || sample === null) return result;
    this.#shards[group.shardIndex]?.wrote(sample, delta.tokens.length);
    return result;
  }

  /** The engine has no more use for the group. */
  releaseGroup(groupId: GroupId): void {
    const group = this.#groups.get(groupId);
    if (group !== undefined) this.#groups.drop(group);
  }

  /** Drafts for a whole batch, from this engine's replica: no message is sent for it. */
  batchSpeculate(asks: readonly DraftAsk[]): Drafts {
    for (const ask of asks) {
      const group = this.#groups.get(ask.groupId);
      if (group === undefined) continue;
      group.usedAtMs = this.#nowMs;
      if (this.#shards[group.shardIndex]?.isReady !== true) this.#asksDegraded += 1;
    }
    return this.#drafter.propose(asks);
  }

  /** Connects, registers, sends and fetches what is due. Never waits; call it every engine step or so. */
  poll(nowMs: number): void {
    this.#nowMs = nowMs;
    if (nowMs >= this.#expiredAtMs + EXPIRE_MS) {
      this.#expiredAtMs = nowMs;
      this.#groups.expire(nowMs);
    }
    for (const shard of this.#shards) shard.poll(nowMs);
  }

  /** Other weights: everything of the old ones is forgotten, here and at the servers. Never goes back. */
  advanceEpoch(epoch: WeightEpoch): void {
    assert(epoch >= this.#epoch, "weight epochs do not go back");
    if (epoch === this.#epoch) return;
    this.#epoch = epoch;
    this.#groups.clear();
    for (const shard of this.#shards) shard.advanceEpoch(epoch);
  }

  stats(): DraftClientStats {
    const servers = this.#shards.map((shard) => shard.stats());
    const away = servers.filter((shard) => !shard.isReady);
    return {
      groups: this.#groups.size,
      logBytes: this.#groups.bytes,
      groupsDropped: this.#groups.dropped,
      groupsDegraded: away.reduce((sum, shard) => sum + shard.groups, 0),
      asksDegraded: this.#asksDegraded,
      servers,
    };
  }

  /** Ends the connections; the drafter keeps what it has. */
  close(): void {
    for (const shard of this.#shards) shard.close();
  }
}

function wrong(field: string, problem: string): InvalidFieldError {
  return new InvalidFieldError({ where: "draft client", field, problem });
}
