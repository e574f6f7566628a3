// A worker's replica of the token logs of its draft groups, and the drafts made from them. It owns
// one core instance. Tokens that arrive between two proposals cross into it together with the next
// one, in one call. When a group no longer fits, its memory is freed and it drafts nothing: drafting
// may only ever cost time. Lifetimes are the caller's.

import { InvalidFieldError } from "../base/errors.ts";
import type { GroupId } from "../base/ids.ts";
import { SEQUENCES_MAX } from "../wasm/abi.ts";
import { SuffixIndex } from "../wasm/suffix-index.ts";
import type { DraftAsk, Drafter, Drafts, UpdateResult } from "./drafter.ts";

interface Group {
  /** null: it no longer fits. */
  handle: number | null;
  /** Output tokens had of each response, by sample index. */
  readonly have: number[];
}

export interface ReplicaOptions {
  /** Bytes that the groups may take together. */
  readonly limitBytes?: number;
  /** Longest context that drafts match, in tokens. */
  readonly contextTokens?: number;
  /** Probabilities learn from the fate of drafts; default true. Without it, equal logs give equal drafts. */
  readonly learning?: boolean;
}

export interface ReplicaStats {
  readonly groups: number;
  /** Groups that no longer fit. */
  readonly fullGroups: number;
  readonly usedBytes: number;
}

const OK: UpdateResult = { kind: "ok" };
const FULL: UpdateResult = { kind: "full" };
const NO_HANDLE = -1;

export class Replica implements Drafter {
  readonly #index: SuffixIndex;
  readonly #groups = new Map<GroupId, Group>();
  readonly #byHandle = new Map<number, Group>();

  /** Throws AppError `core_version` without a core of this build. */
  constructor(options: ReplicaOptions = {}) {
    this.#index = new SuffixIndex(options, (handle) => this.#giveUp(handle));
  }

  register(groupId: GroupId, prompt: Int32Array): void {
    if (this.#groups.has(groupId)) return;
    checkTokens(prompt, "register.prompt");
    const group: Group = { handle: this.#index.create(prompt), have: [] };
    this.#groups.set(groupId, group);
    if (group.handle !== null) this.#byHandle.set(group.handle, group);
  }

  has(groupId: GroupId): boolean {
    return this.#groups.has(groupId);
  }

  update(groupId: GroupId, sampleIndex: number, offset: number, tokens: Int32Array): UpdateResult {
    const group = this.#groups.get(groupId);
    if (group === undefined) return OK;
    checkSampleIndex(sampleIndex);
    if (!Number.isSafeInteger(offset) || offset < 0) {
      throw wrong("update.offset", `is ${offset}, not a count`);
    }
    const have = group.have[sampleIndex] ?? 0;
    if (offset > have) return { kind: "gap", have };
    const from = have - offset;
    if (from >= tokens.length) return group.handle === null ? FULL : OK;
    checkTokens(tokens, "update.tokens");
    if (group.handle === null) return FULL;
    while (group.have.length <= sampleIndex) group.have.push(0);
    group.have[sampleIndex] = offset + tokens.length;
    this.#index.append(group.handle, sampleIndex, tokens, from);
    return group.handle === null ? FULL : OK;
  }

  drop(groupId: GroupId): void {
    const group = this.#groups.get(groupId);
    if (group === undefined) return;
    this.#groups.delete(groupId);
    if (group.handle === null) return;
    const handle = group.handle;
    this.#byHandle.delete(handle);
    this.#index.drop(handle);
  }

  clear(): void {
    this.#index.discard();
    for (const handle of this.#byHandle.keys()) this.#index.drop(handle);
    this.#groups.clear();
    this.#byHandle.clear();
  }

  propose(asks: readonly DraftAsk[]): Drafts {
    this.#ask(asks, null);
    return this.#index.step();
  }

  /**
   * Like `propose`, under a budget for the whole batch: of all the asks' drafts, the `tokensMax` tokens
   * with the highest weight times probability. `weights[i]` > 0 is what an accepted token of ask i is worth.
   */
  proposeWithin(asks: readonly DraftAsk[], weights: Float32Array, tokensMax: number): Drafts {
    this.#ask(asks, weights);
    return this.#index.step(tokensMax);
  }

  stats(): ReplicaStats {
    this.#index.flush();
    const groups = this.#groups.size;
    const usedBytes = this.#index.core.used_bytes() >>> 0;
    return { groups, fullGroups: groups - this.#byHandle.size, usedBytes };
  }

  #ask(asks: readonly DraftAsk[], weights: Float32Array | null): void {
    const index = this.#index;
    index.begin(asks.length);
    for (let i = 0; i < asks.length; i += 1) {
      const ask = asks[i];
      if (ask === undefined) continue;
      const handle = this.#groups.get(ask.groupId)?.handle ?? NO_HANDLE;
      index.draft(handle, ask.sampleIndex, ask, weights?.[i] ?? 1);
    }
  }

  #giveUp(handle: number): void {
    const group = this.#byHandle.get(handle);
    if (group === undefined) return;
    group.handle = null;
    this.#byHandle.delete(handle);
    this.#index.drop(handle);
  }
}

function wrong(field: string, problem: string): InvalidFieldError {
  return new InvalidFieldError({ where: "draft replica", field, problem });
}

function checkSampleIndex(sampleIndex: number): void {
  if (Number.isInteger(sampleIndex) && sampleIndex >= 0 && sampleIndex < SEQUENCES_MAX) return;
  throw wrong("sampleIndex", `is ${sampleIndex}, not in [0, ${SEQUENCES_MAX})`);
}

/** Core and wire hold token ids in 32 bits, and ids are never negative. */
function checkTokens(tokens: Int32Array, field: string): void {
  for (let i = 0; i < tokens.length; i += 1) {
    const token = tokens[i] ?? 0;
    if (token < 0) throw wrong(`${field}[${i}]`, `is ${token}, below 0`);
  }
}
