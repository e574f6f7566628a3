// Replays recorded groups through a drafter: rounds of one verification step for every live response, all
// drafted by one call. It owns the rounds and the counts; the drafter is the production one. A drafter sees of a response
// exactly what has been "generated" of it, never more: all responses of a group advance together, `live` groups at a time.
// A group whose prompt a live group has waits for it: it is of a later epoch.

import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { type GroupId, groupId } from "../../core/base/ids.ts";
import {
  DRAFT_TOKENS_MAX,
  type Drafter,
  type DraftQuery,
  type Drafts,
} from "../../core/draft/drafter.ts";
import type { History } from "../../core/draft/history.ts";
import { promptKey } from "../../core/request/prompt-key.ts";
import { acceptedOf, Calibration } from "./calibration.ts";
import { CONTEXT, type Keys, keysOf } from "./followers.ts";
import { CopiedText, FollowedTokens } from "./known-text.ts";
import { LateDrafts, type Table, tableOf } from "./late-drafts.ts";
import type { TraceGroup } from "./recordings.ts";

export const DRAFTERS = ["self", "grouped", "history", "late", "tree", "copies", "oracle"] as const;
/**
 * self: a path from the response's own prompt and text. grouped: a path, siblings too. history: as grouped, and from
 * earlier groups of the prompt. late: as grouped, from what was known a step before (late-drafts.ts). tree: a tree,
 * siblings too. copies and oracle draft only what is right: known-text.ts.
 */
export type DrafterKind = (typeof DRAFTERS)[number];

export interface ReplayOptions {
  readonly drafter: DrafterKind;
  /** Draft tokens of one step, at most. */
  readonly budget: number;
  readonly probabilityMin: number;
  /** Groups that are generated at the same time. */
  readonly live: number;
}

export const isOracle = (drafter: DrafterKind) => drafter === "copies" || drafter === "oracle";

/** Sums over the steps of one group's responses. */
export interface Tally {
  responses: number;
  tokens: number;
  steps: number;
  drafted: number;
  accepted: number;
  /** Tokens that drafts of the same lengths would have had accepted, had their tokens been those of `copies`, `oracle`. */
  copied: number;
  followed: number;
  /** Steps within the first FIRST_TOKENS of a response, and what they accepted. */
  firstSteps: number;
  firstAccepted: number;
  /** An earlier group had its prompt. */
  readonly returns: boolean;
}

/** Where siblings have said little yet. */
export const FIRST_TOKENS = 64;

export interface ReplayOutcome {
  /** One of each recorded group, in their order. */
  readonly groups: readonly Tally[];
  readonly calibration: Calibration;
  /** Time in the drafter: registering, appending, proposing and dropping. */
  readonly drafterMs: number;
  /** Groups of the drafter that ran out of room, and drafted nothing from then on. */
  readonly fullGroups: number;
}

export interface ReplayHost {
  readonly drafter: Drafter;
  /** The drafter's own, for `history`. */
  readonly history?: History;
  readonly clock: Clock;
  /** Called with the number of output tokens so far, every round. */
  readonly onRound?: (tokens: number) => void;
}

/** A group of the drafter, and how many live responses still use it. */
interface Source {
  readonly id: GroupId;
  readonly text: CopiedText;
  readonly key: number | null;
  left: number;
  isFull: boolean;
}

interface Live {
  readonly query: DraftQuery;
  readonly response: Int32Array;
  readonly source: Source;
  readonly tally: Tally;
  /** How many of its group are live. */
  readonly group: { left: number };
  /** Output tokens that are out, and which the drafter has: 0 <= at <= response.length. */
  at: number;
  /** Where they end in `source.text`. */
  end: number;
  /** The token before the next one; undefined: there is none. */
  last: number | undefined;
  /** Late drafts: the table of the round before; the tokens since, and the CONTEXT tokens before them and behind. */
  table: Table | null;
  since: Int32Array;
  before: readonly number[];
  tail: readonly number[];
  readonly keys: Keys;
}

/** Replays every group. The drafter must be fresh, and is spent afterwards. */
export function replay(
  groups: AsyncIterable<TraceGroup>,
  options: ReplayOptions,
  host: ReplayHost,
): Promise<ReplayOutcome> {
  return new Replay(options, host).run(groups);
}

function tallyOf(responses: number, returns: boolean): Tally {
  const sums = { tokens: 0, steps: 0, drafted: 0, accepted: 0, copied: 0, followed: 0 };
  return { responses, ...sums, firstSteps: 0, firstAccepted: 0, returns };
}

/** null: the recording has no prompt, which may be any. */
function keyOf(prompt: Int32Array): number | null {
  return prompt.length === 0 ? null : promptKey(prompt);
}

class Replay {
  readonly #options: ReplayOptions;
  readonly #host: ReplayHost;
  readonly #tallies: Tally[] = [];
  readonly #calibration = new Calibration();
  #live: Live[] = [];
  #queries: DraftQuery[] = [];
  #groups = 0;
  #sources = 0;
  #tokens = 0;
  #fullGroups = 0;
  #drafterMs = 0;
  readonly #lateDrafts = new LateDrafts();
  readonly #followed = new FollowedTokens();
  /** Keys of prompts that have come. */
  readonly #came = new Set<number>();

  constructor(options: ReplayOptions, host: ReplayHost) {
    this.#options = options;
    this.#host = host;
  }

