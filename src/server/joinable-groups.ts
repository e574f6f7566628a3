// Which requests belong together: those with the same prompt and adapter within a weight epoch, and, where clients name
// groups, the same name. Single requests so become siblings without waiting for one another: a later one
// joins the group of an earlier one, whatever has become of that.

import { type GroupId, groupId } from "../base/ids.ts";
import { kvKey } from "../kv/key.ts";
import type { Group, Request } from "../request/buffer.ts";
import type { Rollout } from "../rollout/rollout.ts";
import { type Kept, promptBytes, responseBytes } from "./kept.ts";

export interface JoinableGroupsOptions {
  readonly rollout: Rollout;
  /** Open groups, at most; one more closes the one joined longest ago. */
  readonly groupsMax: number;
  /** Of the prompts and the finished responses of open groups, at most; siblings to come draft from them. */
  readonly keptBytesMax: number;
  readonly keptResponsesMax: number;
}

interface Entry {
  readonly group: Group;
  keptBytes: number;
  keptResponses: number;
}

export class JoinableGroups {
  readonly #options: JoinableGroupsOptions;
  /** The group joined longest ago comes first. */
  readonly #entries = new Map<string, Entry>();
  readonly #keys = new Map<Group, string>();
  #keptBytes = 0;
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
    const keptBytes = promptBytes(prompt);
    this.#keptBytes += keptBytes;
    this.#shrink();
    const group = rollout.open(this.#nextId(name), prompt);
    this.#entries.set(key, { group, keptBytes, keptResponses: 0 });
    this.#keys.set(group, key);
    return group;
  }

  get kept(): Kept {
    const { keptBytesMax: bytesMax } = this.#options;
    return { bytes: this.#keptBytes, bytesMax, count: this.#entries.size };
  }

  /** A response is finished, and kept for as long as its group is open. */
  finished(request: Request): void {
    const entry = this.#entries.get(this.#keys.get(request.group) ?? "");
    if (entry === undefined) return;
    const bytes = responseBytes(request);
    entry.keptBytes += bytes;
    entry.keptResponses += 1;
    this.#keptBytes += bytes;
    this.#keptResponses += 1;
    this.#shrink();
  }

  #shrink(): void {
    const { keptBytesMax, keptResponsesMax } = this.#options;
    while (this.#keptBytes > keptBytesMax || this.#keptResponses > keptResponsesMax) {
      if (this.#entries.size === 0) return;
      this.#closeOldest();
    }
  }

  /** Closes it to further requests. No effect if it is closed already. */
  close(group: Group): void {
    const key = this.#keys.get(group);
    const entry = key === undefined ? undefined : this.#entries.get(key);
    if (key !== undefined && entry !== undefined) this.#close(key, entry);
  }

  /** The weights have changed, or the server stops: earlier groups are closed. */
  closeAll(): void {
    while (this.#entries.size > 0) this.#closeOldest();
  }

  #closeOldest(): void {
    for (const [key, entry] of this.#entries) {
      this.#close(key, entry);
      return;
    }
  }

  #close(key: string, { group, keptBytes, keptResponses }: Entry): void {
    this.#entries.delete(key);
    this.#keys.delete(group);
    this.#keptBytes -= keptBytes;
    this.#keptResponses -= keptResponses;
    this.#options.rollout.close(group);
  }

  #nextId(name: string | null): GroupId {
    this.#count += 1;
    return groupId(name === null ? `g${this.#count}` : `g${this.#count}:${name}`);
  }
}
