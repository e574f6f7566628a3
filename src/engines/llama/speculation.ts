// Requests drafts within the planner's limits, and arranges them as paths to verify. It
// decides which draft tokens are verified and never which tokens are drawn.

import type { Clock } from "../../core/base/clock.ts";
import type { GroupId } from "../../core/base/ids.ts";
import {
  DRAFT_TOKENS_MAX,
  type Drafter,
  type DraftQuery,
  type Drafts,
} from "../../core/draft/drafter.ts";
import type { DraftSource } from "../../core/draft/group-update.ts";
import { DraftPaths } from "./draft-paths.ts";
import type { Residency } from "./residency.ts";
import type { Sequence } from "./sequence.ts";
import type { StepCost } from "./step-cost.ts";

/** How much to draft for the requests of one priority class. */
export interface ClassPlan {
  /** Draft tokens per request; 0: do not draft. */
  readonly tokensMax: number;
  /** Least probability, as the drafter gives it, of a draft token worth verifying. */
  readonly probabilityMin: number;
  readonly tree: boolean;
  /** How many times as much as a token of the other class one of this class counts, >= 1. */
  readonly weight: number;
}

interface Plan {
  readonly high: ClassPlan;
  readonly low: ClassPlan;
}

/** The draft budget: decides how much to draft from what steps cost and what has been accepted. */
export interface DraftPlanner {
  plan(input: { high: number; low: number; stepMs: StepCost }): Plan;
  /**
   * Of drafts with these probabilities, times the weights of their classes, the least that is verified in a step of `batch`
   * requests. May order them.
   */
  choose(weighted: Float32Array, batch: number, stepMs: StepCost): number;
  /** One draft token at `position` (1 = first); accepted: it and all before it were drawn. Ascending. */
  observe(position: number, probability: number, accepted: boolean): void;
}

/** Paths of one request's tree, at most: each beyond the first costs a copy of its KV. */
const TREE_PATHS_MAX = 8;
/** Steps for which a plan is kept while the batch does not change. */
const PLAN_STEPS = 8;
/** While drafting is off, interval in steps of drafts that only measure acceptance. */
const SHADOW_STEPS = 32;
const SHADOW_TOKENS_MAX = 8;
const SHADOW_PROBABILITY_MIN = 0.05;

interface MutableQuery {
  groupId: GroupId;
  sampleIndex: number;
  tokensMax: number;
  probabilityMin: number;
  tree: boolean;
}

const NO_DRAFTS: Drafts = {
  start: new Int32Array(1),
  tokens: new Int32Array(0),
  parents: new Int32Array(0),
  probabilities: new Float32Array(0),
};

export interface SpeculationOptions {
  readonly drafter: Drafter;
  readonly planner: DraftPlanner;
  readonly clock: Clock;
  readonly slots: number;
}

export class Speculation {
  readonly paths: DraftPaths;
  /** Counters, cumulative. */
  draftMs = 0;
  drafts = 0;
  draftedTokens = 0;
  acceptedTokens = 0;
  /** Time that accepted tokens saved, less what their verification took, by the step times that are known. */
  savedMs = 0;
  readonly #drafter: Drafter;
  readonly #planner: DraftPlanner;
  readonly #clock: Clock;
  readonly #pool: MutableQuery[] = [];
  readonly #queries: DraftQuery[] = [];
  readonly #asking: Sequence[] = [];
  #proposed: Drafts = NO_DRAFTS;
  /** Probabilities of a step's drafts times their classes' weights; reused. */
  #weighted = new Float32Array(DRAFT_TOKENS_MAX);
  #plan: Plan | null = null;
  #planHigh = 0;
  #planLow = 0;
  #planAge = 0;
  #sinceShadow = 0;

  constructor(options: SpeculationOptions) {
    this.#drafter = options.drafter;
    this.#planner = options.planner;
    this.#clock = options.clock;
    this.paths = new DraftPaths({
      pathsMax: options.slots * TREE_PATHS_MAX,
      nodesMax: options.slots * DRAFT_TOKENS_MAX * 2,
      draftTokensMax: DRAFT_TOKENS_MAX,
    });
  }

