// Replays recorded groups through a drafter: rounds of one verification step for every live response, all
// drafted by one call. It owns the rounds and the counts; the drafter is the production one. What
// the drafter sees of a response is exactly what has been "generated" of it, never more.
//
//   concurrent  `live` groups at a time; all responses of a group advance together and draft from what
//               each of them has by then.
//   complete    `live` responses at a time; all siblings of each are there, whole, before it starts.

import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { type GroupId, groupId } from "../../core/base/ids.ts";
import {
  type Drafter,
  type DraftQuery,
  type Drafts,
  TREE_TOKENS_MAX,
} from "../../core/draft/drafter.ts";
import { acceptedOf, Calibration } from "./calibration.ts";
import { LateDrafts, NODE_PROBABILITY_MIN, type Table, tableOf } from "./late-drafts.ts";
import type { TraceGroup } from "./recordings.ts";

export const DRAFTER_KINDS = ["self", "grouped", "late", "tree"] as const;
/**
 * self: a path from the response's own prompt and text. grouped: a path, siblings too. late: as grouped, from what was
 * known a step before (late-drafts.ts). tree: a tree, siblings too.
 */
export type DrafterKind = (typeof DRAFTER_KINDS)[number];

export const REPLAY_MODES = ["concurrent", "complete"] as const;
export type ReplayMode = (typeof REPLAY_MODES)[number];

export interface ReplayOptions {
  readonly drafter: DrafterKind;
  readonly mode: ReplayMode;
  /**
   * concurrent: groups are cut to their first siblings + 1 responses. complete: the first `siblings`
   * other responses are there. null: all.
   */
  readonly siblings: number | null;
  /** Draft tokens of one step, at most. */
  readonly budget: number;
  readonly probabilityMin: number;
  readonly live: number;
}

/** Sums over the steps of one group's responses. */
export interface Tally {
  responses: number;
  tokens: number;
  steps: number;
  drafted: number;
  accepted: number;
}

export interface ReplayOutcome {
  /** One of each recorded group, in their order. */
  readonly groups: readonly Tally[];
  readonly calibration: Calibration;
  /** Time in the drafter: registering, appending, proposing and dropping; siblings loaded beforehand excluded. */
  readonly drafterMs: number;
  /** Groups of the drafter that ran out of room, and drafted nothing from then on. */
  readonly fullGroups: number;
}

export interface ReplayHost {
  readonly drafter: Drafter;
  readonly clock: Clock;
  /** Called with the number of output tokens so far, every round. */
  readonly onRound?: (tokens: number) => void;
}

/** Responses that start together: a whole group, or one response with finished siblings. */
interface Batch {
  readonly prompt: Int32Array;
  readonly before: readonly Int32Array[];
  readonly targets: readonly Int32Array[];
  readonly tally: Tally;
}

/** A group of the drafter, and how many live responses still use it. */
interface Source {
  readonly id: GroupId;
  left: number;
  isFull: boolean;
}

interface Live {
  readonly query: DraftQuery;
  readonly response: Int32Array;
  readonly source: Source;
  readonly tally: Tally;
  /** How many of its batch are live. */
  readonly batch: { left: number };
  /** Output tokens that are out: 0 <= at <= response.length. */
  at: number;
  /** How many of these tokens the drafter has: 0 <= sent <= at. */
  sent: number;
  /** Late drafts: of the round before. */
  table: Table | null;
}

/** Replays every group. The drafter must be fresh, and is spent afterwards. */
export function replay(
  groups: AsyncIterable<TraceGroup>,
  options: ReplayOptions,
  host: ReplayHost,
): Promise<ReplayOutcome> {
  return new Replay(options, host).run(groups);
}

class Replay {
  readonly #options: ReplayOptions;
  readonly #host: ReplayHost;
  readonly #tallies: Tally[] = [];
  readonly #calibration = new Calibration();
  #live: Live[] = [];
  #queries: DraftQuery[] = [];
  #batches = 0;
  #sources = 0;
  #tokens = 0;
  #fullGroups = 0;
  #drafterMs = 0;
  readonly #lateDrafts = new LateDrafts();

  constructor(options: ReplayOptions, host: ReplayHost) {
    this.#options = options;
    this.#host = host;
  }

