// Replays recorded groups through a drafter: rounds of one verification step for every live response, all
// drafted by one call. It owns the rounds and the counts; the drafter is the production one. A drafter sees of a response
// exactly what has been "generated" of it, never more: all responses of a group advance together, `live` groups at a time.
// A group whose prompt a live group has waits for it: it is of a later epoch.

import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { type GroupId, groupId } from "../../core/base/ids.ts";
import type { Drafter, DraftQuery, Drafts } from "../../core/draft/drafter.ts";
import type { History } from "../../core/draft/history.ts";
import { promptKey } from "../../core/request/prompt-key.ts";
import { acceptedOf } from "./acceptance.ts";
import type { TraceGroup } from "./recordings.ts";

/** Sources of drafts. self: the response's own prompt and text. grouped: siblings too. history: also earlier groups of the prompt. */
export const DRAFTERS = ["self", "grouped", "history"] as const;
export type DrafterKind = (typeof DRAFTERS)[number];

export interface ReplayOptions {
  readonly drafter: DrafterKind;
  /** Limit of draft tokens in one step, over all live responses. */
  readonly budget: number;
  readonly probabilityMin: number;
  /** Number of groups that are generated at the same time. */
  readonly live: number;
}

/** Sums over the steps of one group's responses. */
export interface Tally {
  responses: number;
  tokens: number;
  steps: number;
  drafted: number;
  accepted: number;
  /** Whether an earlier group had the same prompt. */
  readonly returns: boolean;
}

export interface ReplayOutcome {
  /** A tally of each recorded group, in the recording's order. */
  readonly groups: readonly Tally[];
  /** Time in the drafter: registering, appending, proposing and dropping. */
  readonly drafterMs: number;
  /** Number of groups that ran out of room in the drafter, and drafted nothing from then on. */
  readonly fullGroups: number;
}

/** A response that is being generated. The object stays the same; `at` is its number of output tokens so far. */
export interface LiveResponse {
  readonly query: DraftQuery;
  readonly prompt: Int32Array;
  readonly response: Int32Array;
  readonly tally: Tally;
  readonly at: number;
}

export interface ReplayHost {
  readonly drafter: Drafter;
  /** Responses to earlier groups' prompts, for `history`. */
  readonly history?: History;
  readonly clock: Clock;
  /** Called with the number of output tokens so far, every round. */
  readonly onRound?: (tokens: number) => void;
  /** Proposes the drafts of a round, in the order of the responses. Default: the drafter does. */
  readonly propose?: (live: readonly LiveResponse[]) => Drafts;
}

/** A group of the drafter, and how many live responses still use it. */
interface Source {
  readonly id: GroupId;
  readonly key: number | null;
  left: number;
  isFull: boolean;
}

interface Live extends LiveResponse {
  readonly source: Source;
  /** Number of live responses in its group. */
  readonly group: { left: number };
  /** Number of response tokens that the drafter has: 0 <= at <= response.length. */
  at: number;
}

/** Replays every group. The drafter must be fresh, and cannot be used afterwards. */
export function replay(
  groups: AsyncIterable<TraceGroup>,
  options: ReplayOptions,
  host: ReplayHost,
): Promise<ReplayOutcome> {
  return new Replay(options, host).run(groups);
}

/** Key of a prompt; null: the recording has no prompt, so that it may be any. */
function keyOf(prompt: Int32Array): number | null {
  return prompt.length === 0 ? null : promptKey(prompt);
}

class Replay {
  readonly #options: ReplayOptions;
  readonly #host: ReplayHost;
  readonly #tallies: Tally[] = [];
  #live: Live[] = [];
  #groups = 0;
  #sources = 0;
  #tokens = 0;
  #fullGroups = 0;
  #drafterMs = 0;
  /** Keys of the prompts so far. */
  readonly #came = new Set<number>();

  constructor(options: ReplayOptions, host: ReplayHost) {
    this.#options = options;
    this.#host = host;
  }

