// Moves KV between the vLLM servers of one run, by way of their own connectors: knows what lies where, decides for each
// move whether its KV goes along or is computed again, and has it published by the one and shown to the other. It never
// holds KV itself, and everything that goes wrong means that it is computed again.

import type { RequestId, WeightEpoch, WorkerId } from "../../base/ids.ts";
import type { TimerClock } from "./clock.ts";
import { type MoveChoice, type MoveCosts, SAMPLES_MIN } from "./kv-cost.ts";
import type { StoredKv } from "./kv-folder.ts";
import type { ServerKv } from "./server-kv.ts";

export interface Move {
  readonly requestId: RequestId;
  readonly to: WorkerId;
  /** Prompt + output so far. */
  readonly tokens: Int32Array;
}

/** KV of the beginning of a text, out of the servers' sight in the folder of the one that stored it. */
export interface Kept {
  readonly kv: StoredKv;
  readonly server: ServerKv;
  readonly epoch: WeightEpoch;
  /** Requests that are not finished and begin with this text. */
  readonly owners: Set<RequestId>;
  /** Servers that it is shown to: it stays on the disk for them, or its link would lead nowhere. */
  shown: number;
  /** Nobody owns it any more. */
  isDropped: boolean;
}

interface Known {
  kept: Kept | null;
  /** Tokens of its text that each worker has computed; their caches hold them until they need the room. */
  readonly computed: Map<WorkerId, number>;
}

/** A move waits for its KV no longer than computing it again would take; where that is not known, so long, ms. */
const PUBLISH_MS_UNKNOWN = 5_000;
const PUBLISH_MS_MIN = 20;
/** Under the rule `always`. */
const PUBLISH_MS_MAX = 600_000;
/** measured: where it was seen to be cheaper. always, never: for those who measure. */
export type MoveRule = "measured" | "always" | "never";

/** On disk, of all servers: 4 GiB. */
export const KEPT_BYTES_MAX = 4 * 1024 * 1024 * 1024;

export class KvShare {
  readonly #clock: TimerClock;
  readonly #bytesMax: number;
  readonly #rule: MoveRule;
  readonly #servers = new Map<WorkerId, ServerKv>();
  readonly #known = new Map<RequestId, Known>();
  /** The oldest first. */
  readonly #kept = new Set<Kept>();
  #bytes = 0;

  /** `rule`: default `measured`. */
  constructor(options: { clock: TimerClock; bytesMax: number; rule?: MoveRule }) {
    this.#clock = options.clock;
    this.#rule = options.rule ?? "measured";
    this.#bytesMax = options.bytesMax;
  }

  /** On disk, of all servers: at most `bytesMax`. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Returns whether another server has the same folder: then neither sees only what it should. */
  join(server: ServerKv): boolean {
    const { folder } = server;
    this.#servers.set(server.workerId, server);
    if (folder === null) return false;
    return [...this.#servers.values()].some(
      (other) => other !== server && other.folder?.path === folder.path,
    );
  }

