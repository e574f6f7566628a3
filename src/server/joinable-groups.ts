// Which requests belong together: those with the same prompt, adapter and salt within a weight epoch, and, where clients
// name groups, the same name. Single requests so become siblings without waiting for one another: a later one
// joins the group of an earlier one, whatever has become of that. Beyond its bounds a group that nothing of is left to
// do goes first: closing one that still runs frees nothing, and its siblings to come would be a second group.

import { type GroupId, groupId } from "../core/base/ids.ts";
import { kvKey } from "../core/kv/key.ts";
import type { Group, Request } from "../core/request/buffer.ts";
import type { Rollout } from "../core/rollout/rollout.ts";
import { type Kept, promptBytes, responseBytes } from "./kept.ts";

export interface JoinableGroupsOptions {
  readonly rollout: Rollout;
  /** Open groups, at most; one more closes one. */
  readonly groupsMax: number;
  /** Limit of the prompts and finished responses of open groups, which later siblings draft from. */
  readonly keptBytesMax: number;
  readonly keptResponsesMax: number;
  readonly closed?: (group: Group) => void;
}

interface GroupScope {
  /** The client's own name for the group; null: it gave none. */
  readonly name: string | null;
  readonly adapter: string | null;
  readonly salt: string | null;
}

interface Entry {
  readonly key: string;
  readonly group: Group;
  keptBytes: number;
  keptResponses: number;
}

export class JoinableGroups {
  readonly #options: JoinableGroupsOptions;
  /** The one joined longest ago comes first. */
  readonly #byKey = new Map<string, Entry>();
  readonly #byGroup = new Map<Group, Entry>();
  #keptBytes = 0;
  #keptResponses = 0;
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
    const known = this.#byKey.get(key);
    if (known !== undefined) {
      this.#joined(known);
      return known.group;
    }
    if (this.#byKey.size >= groupsMax) this.#closeOne();
    const keptBytes = promptBytes(prompt);
    this.#keptBytes += keptBytes;
    this.#shrink();
    const group = rollout.open(this.#nextId(name), prompt);
    const entry = { key, group, keptBytes, keptResponses: 0 };
    this.#byKey.set(key, entry);
    this.#byGroup.set(group, entry);
    return group;
  }

  /** A request is about to join the group by another way than its prompt. false: it is closed. */
  rejoin(group: Group): boolean {
    const entry = this.#byGroup.get(group);
    if (entry !== undefined) this.#joined(entry);
    return entry !== undefined;
  }

  get kept(): Kept {
    const { keptBytesMax: bytesMax } = this.#options;
    return { bytes: this.#keptBytes, bytesMax, count: this.#byKey.size };
  }

  finished(request: Request): void {
    const { group, spec } = request;
    const entry = this.#byGroup.get(group);
    if (entry === undefined) return;
    const own = spec.prompt === group.prompt ? 0 : promptBytes(spec.prompt);
    const bytes = responseBytes(request) + own;
    entry.keptBytes += bytes;
    entry.keptResponses += 1;
    this.#keptBytes += bytes;
    this.#keptResponses += 1;
    this.#shrink();
  }

  #joined(entry: Entry): void {
    this.#byKey.delete(entry.key);
    this.#byKey.set(entry.key, entry);
  }

  #shrink(): void {
    const { keptBytesMax, keptResponsesMax } = this.#options;
    while (this.#keptBytes > keptBytesMax || this.#keptResponses > keptResponsesMax) {
      if (this.#byKey.size === 0) return;
      this.#closeOne();
    }
  }

  /** Closes it to further requests. No effect if it is closed already. */
  close(group: Group): void {
    const entry = this.#byGroup.get(group);
    if (entry !== undefined) this.#close(entry);
  }

  /** The weights have changed, or the server stops: earlier groups are closed. */
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
    const { key, group, keptBytes, keptResponses } = entry;
    this.#byKey.delete(key);
    this.#byGroup.delete(group);
    this.#keptBytes -= keptBytes;
    this.#keptResponses -= keptResponses;
    this.#options.closed?.(group);
    this.#options.rollout.close(group);
  }

  #nextId(name: string | null): GroupId {
    this.#count += 1;
    return groupId(name === null ? `g${this.#count}` : `g${this.#count}:${name}`);
  }
}
