// A client's side of one draft server: keeps the connection, registers the shard's groups, sends what
// was made here, fetches what others made. What a server lacks it says itself, so a lost connection, a
// server that began anew and a hole are all mended the same way: by sending again from its count.
// Driven by `poll`; it owns no timer, and nothing it does can wait or throw.

import { uniformAt } from "../../base/hash.ts";
import type { WeightEpoch } from "../../base/ids.ts";
import type { ClientGroup, ClientGroups, ClientSample } from "./client-groups.ts";
import {
  DRAFT_PROTOCOL_VERSION,
  type DraftClientLimits,
  FRAME_OVERHEAD_BYTES,
  idBytes,
  TOKEN_BYTES,
} from "./limits.ts";
import type { Dial, Link } from "./link.ts";
import type {
  ClientMessage,
  Fetched,
  Registered,
  ServerMessage,
  Updated,
  Welcome,
} from "./message.ts";
import { cacheStates, takeUnsent } from "./outgoing.ts";

export interface DraftShardOptions {
  readonly name: string;
  readonly dial: Dial;
  readonly groups: ClientGroups;
  readonly limits: DraftClientLimits;
  /** Spreads the pauses of many clients before they dial again. */
  readonly jitterKey: { readonly hi: number; readonly lo: number };
  readonly epoch: WeightEpoch;
}

/** Counters since the client began; `isReady` and `groups` as of now. */
export interface DraftShardStats {
  readonly name: string;
  readonly isReady: boolean;
  readonly groups: number;
  readonly dials: number;
  /** Connections that ended or failed, and the last reason. */
  readonly losses: number;
  readonly lastProblem: string | null;
  /** Times the server had begun anew. */
  readonly restarts: number;
  readonly tokensSent: number;
  readonly tokensFetched: number;
  readonly fetches: number;
  readonly gaps: number;
  /** Responses of which the server had lost tokens. */
  readonly repairs: number;
  /** Groups that the server had dropped. */
  readonly groupsLost: number;
  readonly groupsRefused: number;
  readonly stale: number;
}

type InFlight =
  | { readonly kind: "hello" | "update" | "fetch"; readonly sentAtMs: number }
  | { readonly kind: "register"; readonly sentAtMs: number; readonly group: ClientGroup };

/** down: nobody is connected. opening, greeting: under way. ready: the server has answered the hello. */
type State = "down" | "opening" | "greeting" | "ready";

const ANSWER_OF = {
  hello: "welcome",
  register: "registered",
  update: "updated",
  fetch: "fetched",
} as const;

const AT_ONCE = Number.NEGATIVE_INFINITY;

const NO_COUNTS = {
  dials: 0,
  losses: 0,
  restarts: 0,
  tokensSent: 0,
  tokensFetched: 0,
  fetches: 0,
  gaps: 0,
  repairs: 0,
  groupsLost: 0,
  groupsRefused: 0,
  stale: 0,
};

export class DraftShard {
  readonly #options: DraftShardOptions;
  readonly #groups: ClientGroups;
  readonly #limits: DraftClientLimits;
  readonly #members = new Set<ClientGroup>();
  /** Samples that may have tokens to send. */
  readonly #dirty = new Set<ClientSample>();
  readonly #counts = { ...NO_COUNTS };
  #lastProblem: string | null = null;
  #epoch: WeightEpoch;
  #nowMs = 0;
  #state: State = "down";
  #link: Link | null = null;
  /** Counts links: what an earlier one still has to say is of no interest. */
  #dialled = 0;
  #inFlight: InFlight[] = [];
  #since = 0;
  #retryAtMs = AT_ONCE;
  #failures = 0;
  #instanceId: number | null = null;
  #serverEpoch: WeightEpoch;
  #frameBytesMax: number;
  #hasNew = false;
  #waitingTokens = 0;
  #flushedAtMs = AT_ONCE;
  #fetchAtMs = AT_ONCE;
  #isFetching = false;
  #fetchTurn = 0;
  #isClosed = false;