  leave(server: ServerKv): void {
    this.clear(server);
    if (this.#servers.get(server.workerId) === server) this.#servers.delete(server.workerId);
  }

  /** Nothing that was stored by this server, or computed by any, is of use: the weights have changed. */
  clear(server: ServerKv): void {
    for (const kept of this.#kept) if (kept.server === server) this.#drop(kept);
    for (const [requestId, known] of this.#known) {
      known.computed.clear();
      if (known.kept === null) this.#known.delete(requestId);
    }
  }

  /** The worker has computed the first `tokens` tokens of the request's text. */
  computed(requestId: RequestId, workerId: WorkerId, tokens: number): void {
    this.#knownOf(requestId).computed.set(workerId, tokens);
  }

  /** What a server has stored for a request, with what it had before let go. */
  keep(server: ServerKv, requestId: RequestId, kv: StoredKv): Kept {
    const known = this.#knownOf(requestId);
    const kept = server.kept(kv.name) ?? {
      ...{ kv, server, epoch: server.epoch, owners: new Set(), shown: 0, isDropped: false },
    };
    if (kept.kv !== kv) server.folder?.discard(kv.path);
    else {
      server.add(kept);
      this.#bytes += kv.bytes;
    }
    if (known.kept !== kept) this.#disown(requestId, known);
    known.kept = kept;
    kept.owners.add(requestId);
    this.#kept.delete(kept);
    this.#kept.add(kept);
    for (const oldest of this.#kept) {
      if (this.#bytes <= this.#bytesMax || oldest === kept) break;
      this.#drop(oldest);
    }
    return kept;
  }

  /** The request is done with. */
  forget(requestId: RequestId): void {
    const known = this.#known.get(requestId);
    if (known === undefined) return;
    this.#known.delete(requestId);
    this.#disown(requestId, known);
    for (const server of this.#servers.values()) server.unplan(requestId);
  }

  /**
   * null: the request may be sent to where it goes. Otherwise it resolves when it may: then its KV lies there, or is
   * computed again. Never rejects.
   */
  prepare({ requestId, to, tokens: text }: Move): Promise<void> | null {
    const target = this.#servers.get(to);
    const computed = this.#known.get(requestId)?.computed;
    if (target === undefined || computed === undefined) return null;
    const has = computed.get(to) ?? 0;
    const source = this.#sourceFor(target, computed);
    if (source === null) return null;
    const tokens = target.loadable(text.length);
    const saved = tokens - target.wholeBlocks(has);
    const name = source.nameOf(text, tokens);
    const kept = name === null ? null : source.kept(name);
    const isPublished = kept !== null || source.savesOutput;
    const recomputeMs = known(target.prefillCost, text.length - has);
    const publishMs = isPublished ? 0 : known(source.publishCost, tokens);
    const loadMs = known(target.loadCost, tokens);
    const choice = this.#choose(target, source, {
      savedTokens: source.canPublish || isPublished ? saved : 0,
      recomputeMs,
      moveMs: publishMs === null || loadMs === null ? null : publishMs + loadMs,
    });
    if (choice === "recompute") {
      target.counts.recomputes(text.length - has);
      return null;
    }
    if (isPublished) {
      target.plan(requestId, { tokens, saved, kept });
      return null;
    }
    const { epoch } = target;
    const waitMs = this.#rule === "measured" ? recomputeMs : PUBLISH_MS_MAX;
    return this.#inTime(source.publish(requestId, text, tokens), waitMs).then((got) => {
      const isThere = got === null || got?.epoch === epoch;
      if (isThere && target.epoch === epoch) target.plan(requestId, { tokens, saved, kept: got });
      else {
        target.judge.missed();
        target.counts.recomputes(text.length - has);
      }
    });
  }

  #choose(target: ServerKv, source: ServerKv, costs: MoveCosts): MoveChoice {
    // What every server finds by itself is loaded whatever is chosen here.
    const isFound = source.savesOutput || this.#rule === "always";
    if (this.#rule === "measured" && !isFound) return target.judge.choose(costs);
    return isFound && costs.savedTokens > 0 ? "kv" : "recompute";
  }

  /** Who has computed most of the text, if that is not the target itself. */
  #sourceFor(target: ServerKv, computed: ReadonlyMap<WorkerId, number>): ServerKv | null {
    let most = computed.get(target.workerId) ?? 0;
    let source: ServerKv | null = null;
    for (const [workerId, tokens] of computed) {
      const server = this.#servers.get(workerId);
      if (tokens <= most || server === undefined || !target.takesFrom(server)) continue;
      most = tokens;
      source = server;
    }
    return source;
  }

  /** undefined: it was not published, or not in time. */
  #inTime<T>(
    publishing: Promise<T | undefined>,
    expectedMs: number | null,
  ): Promise<T | undefined> {
    const ms = expectedMs === null ? PUBLISH_MS_UNKNOWN : Math.max(PUBLISH_MS_MIN, expectedMs);
    return new Promise((resolve) => {
      const cancel = this.#clock.after(ms, () => resolve(undefined));
      const settle = (result: T | undefined) => {
        cancel();
        resolve(result);
      };
      // What cannot be published, as when its folder has gone, is computed again.
      publishing.then(settle, () => settle(undefined));
    });
  }

  #knownOf(requestId: RequestId): Known {
    const known = this.#known.get(requestId) ?? { kept: null, computed: new Map() };
    this.#known.set(requestId, known);
    return known;
  }

  #disown(requestId: RequestId, known: Known): void {
    const { kept } = known;
    known.kept = null;
    if (kept === null) return;
    kept.owners.delete(requestId);
    if (kept.owners.size === 0) this.#drop(kept);
  }

  #drop(kept: Kept): void {
    if (!this.#kept.delete(kept)) return;
    this.#bytes -= kept.kv.bytes;
    kept.isDropped = true;
    kept.server.remove(kept);
    for (const owner of kept.owners) {
      const known = this.#known.get(owner);
      if (known?.kept === kept) known.kept = null;
    }
  }
}

/** null: too little was seen of it. */
function known(cost: { count: number; predict(tokens: number): number | null }, tokens: number) {
  return cost.count < SAMPLES_MIN ? null : cost.predict(tokens);
}