  /** The drafts of this step; valid until the next `propose`. */
  get proposed(): Drafts {
    return this.#proposed;
  }

  /**
   * Sets the draft paths of each decoding sequence, in at most `room.rows` rows and `room.tokens` KV
   * tokens beyond the pending tokens. Branches get their streams and their copies of the KV.
   */
  propose(
    decoding: readonly Sequence[],
    residency: Residency,
    options: { room: { rows: number; tokens: number }; stepMs: StepCost },
  ): void {
    this.paths.clear();
    if (decoding.length === 0) return;
    const startMs = this.#clock.nowMs();
    const plan = this.#currentPlan(decoding, options.stepMs);
    this.#queries.length = 0;
    this.#asking.length = 0;
    // The high class first: when room is short, it is the one that gets it.
    this.#collect(decoding, "high", plan.high);
    this.#collect(decoding, "low", plan.low);
    const verifying = this.#queries.length > 0;
    if (verifying) {
      this.#proposed = this.#drafter.propose(this.#queries);
    } else if (plan.high.tokensMax === 0 && plan.low.tokensMax === 0) {
      this.#proposeShadows(decoding);
    }
    const least = verifying ? this.#leastChosen(decoding.length, plan, options.stepMs) : 0;
    this.draftMs += this.#clock.nowMs() - startMs;
    if (verifying) this.#layOut(residency, options.room, { plan, least });
  }

  /** Reports the result of a sequence's first path to the planner: its first `accepted` tokens were sampled. */
  observe(sequence: Sequence, accepted: number, finished: boolean): void {
    const path = sequence.pathFrom;
    const length = this.paths.length(path);
    // What stood after the end of the response was neither accepted nor refused.
    const known = finished ? accepted : length;
    for (let i = 0; i < known; i += 1) {
      const probability = this.#proposed.probabilities[this.paths.node(path, i)] as number;
      this.#planner.observe(i + 1, probability, i < accepted);
    }
  }

  /** Compares a shadow draft once all its tokens have been drawn. */
  settleShadow(sequence: Sequence): void {
    const { shadow } = sequence;
    if (shadow === null || sequence.length < shadow.at + shadow.tokens.length) return;
    sequence.shadow = null;
    let accepted = true;
    for (let i = 0; i < shadow.tokens.length; i += 1) {
      accepted &&= shadow.tokens[i] === sequence.tokens[shadow.at + i];
      this.#planner.observe(i + 1, shadow.probabilities[i] as number, accepted);
    }
  }

  #currentPlan(decoding: readonly Sequence[], stepMs: StepCost): Plan {
    let high = 0;
    for (const sequence of decoding) if (sequence.priority === "high") high += 1;
    const low = decoding.length - high;
    this.#planAge += 1;
    const current = this.#plan;
    const same = high === this.#planHigh && low === this.#planLow;
    if (current !== null && same && this.#planAge < PLAN_STEPS) return current;
    const plan = this.#planner.plan({ high, low, stepMs });
    this.#plan = plan;
    this.#planHigh = high;
    this.#planLow = low;
    this.#planAge = 0;
    return plan;
  }

