// A worker's replica of the token logs of its draft groups, and the drafts made from them. It owns
// one core instance. Tokens that arrive between two proposals cross into it together with the next
// one, in one call. When a group no longer fits, its memory is freed and it drafts nothing; a response beyond the
// SEQUENCES_MAX of a group is not taken and not drafted for: drafting may only ever cost time. A group whose prompt has a
// past begins with it in its index. Lifetimes are the caller's.

import type { GroupId } from "../base/ids.ts";
import { SEQUENCES_MAX } from "../wasm/abi.ts";
import { type CoreOptions, LIMIT_BYTES_MAX } from "../wasm/load.ts";
import { SuffixIndex } from "../wasm/suffix-index.ts";
import type { Drafter, DraftQuery, Drafts, UpdateResult } from "./drafter.ts";

interface Group {
  /** null: it no longer fits. */
  handle: number | null;
  /** Output tokens had of each response, by sample index. */
  readonly have: number[];
}

const OK: UpdateResult = { kind: "ok" };
const FULL: UpdateResult = { kind: "full" };
const NO_HANDLE = -1;
/** Bytes of the index that a past takes for each token: 39 to 44 on recorded responses, and some to spare. */
const INDEX_BYTES_PER_TOKEN = 64;
/** Pasts may fill the memory up to this part: the rest is for live tokens. */
const PAST_PART = 0.5;

export class Replica implements Drafter {
  readonly #index: SuffixIndex;
  readonly #groups = new Map<GroupId, Group>();
  readonly #byHandle = new Map<number, Group>();
  readonly #limitBytes: number;

  /** Throws AppError `core_version` without a core of this build. */
  constructor(options: CoreOptions = {}) {
    this.#index = new SuffixIndex(options, (handle) => this.#giveUp(handle));
    this.#limitBytes = options.limitBytes ?? LIMIT_BYTES_MAX;
  }

  register(groupId: GroupId, prompt: Int32Array, past: readonly Int32Array[] = []): void {
    if (this.#groups.has(groupId)) return;
    const handle = this.#create(prompt, past);
    const group: Group = { handle, have: [] };
    this.#groups.set(groupId, group);
    if (handle !== null) this.#byHandle.set(handle, group);
  }

  has(groupId: GroupId): boolean {
    return this.#groups.has(groupId);
  }

  update(groupId: GroupId, sampleIndex: number, offset: number, tokens: Int32Array): UpdateResult {
    const group = this.#groups.get(groupId);
    if (group === undefined) return OK;
    // It keeps no count any more, so no offset is a gap.
    if (group.handle === null || sampleIndex >= SEQUENCES_MAX) return FULL;
    const have = group.have[sampleIndex] ?? 0;
    if (offset > have) return { kind: "gap", have };
    const from = have - offset;
    if (from >= tokens.length) return OK;
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

  propose(queries: readonly DraftQuery[]): Drafts {
    const index = this.#index;
    index.begin(queries.length);
    for (let i = 0; i < queries.length; i += 1) {
      const query = queries[i];
      if (query === undefined) continue;
      const known = this.#groups.get(query.groupId)?.handle ?? NO_HANDLE;
      const handle = query.sampleIndex < SEQUENCES_MAX ? known : NO_HANDLE;
      index.draft(handle, query.sampleIndex, query);
    }
    return index.step();
  }

  /** `fullGroups`: those that no longer fit. */
  stats() {
    this.#index.flush();
    const groups = this.#groups.size;
    const usedBytes = this.#index.core.used_bytes() >>> 0;
    return { groups, fullGroups: groups - this.#byHandle.size, usedBytes };
  }

  /** An index that begins with the prompt's past, as far as there is room for it. */
  #create(prompt: Int32Array, past: readonly Int32Array[]): number | null {
    const handle = this.#index.create(prompt);
    if (handle === null) return handle;
    for (const response of past) {
      const used = this.#index.core.used_bytes() >>> 0;
      const needed = response.length * INDEX_BYTES_PER_TOKEN;
      if (used + needed > this.#limitBytes * PAST_PART) break;
      if (this.#index.past(handle, response)) continue;
      this.#index.drop(handle);
      return this.#index.create(prompt);
    }
    return handle;
  }

  #giveUp(handle: number): void {
    const group = this.#byHandle.get(handle);
    if (group === undefined) return;
    group.handle = null;
    this.#byHandle.delete(handle);
    this.#index.drop(handle);
  }
}