  async run(groups: AsyncIterable<TraceGroup>): Promise<ReplayOutcome> {
    const waiting = groups[Symbol.asyncIterator]();
    let next = await waiting.next();
    while (true) {
      while (next.done !== true && this.#canStart(next.value)) {
        this.#start(next.value);
        next = await waiting.next();
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

  #canStart({ prompt }: TraceGroup): boolean {
    const key = keyOf(prompt);
    const isLive = key !== null && this.#live.some(({ source }) => source.key === key);
    return this.#groups < this.#options.live && !isLive;
  }

  #start({ prompt, responses }: TraceGroup): void {
    const { drafter } = this.#options;
    const key = keyOf(prompt);
    const tally = tallyOf(responses.length, key !== null && this.#came.has(key));
    this.#tallies.push(tally);
    const started = [...responses.entries()].filter(([, response]) => response.length > 0);
    if (started.length === 0) return;
    this.#groups += 1;
    if (key !== null) this.#came.add(key);
    this.#host.history?.advance();
    if (drafter === "late") this.#follow(keysOf(this.#sources + 1, -1), [0, 0, 0], prompt);
    const shared = drafter === "self" ? null : this.#register(prompt, started.length);
    const group = { left: started.length };
    for (const [sampleIndex, response] of started) {
      const source = shared ?? this.#register(prompt, 1);
      const query = { groupId: source.id, sampleIndex, ...this.#bounds() };
      const begin = { at: 0, end: source.text.begin, last: prompt.at(-1), table: null };
      const tail = [0, 0, 0, ...prompt.subarray(-CONTEXT)].slice(-CONTEXT);
      const late = { since: prompt.subarray(0, 0), before: tail, tail };
      const keys = keysOf(this.#sources, sampleIndex);
      this.#live.push({ query, response, source, tally, group, keys, ...begin, ...late });
      this.#queries.push(query);
    }
  }

  #bounds(): Omit<DraftQuery, "groupId" | "sampleIndex"> {
    const { budget, probabilityMin, drafter } = this.#options;
    return drafter === "late"
      ? { tokensMax: Math.min(2 * budget + 2, DRAFT_TOKENS_MAX), probabilityMin: 0, tree: "table" }
      : { tokensMax: budget, probabilityMin, tree: drafter === "tree" };
  }

  #register(prompt: Int32Array, left: number): Source {
    this.#followed.append(undefined, prompt);
    const text = new CopiedText(prompt, this.#host.history?.past(prompt) ?? []);
    const id = groupId(String(this.#sources));
    const source: Source = { id, text, key: keyOf(prompt), left, isFull: false };
    this.#sources += 1;
    const begun = this.#host.clock.nowMs();
    this.#host.drafter.register(source.id, prompt);
    this.#drafterMs += this.#host.clock.nowMs() - begun;
    return source;
  }

  /** One step of every live response; true if a response has ended. */
  #round(): boolean {
    const { drafter, clock } = this.#host;
    const begun = clock.nowMs();
    const made = drafter.propose(this.#queries);
    const proposed = clock.nowMs();
    const drafts = this.#options.drafter === "late" ? this.#late(made) : made;
    const came = this.#live.map((one, i) => ({ one, tokens: this.#judge(one, i, drafts) }));
    const judged = clock.nowMs();
    for (const { one, tokens } of came) {
      this.#append(one.source, one.query.sampleIndex, one.at, tokens);
    }
    this.#drafterMs += proposed - begun + (clock.nowMs() - judged);
    for (const { one, tokens } of came) {
      this.#followed.append(one.last, tokens);
      one.end = one.source.text.append(one.end, tokens);
      one.at += tokens.length;
      one.last = tokens.at(-1);
      one.since = tokens;
      one.before = one.tail;
      one.tail = [...one.tail, ...tokens].slice(-CONTEXT);
    }
    return this.#live.some(({ at, response }) => at === response.length);
  }

  /** Counts a step of request number `i`; returns the tokens that come out of it. */
  #judge({ response, source, tally, at, last }: Live, i: number, drafts: Drafts): Int32Array {
    const { drafter, budget } = this.#options;
    const next = response.subarray(at, at + budget);
    const copied = source.text.reach(last, next);
    const followed = this.#followed.reach(last, next);
    let drafted = (drafts.start[i + 1] ?? 0) - (drafts.start[i] ?? 0);
    let accepted = drafter === "copies" ? copied : followed;
    if (isOracle(drafter)) {
      drafted = accepted;
      for (let j = 0; j < drafted; j += 1) this.#calibration.add(1, true);
    } else {
      accepted = acceptedOf(drafts, i, response, at, this.#calibration);
    }
    const tokens = response.subarray(at, at + accepted + 1);
    tally.steps += 1;
    tally.drafted += drafted;
    tally.accepted += accepted;
    tally.copied += Math.min(copied, drafted);
    tally.followed += Math.min(followed, drafted);
    tally.tokens += tokens.length;
    if (at < FIRST_TOKENS) {
      tally.firstSteps += 1;
      tally.firstAccepted += accepted;
    }
    this.#tokens += tokens.length;
    return tokens;
  }

  /** Drafts from the trees of the round before; those just made are for the next. */
  #late(made: Drafts): Drafts {
    const { budget, probabilityMin } = this.#options;
    this.#lateDrafts.begin(this.#live.length);
    for (const [i, one] of this.#live.entries()) {
      this.#lateDrafts.add(one, { tokensMax: budget, probabilityMin });
      one.table = tableOf(made, i, one.at);
    }
    for (const { keys, before, since } of this.#live) this.#follow(keys, before, since);
    return this.#lateDrafts;
  }

  /** Late drafts: `tokens` have come behind `before`. */
  #follow(keys: Keys, before: readonly number[], tokens: Int32Array): void {
    const tail = [...before];
    for (const token of tokens) {
      this.#lateDrafts.followers.take(keys, tail, token);
      tail.push(token);
      tail.shift();
    }
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
      one.group.left -= 1;
      if (one.group.left === 0) this.#groups -= 1;
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