  async run(groups: AsyncIterable<TraceGroup>): Promise<ReplayOutcome> {
    for await (const group of groups) {
      while (!this.#canStart(group)) this.#round();
      this.#start(group);
    }
    while (this.#live.length > 0) this.#round();
    return {
      groups: this.#tallies,
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
    const { drafter, budget: tokensMax, probabilityMin } = this.#options;
    const key = keyOf(prompt);
    const tally: Tally = {
      responses: responses.length,
      tokens: 0,
      steps: 0,
      drafted: 0,
      accepted: 0,
      returns: key !== null && this.#came.has(key),
    };
    this.#tallies.push(tally);
    const started = [...responses.entries()].filter(([, response]) => response.length > 0);
    if (started.length === 0) return;
    this.#groups += 1;
    if (key !== null) this.#came.add(key);
    this.#host.history?.advance();
    const shared = drafter === "self" ? null : this.#register(prompt, started.length);
    const group = { left: started.length };
    for (const [sampleIndex, response] of started) {
      const source = shared ?? this.#register(prompt, 1);
      const query = { groupId: source.id, sampleIndex, tokensMax, probabilityMin, tree: false };
      this.#live.push({ query, prompt, response, source, tally, group, at: 0 });
    }
  }

  #register(prompt: Int32Array, left: number): Source {
    const id = groupId(String(this.#sources));
    const source: Source = { id, key: keyOf(prompt), left, isFull: false };
    this.#sources += 1;
    const { drafter, history } = this.#host;
    this.#timed(() =>
      drafter.register(id, prompt, source.key === null ? [] : history?.past(source.key)),
    );
    return source;
  }

  /** Performs one step of every live response. */
  #round(): void {
    const { drafter, propose, onRound } = this.#host;
    const queries = this.#live.map(({ query }) => query);
    const drafts = this.#timed(() => propose?.(this.#live) ?? drafter.propose(queries));
    const steps = this.#live.map((one, i) => ({ one, tokens: this.#judge(one, i, drafts) }));
    this.#timed(() => {
      for (const { one, tokens } of steps) this.#append(one, tokens);
    });
    for (const { one, tokens } of steps) one.at += tokens.length;
    const ended = this.#live.filter(({ at, response }) => at === response.length);
    for (const one of ended) this.#retire(one);
    if (ended.length > 0) this.#live = this.#live.filter((one) => !ended.includes(one));
    onRound?.(this.#tokens);
  }

  /** Counts a step of live response number `i`; returns the tokens that it yields. */
  #judge({ response, tally, at }: Live, i: number, drafts: Drafts): Int32Array {
    const accepted = acceptedOf(drafts, i, { response, at });
    const tokens = response.subarray(at, at + accepted + 1);
    tally.steps += 1;
    tally.drafted += (drafts.start[i + 1] ?? 0) - (drafts.start[i] ?? 0);
    tally.accepted += accepted;
    tally.tokens += tokens.length;
    this.#tokens += tokens.length;
    return tokens;
  }

  #append({ source, query, at }: Live, tokens: Int32Array): void {
    if (source.isFull) return;
    const result = this.#host.drafter.update(source.id, query.sampleIndex, at, tokens);
    assert(result.kind !== "gap", "every token of a response is sent, in order");
    if (result.kind === "ok") return;
    source.isFull = true;
    this.#fullGroups += 1;
  }

  #retire({ source, group, response }: Live): void {
    const { drafter, history } = this.#host;
    if (source.key !== null) history?.add(source.key, response);
    group.left -= 1;
    if (group.left === 0) this.#groups -= 1;
    source.left -= 1;
    if (source.left === 0) this.#timed(() => drafter.drop(source.id));
  }

  #timed<T>(act: () => T): T {
    const { clock } = this.#host;
    const begun = clock.nowMs();
    const result = act();
    this.#drafterMs += clock.nowMs() - begun;
    return result;
  }
}
