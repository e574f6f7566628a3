// Which requests belong together: those with the same prompt and adapter within a weight epoch, and, where clients name
// groups, the same name. Single requests so become siblings without waiting for one another: a later one
// joins the group of an earlier one, whatever has become of that.

import { type GroupId, groupId } from "../base/ids.ts";
import { kvKey } from "../kv/key.ts";
import type { Group, Request } from "../request/buffer.ts";
import type { Rollout } from "../rollout/rollout.ts";

export interface JoinableGroupsOptions {
  readonly rollout: Rollout;
  /** Open groups, at most; one more closes the one joined longest ago. */
  readonly groupsMax: number;
  /** Output tokens and finished responses kept in open groups, at most; siblings to come draft from them. */
  readonly keptTokensMax: number;
  readonly keptResponsesMax: number;
}

interface Entry {
  readonly group: Group;
  keptTokens: number;
  keptResponses: number;
}

export class JoinableGroups {
  readonly #options: JoinableGroupsOptions;
  /** The group joined longest ago comes first. */
  readonly #entries = new Map<string, Entry>();
  readonly #keys = new Map<Group, string>();
  #keptTokens = 0;
  #keptResponses = 0;
  #count = 0;

  constructor(options: JoinableGroupsOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#entries.size;
  }

  /** The open group for a prompt. `name`: the client's own, null if it gave none. */
  groupFor(prompt: Int32Array, name: string | null, adapter: string | null = null): Group {
    const { rollout, groupsMax } = this.#options;
    const under = adapter === null ? "" : JSON.stringify(adapter);
    const key = `${kvKey(rollout.epoch, prompt, prompt.length)} ${under} ${name ?? ""}`;
    const known = this.#entries.get(key);
    if (known !== undefined) {
      this.#entries.delete(key);
      this.#entries.set(key, known);
      return known.group;
    }
    if (this.#entries.size >= groupsMax) this.#closeOldest();
    const group = rollout.open(this.#nextId(name), prompt);
    this.#entries.set(key, { group, keptTokens: 0, keptResponses: 0 });
    this.#keys.set(group, key);
    return group;
  }

  /** A response is finished, and kept for as long as its group is open. */
  finished(request: Request): void {
    const entry = this.#entries.get(this.#keys.get(request.group) ?? "");
    if (entry === undefined) return;
    const tokens = request.response.length;
    entry.keptTokens += tokens;
    entry.keptResponses += 1;
    this.#keptTokens += tokens;
    this.#keptResponses += 1;
    const { keptTokensMax, keptResponsesMax } = this.#options;
    while (this.#keptTokens > keptTokensMax || this.#keptResponses > keptResponsesMax) {
      this.#closeOldest();
    }
  }

  /** The weights have changed, or the server stops: nobody joins the groups of before. */
  closeAll(): void {
    while (this.#entries.size > 0) this.#closeOldest();
  }

  #closeOldest(): void {
    for (const [key, { group, keptTokens, keptResponses }] of this.#entries) {
      this.#entries.delete(key);
      this.#keys.delete(group);
      this.#keptTokens -= keptTokens;
      this.#keptResponses -= keptResponses;
      this.#options.rollout.close(group);
      return;
    }
  }

  #nextId(name: string | null): GroupId {
    this.#count += 1;
    return groupId(name === null ? `g${this.#count}` : `g${this.#count}:${name}`);
  }
}