  #collect(decoding: readonly Sequence[], priority: "high" | "low", plan: ClassPlan): void {
    if (plan.tokensMax <= 0) return;
    for (const sequence of decoding) {
      if (sequence.priority !== priority || sequence.draft === null) continue;
      // A step yields one token more than it accepts, and must not go beyond the chunk.
      const left = sequence.chunkEnd - sequence.length - 1;
      const tokensMax = Math.min(plan.tokensMax, left, DRAFT_TOKENS_MAX);
      if (tokensMax > 0) this.#query(sequence, sequence.draft, { ...plan, tokensMax });
    }
  }

  #query(sequence: Sequence, source: DraftSource, plan: ClassPlan): void {
    const index = this.#queries.length;
    let query = this.#pool[index];
    if (query === undefined) {
      query = { ...source, ...plan };
      this.#pool.push(query);
    }
    query.groupId = source.groupId;
    query.sampleIndex = source.sampleIndex;
    query.tokensMax = plan.tokensMax;
    query.probabilityMin = plan.probabilityMin;
    query.tree = plan.tree;
    this.#queries.push(query);
    this.#asking.push(sequence);
  }

  #leastChosen(batch: number, plan: Plan, stepMs: StepCost): number {
    const { start, probabilities } = this.#proposed;
    const count = start[this.#asking.length] as number;
    if (this.#weighted.length < count) this.#weighted = new Float32Array(2 * count);
    for (let i = 0; i < this.#asking.length; i += 1) {
      const { weight } = plan[(this.#asking[i] as Sequence).priority];
      for (let j = start[i] as number; j < (start[i + 1] as number); j += 1)
        this.#weighted[j] = weight * (probabilities[j] as number);
    }
    return this.#planner.choose(this.#weighted.subarray(0, count), batch, stepMs);
  }

  #layOut(
    residency: Residency,
    room: { rows: number; tokens: number },
    chosen: { plan: Plan; least: number },
  ): void {
    const { start, probabilities } = this.#proposed;
    let { rows, tokens } = room;
    for (let i = 0; i < this.#asking.length; i += 1) {
      const sequence = this.#asking[i] as Sequence;
      const tree = this.#queries[i]?.tree === true;
      const range = { from: start[i] as number, to: start[i + 1] as number };
      // Probabilities never rise along a path, nor along a tree's nodes, so what is left is a draft too.
      const lowest = chosen.least / chosen.plan[sequence.priority].weight;
      while (range.to > range.from && (probabilities[range.to - 1] as number) < lowest)
        range.to -= 1;
      if (range.to === range.from) continue;
      sequence.pathFrom = this.paths.count;
      this.paths.add(this.#proposed, range, {
        pathsMax: tree ? Math.min(TREE_PATHS_MAX, 1 + residency.freeStreams) : 1,
        rowsMax: rows,
        tokensMax: tokens,
        copyTokens: sequence.computed,
      });
      sequence.pathTo = this.paths.count;
      const { taken } = this.paths;
      if (taken.rows === 0) continue;
      rows -= taken.rows;
      tokens -= taken.tokens;
      this.drafts += 1;
      this.draftedTokens += taken.nodes;
      sequence.draftedTokens += taken.nodes;
      sequence.proposedTokens = taken.nodes;
      this.#branch(sequence, residency);
    }
  }

  /** The first path is verified in the sequence's own stream, each other one in a copy. */
  #branch(sequence: Sequence, residency: Residency): void {
    const { streams } = this.paths;
    streams[sequence.pathFrom] = sequence.stream;
    if (sequence.pathTo - sequence.pathFrom === 1) return;
    const branches: number[] = [];
    for (let path = sequence.pathFrom + 1; path < sequence.pathTo; path += 1) {
      const stream = residency.takeBranch();
      streams[path] = stream;
      branches.push(stream);
    }
    residency.copyToBranches(sequence, branches);
  }

  #proposeShadows(decoding: readonly Sequence[]): void {
    this.#sinceShadow += 1;
    if (this.#sinceShadow < SHADOW_STEPS) return;
    this.#sinceShadow = 0;
    const plan = { probabilityMin: SHADOW_PROBABILITY_MIN, tree: false, weight: 1 };
    for (const sequence of decoding) {
      const left = sequence.chunkEnd - sequence.length;
      if (sequence.shadow !== null || sequence.draft === null || left <= 0) continue;
      this.#query(sequence, sequence.draft, {
        ...plan,
        tokensMax: Math.min(SHADOW_TOKENS_MAX, left),
      });
    }
    const { start, tokens, probabilities } = this.#drafter.propose(this.#queries);
    for (let i = 0; i < this.#asking.length; i += 1) {
      const sequence = this.#asking[i] as Sequence;
      const from = start[i] as number;
      const to = start[i + 1] as number;
      if (to === from) continue;
      sequence.shadow = {
        at: sequence.length,
        tokens: tokens.slice(from, to),
        probabilities: probabilities.slice(from, to),
      };
    }
  }
}