  async run(groups: AsyncIterable<TraceGroup>): Promise<ReplayOutcome> {
    const waiting = this.#batchesOf(groups);
    let isDrained = false;
    while (true) {
      while (!isDrained && this.#batches < this.#options.live) {
        const next = await waiting.next();
        if (next.done === true) isDrained = true;
        else this.#start(next.value);
      }
      if (this.#live.length === 0) break;
      if (this.#round()) this.#retire();
      this.#host.onRound?.(this.#tokens);
    }
    return {
      groups: this.#tallies,
      calibration: this.#calibration,
      drafterMs: this.#drafterMs,
      fullGroups: this.#fullGroups,
    };
  }

  async *#batchesOf(groups: AsyncIterable<TraceGroup>): AsyncGenerator<Batch> {
    const { mode, siblings, drafter } = this.#options;
    for await (const { prompt, responses } of groups) {
      const tally = { responses: 0, tokens: 0, steps: 0, drafted: 0, accepted: 0 };
      this.#tallies.push(tally);
      if (mode === "concurrent") {
        const targets = siblings === null ? responses : responses.slice(0, siblings + 1);
        yield { prompt, before: [], targets, tally };
        continue;
      }
      for (const [i, target] of responses.entries()) {
        const others = responses.filter((_, j) => j !== i);
        const before = drafter === "self" ? [] : others.slice(0, siblings ?? others.length);
        yield { prompt, before, targets: [target], tally };
      }
    }
  }

  #start({ prompt, before, targets, tally }: Batch): void {
    if (targets.length === 0) return;
    const shared =
      this.#options.drafter === "self" ? null : this.#register(prompt, before, targets.length);
    const batch = { left: 0 };
    for (const [i, response] of targets.entries()) {
      tally.responses += 1;
      const source = shared ?? this.#register(prompt, [], 1);
      if (response.length === 0) {
        this.#release(source);
        continue;
      }
      const query = this.#queryOf(source.id, shared === null ? 0 : before.length + i);
      batch.left += 1;
      this.#live.push({ query, response, source, tally, batch, at: 0, sent: 0, table: null });
      this.#queries.push(query);
    }
    if (batch.left > 0) this.#batches += 1;
  }

  #queryOf(id: GroupId, sampleIndex: number): DraftQuery {
    const { budget, probabilityMin, drafter } = this.#options;
    const asked = { groupId: id, sampleIndex };
    return drafter === "late"
      ? { ...asked, tokensMax: TREE_TOKENS_MAX, probabilityMin: NODE_PROBABILITY_MIN, tree: true }
      : { ...asked, tokensMax: budget, probabilityMin, tree: drafter === "tree" };
  }

  #register(prompt: Int32Array, before: readonly Int32Array[], left: number): Source {
    const { drafter } = this.#host;
    const id = groupId(String(this.#sources));
    const source: Source = { id, left, isFull: false };
    this.#sources += 1;
    const begun = this.#host.clock.nowMs();
    drafter.register(id, prompt);
    // What waited to be appended crosses now, so that the loading below does not pay for it, nor
    // the next round for the loading.
    if (before.length > 0) drafter.propose([]);
    this.#drafterMs += this.#host.clock.nowMs() - begun;
    for (const [i, response] of before.entries()) {
      if (response.length > 0) this.#append(source, i, 0, response);
    }
    if (before.length > 0) drafter.propose([]);
    return source;
  }

  /** One step of every live response; true if a response has ended. */
  #round(): boolean {
    const { drafter, clock } = this.#host;
    const live = this.#live;
    const begun = clock.nowMs();
    const made = drafter.propose(this.#queries);
    const proposed = clock.nowMs();
    const drafts = this.#options.drafter === "late" ? this.#late(made) : made;
    let hasEnded = false;
    for (let i = 0; i < live.length; i += 1) {
      const one = live[i];
      if (one === undefined) continue;
      const { response, tally } = one;
      const accepted = acceptedOf(drafts, i, response, one.at, this.#calibration);
      const to = Math.min(response.length, one.at + accepted + 1);
      tally.steps += 1;
      tally.drafted += (drafts.start[i + 1] ?? 0) - (drafts.start[i] ?? 0);
      tally.accepted += accepted;
      tally.tokens += to - one.at;
      this.#tokens += to - one.at;
      one.at = to;
      if (to === response.length) hasEnded = true;
    }
    const judged = clock.nowMs();
    for (const one of live) {
      this.#append(
        one.source,
        one.query.sampleIndex,
        one.sent,
        one.response.subarray(one.sent, one.at),
      );
      one.sent = one.at;
    }
    this.#drafterMs += proposed - begun + (clock.nowMs() - judged);
    return hasEnded;
  }

  /** Drafts from the trees of the round before; those just made are for the next. */
  #late(made: Drafts): Drafts {
    const { budget, probabilityMin } = this.#options;
    this.#lateDrafts.begin(this.#live.length);
    for (const [i, one] of this.#live.entries()) {
      this.#lateDrafts.add(one, { tokensMax: budget, probabilityMin });
      one.table = tableOf(made, i, one.at);
    }
    return this.#lateDrafts;
  }

  #append(source: Source, sampleIndex: number, offset: number, tokens: Int32Array): void {
    if (source.isFull) return;
    const result = this.#host.drafter.update(source.id, sampleIndex, offset, tokens);
    assert(result.kind !== "gap", "every token of a response is sent, in order");
    if (result.kind === "ok") return;
    source.isFull = true;
    this.#fullGroups += 1;
  }

  #retire(): void {
    const live: Live[] = [];
    for (const one of this.#live) {
      if (one.at < one.response.length) {
        live.push(one);
        continue;
      }
      one.batch.left -= 1;
      if (one.batch.left === 0) this.#batches -= 1;
      this.#release(one.source);
    }
    this.#live = live;
    this.#queries = live.map((one) => one.query);
  }

  #release(source: Source): void {
    source.left -= 1;
    if (source.left > 0) return;
    const begun = this.#host.clock.nowMs();
    this.#host.drafter.drop(source.id);
    this.#drafterMs += this.#host.clock.nowMs() - begun;
  }
}