  constructor(options: DraftShardOptions) {
    this.#options = options;
    this.#groups = options.groups;
    this.#limits = options.limits;
    this.#epoch = options.epoch;
    this.#serverEpoch = options.epoch;
    this.#frameBytesMax = options.limits.frameBytesMax;
  }

  get isReady(): boolean {
    return this.#state === "ready";
  }

  add(group: ClientGroup): void {
    this.#members.add(group);
    this.#hasNew = true;
  }

  remove(group: ClientGroup): void {
    this.#members.delete(group);
    for (const sample of group.samples) if (sample !== null) this.#dirty.delete(sample);
  }

  /** Tokens were made here; they are in the log. */
  wrote(sample: ClientSample, tokens: number): void {
    this.#dirty.add(sample);
    this.#waitingTokens += tokens;
  }

  /** The groups of the old epoch are gone already. */
  advanceEpoch(epoch: WeightEpoch): void {
    this.#epoch = epoch;
    this.#waitingTokens = 0;
  }

  poll(nowMs: number): void {
    this.#nowMs = nowMs;
    if (this.#isClosed) return;
    if (this.#state === "down" && nowMs >= this.#retryAtMs) this.#open();
    if (this.#state === "greeting" && this.#inFlight.length === 0) {
      this.#post(
        { kind: "hello", protocolVersion: DRAFT_PROTOCOL_VERSION },
        { kind: "hello", sentAtMs: nowMs },
      );
    }
    const waitsSince = this.#inFlight[0]?.sentAtMs ?? this.#since;
    const isWaiting = this.#inFlight.length > 0 || this.#state === "opening";
    if (isWaiting && nowMs > waitsSince + this.#limits.replyMsMax) this.#lose("no answer in time");
    // An engine that is behind in epochs would only be told so again.
    if (this.#state !== "ready" || this.#serverEpoch > this.#epoch) return;
    if (this.#hasNew) this.#registerGroups();
    this.#sendUpdates();
    this.#fetch();
  }

  close(): void {
    this.#isClosed = true;
    this.#drop();
  }

  stats(): DraftShardStats {
    return {
      ...this.#counts,
      name: this.#options.name,
      isReady: this.isReady,
      groups: this.#members.size,
      lastProblem: this.#lastProblem,
    };
  }

  #open(): void {
    this.#dialled += 1;
    this.#counts.dials += 1;
    this.#state = "opening";
    this.#since = this.#nowMs;
    const own = this.#dialled;
    const ifCurrent = (act: () => void) => {
      if (own === this.#dialled) act();
    };
    const link = this.#options.dial({
      opened: () => ifCurrent(() => this.#opened()),
      received: (message) => ifCurrent(() => this.#receive(message)),
      closed: (problem) => ifCurrent(() => this.#lose(problem)),
    });
    if (own === this.#dialled) this.#link = link;
    else link.close();
  }

  #opened(): void {
    this.#state = "greeting";
    this.#since = this.#nowMs;
  }

  /** The link is of no use any more: dial again, later each time. */
  #lose(problem: string): void {
    this.#counts.losses += 1;
    this.#lastProblem = problem;
    const { retryMsMin, retryMsMax } = this.#limits;
    const pause = Math.min(retryMsMin * 2 ** Math.min(this.#failures, 30), retryMsMax);
    const spread = 0.5 + uniformAt(this.#options.jitterKey, this.#counts.losses) / 2;
    this.#failures += 1;
    this.#retryAtMs = this.#nowMs + pause * spread;
    this.#drop();
  }

  #drop(): void {
    this.#dialled += 1;
    this.#link?.close();
    this.#link = null;
    this.#state = "down";
    this.#inFlight = [];
    this.#isFetching = false;
  }

  /** Everything that depends on `entry` is changed before: the answer may come during the call. */
  #post(message: ClientMessage, entry: InFlight): boolean {
    const link = this.#link;
    if (link === null) return false;
    this.#inFlight.push(entry);
    const result = link.send(message);
    if (result === "sent") return true;
    this.#inFlight = this.#inFlight.filter((other) => other !== entry);
    if (result === "closed" && this.#link === link) this.#lose("the connection is closed");
    return false;
  }

  #canPost(): boolean {
    return this.#state === "ready" && this.#inFlight.length < this.#limits.inFlightMax;
  }

  #registerGroups(): void {
    let isLeft = false;
    this.#hasNew = false;
    for (const group of this.#members) {
      if (group.state !== "new") continue;
      if (group.retryAtMs > this.#nowMs || !this.#canPost()) {
        isLeft = true;
        continue;
      }
      const { groupId, prompt } = group;
      const bytes = FRAME_OVERHEAD_BYTES + idBytes(groupId) + prompt.length * TOKEN_BYTES;
      if (bytes > this.#frameBytesMax) {
        this.#refuse(group);
        continue;
      }
      const ttlMs = Math.ceil(group.ttlMs);
      const message = {
        kind: "register_group",
        epoch: this.#epoch,
        groupId,
        ttlMs,
        prompt,
      } as const;
      group.state = "asked";
      if (!this.#post(message, { kind: "register", sentAtMs: this.#nowMs, group })) {
        group.state = "new";
        isLeft = true;
      }
    }
    this.#hasNew ||= isLeft;
  }

  #sendUpdates(): void {
    if (this.#dirty.size === 0) return;
    const isDue = this.#nowMs >= this.#flushedAtMs + this.#limits.flushMs;
    if (!isDue && this.#waitingTokens < this.#limits.batchTokens) return;
    while (this.#canPost()) {
      const { groups, taken, tokens } = takeUnsent(this.#dirty, {
        frameBytesMax: this.#frameBytesMax,
        nowMs: this.#nowMs,
      });
      if (groups.length === 0) break;
      const message = { kind: "update", epoch: this.#epoch, groups } as const;
      if (!this.#post(message, { kind: "update", sentAtMs: this.#nowMs })) {
        for (const [sample, from] of taken) sample.sent = Math.min(sample.sent, from);
        return;
      }
      this.#counts.tokensSent += tokens;
      this.#flushedAtMs = this.#nowMs;
      this.#waitingTokens = 0;
    }
  }

  #fetch(): void {
    if (this.#isFetching || this.#nowMs < this.#fetchAtMs || !this.#canPost()) return;
    const ready = [...this.#members].filter((group) => group.state === "ready");
    const states = cacheStates(ready, this.#fetchTurn, this.#frameBytesMax);
    if (states.length === 0) return;
    // Another group comes first each time: a frame may have room for few.
    this.#fetchTurn += states.length === ready.length ? 1 : states.length;
    this.#isFetching = true;
    this.#fetchAtMs = this.#nowMs + this.#limits.fetchMs;
    const message = { kind: "fetch", epoch: this.#epoch, states } as const;
    if (this.#post(message, { kind: "fetch", sentAtMs: this.#nowMs })) this.#counts.fetches += 1;
    else this.#isFetching = false;
  }

  #receive(message: ServerMessage): void {
    const asked = this.#inFlight.shift();
    if (asked === undefined || ANSWER_OF[asked.kind] !== message.kind) {
      this.#lose(`the server sent ${message.kind}, which was not asked for`);
      return;
    }
    if (message.kind === "welcome") {
      this.#welcome(message);
      return;
    }
    if (message.kind === "fetched") this.#isFetching = false;
    this.#serverEpoch = message.epoch;
    if (message.status === "stale_epoch") this.#counts.stale += 1;
    if (message.kind === "registered" && asked.kind === "register") {
      this.#registered(asked.group, message);
      return;
    }
    // The answer to a question of another epoch concerns groups that are gone.
    if (message.status === "stale_epoch" || message.epoch !== this.#epoch) return;
    if (message.kind === "updated") this.#updated(message);
    if (message.kind === "fetched") this.#fetched(message);
  }

  #welcome(message: Welcome): void {
    this.#state = "ready";
    this.#failures = 0;
    this.#serverEpoch = message.epoch;
    this.#frameBytesMax = Math.min(message.frameBytesMax, this.#limits.frameBytesMax);
    const isOther = this.#instanceId !== null && this.#instanceId !== message.instanceId;
    if (isOther) this.#counts.restarts += 1;
    this.#instanceId = message.instanceId;
    this.#fetchAtMs = AT_ONCE;
    this.#hasNew = true;
    for (const group of this.#members) {
      group.state = "new";
      group.retryAtMs = AT_ONCE;
    }
  }

  #registered(group: ClientGroup, message: Registered): void {
    if (!this.#members.has(group) || group.state !== "asked") return;
    group.state = "new";
    this.#hasNew = true;
    if (message.status === "stale_epoch" || message.epoch !== this.#epoch) return;
    if (message.status === "conflict") {
      this.#refuse(group);
      return;
    }
    if (message.status === "full") {
      this.#counts.groupsRefused += 1;
      group.retryAtMs = this.#nowMs + this.#limits.reregisterMs;
      return;
    }
    group.state = "ready";
    group.version = message.version;
    this.#fetchAtMs = AT_ONCE;
    for (const sample of group.samples) {
      if (sample === null) continue;
      sample.sendAtMs = AT_ONCE;
      this.#serverHas(sample, message.have[sample.sampleIndex] ?? 0);
    }
  }

  #updated(message: Updated): void {
    for (const { groupId, sampleIndex, reason, have } of message.refusals) {
      const group = this.#groups.get(groupId);
      if (group === undefined) continue;
      if (reason === "unknown") {
        this.#loseGroup(group);
        continue;
      }
      const sample = group.samples[sampleIndex] ?? null;
      if (sample === null) continue;
      if (reason === "held") continue;
      if (reason === "gap") this.#counts.gaps += 1;
      else sample.sendAtMs = this.#nowMs + this.#limits.refusedMs;
      this.#serverHas(sample, Math.min(sample.sent, have));
    }
  }

  #fetched(message: Fetched): void {
    for (const groupId of message.unknown) {
      const group = this.#groups.get(groupId);
      if (group !== undefined) this.#loseGroup(group);
    }
    for (const { groupId, version, deltas, behind } of message.groups) {
      const group = this.#groups.get(groupId);
      if (group === undefined || group.state !== "ready") continue;
      group.version = version;
      for (const delta of deltas) {
        this.#counts.tokensFetched += delta.tokens.length;
        this.#groups.append(group, delta, false);
        const sample = group.samples[delta.sampleIndex] ?? null;
        const end = delta.offset + delta.tokens.length;
        if (sample === null) continue;
        sample.sent = Math.max(sample.sent, end);
        // Tokens made here that had waited for these may follow now.
        if (sample.log.length > sample.sent) this.#dirty.add(sample);
      }
      for (const { sampleIndex, have } of behind) {
        const sample = group.samples[sampleIndex] ?? null;
        if (sample === null || have >= sample.sentAtFetch) continue;
        this.#counts.repairs += 1;
        this.#serverHas(sample, Math.min(sample.sent, have));
      }
    }
    if (message.more) this.#fetchAtMs = AT_ONCE;
  }

  /** The server has `have` tokens of the response: what it lacks is sent again, if it was made here. */
  #serverHas(sample: ClientSample, have: number): void {
    const { length } = sample.log;
    if (sample.isOwn || have >= length) {
      sample.sent = have;
      if (have < length) this.#dirty.add(sample);
      return;
    }
    // Whoever made the tokens is likely to send them: only after a while, and if the server's count has
    // not moved, does everybody who has them.
    sample.sent = length;
    if (sample.lostHave !== have) {
      sample.lostHave = have;
      sample.lostSinceMs = this.#nowMs;
    } else if (this.#nowMs >= sample.lostSinceMs + this.#limits.restoreMs) {
      sample.lostHave = -1;
      sample.sent = have;
      this.#dirty.add(sample);
    }
  }

  #refuse(group: ClientGroup): void {
    this.#counts.groupsRefused += 1;
    group.state = "refused";
  }

  #loseGroup(group: ClientGroup): void {
    if (group.state !== "ready") return;
    this.#counts.groupsLost += 1;
    group.state = "new";
    group.retryAtMs = this.#nowMs + this.#limits.reregisterMs;
    this.#hasNew = true;
  }
}
