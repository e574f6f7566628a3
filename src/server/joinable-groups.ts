// Which requests belong together: those with the same prompt, adapter and salt within a weight epoch, and, where clients
// name groups, the same name. So single requests become siblings without waiting for one another: a later one
// joins the group of an earlier one, finished or not. Beyond the bounds, a group without unfinished requests is
// closed first: closing one that still runs frees nothing, and its later siblings would form a second group.

import { groupId } from "../core/base/ids.ts";
import { kvKey } from "../core/kv/key.ts";
import type { Group, RolloutRequest } from "../core/request/buffer.ts";
import type { Rollout } from "../core/rollout/rollout.ts";
import { type Kept, promptBytes, responseBytes } from "./kept.ts";

export interface JoinableGroupsOptions {
  readonly rollout: Rollout;
  readonly groupsMax: number;
  /** Limit of the prompts and finished responses of open groups, which later siblings draft from. */
  readonly keptBytesMax: number;
  readonly closed?: (group: Group) => void;
}

interface GroupScope {
  /** The client's name for the group; null: it gave none. */
  readonly name: string | null;
  readonly adapter: string | null;
  readonly salt: string | null;
}

interface Entry {
  readonly key: string;
  readonly group: Group;
  keptBytes: number;
}

export class JoinableGroups {
  readonly #options: JoinableGroupsOptions;
  /** The least recently joined group comes first. */
  readonly #byKey = new Map<string, Entry>();
  readonly #byGroup = new Map<Group, Entry>();
  #keptBytes = 0;
  #count = 0;

  constructor(options: JoinableGroupsOptions) {
    this.#options = options;
  }

  /** The open group for a prompt, which a request is about to join. */
  groupFor(prompt: Int32Array, scope: GroupScope): Group {
    const { rollout, groupsMax } = this.#options;
    const { name, adapter, salt } = scope;
    const under = JSON.stringify([adapter, name]);
    const key = `${kvKey(rollout.epoch, prompt, prompt.length, { salt })} ${under}`;
    const existing = this.#byKey.get(key);
    if (existing !== undefined) {
      this.#joined(existing);
      return existing.group;
    }
    if (this.#byKey.size >= groupsMax) this.#closeOne();
    const keptBytes = promptBytes(prompt);
    this.#keptBytes += keptBytes;
    this.#shrink();
    this.#count += 1;
    const id = groupId(name === null ? `g${this.#count}` : `g${this.#count}:${name}`);
    const group = rollout.open(id, prompt);
    const entry = { key, group, keptBytes };
    this.#byKey.set(key, entry);
    this.#byGroup.set(group, entry);
    return group;
  }

  /** Keeps the group open for a request that joins it as a turn of a session. false: the group is closed. */
  rejoin(group: Group): boolean {
    const entry = this.#byGroup.get(group);
    if (entry !== undefined) this.#joined(entry);
    return entry !== undefined;
  }

  get kept(): Kept {
    const { keptBytesMax: bytesMax } = this.#options;
    return { bytes: this.#keptBytes, bytesMax, count: this.#byKey.size };
  }

  finished(request: RolloutRequest): void {
    const { group, spec } = request;
    const entry = this.#byGroup.get(group);
    if (entry === undefined) return;
    const own = spec.prompt === group.prompt ? 0 : promptBytes(spec.prompt);
    const bytes = responseBytes(request) + own;
    entry.keptBytes += bytes;
    this.#keptBytes += bytes;
    this.#shrink();
  }

  #joined(entry: Entry): void {
    this.#byKey.delete(entry.key);
    this.#byKey.set(entry.key, entry);
  }

  #shrink(): void {
    const { keptBytesMax } = this.#options;
    while (this.#keptBytes > keptBytesMax && this.#byKey.size > 0) this.#closeOne();
  }

  /** Closes the group to further requests. No effect if it is closed already. */
  close(group: Group): void {
    const entry = this.#byGroup.get(group);
    if (entry !== undefined) this.#close(entry);
  }

  /** Closes all groups: the weights have changed, or the server stops. */
  closeAll(): void {
    for (const entry of [...this.#byKey.values()]) this.#close(entry);
  }

  #closeOne(): void {
    const [first] = this.#byKey.values();
    const idle = this.#byKey
      .values()
      .find(({ group: { finished, requests } }) => finished === requests.length);
    const oldest = idle ?? first;
    if (oldest !== undefined) this.#close(oldest);
  }

  #close(entry: Entry): void {
    const { key, group, keptBytes } = entry;
    this.#byKey.delete(key);
    this.#byGroup.delete(group);
    this.#keptBytes -= keptBytes;
    this.#options.closed?.(group);
    this.#options.rollout.close(group);
  }
}
