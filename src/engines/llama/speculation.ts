// Requests drafts, and decides how many tokens of them a step verifies: the same number for every decoding request, since
// llama.cpp reads the weights once for each distinct number of rows. A request with a shorter draft gets padding rows.
// It never decides which tokens are drawn.

import type { Clock } from "../../core/base/clock.ts";
import type { DraftPlanner, StepTimes } from "../../core/draft/draft-length.ts";
import {
  DRAFT_TOKENS_MAX,
  type Drafter,
  type DraftQuery,
  type Drafts,
} from "../../core/draft/drafter.ts";
import type { Sequence } from "./sequence.ts";

/** Weight of a token of a high-priority request, for which the iteration waits (the paper's lambda). */
const HIGH_WEIGHT = 2;
/** Maximum of draft tokens: few are accepted beyond, and every other request would get as many rows. */
const LENGTH_MAX = 16;

const DRAFT_MS_RATE = 0.1;
/** After this many steps with drafts, one step runs without, to measure a plain step again. */
const DRAFTED_STEPS_MAX = 16;

export interface SpeculationOptions {
  readonly drafter: Pick<Drafter, "has" | "propose">;
  readonly planner: DraftPlanner;
  readonly clock: Clock;
}

export class StepSpeculation {
  /** Draft rows of each decoding request in this step. */
  length = 0;
  /** Counters, cumulative. */
  draftMs = 0;
  drafts = 0;
  draftedTokens = 0;
  acceptedTokens = 0;
  /** Time that accepted tokens saved, less the time of their verification, by the known step times. */
  savedMs = 0;
  readonly #options: SpeculationOptions;
  /** Sequences with a query for a draft in this step, in the drafts' order. */
  #asking: Sequence[] = [];
  readonly #gains = new Float64Array(DRAFT_TOKENS_MAX);
  /** Tokens of the drafts of this step, one draft after another. */
  #tokens: Int32Array = new Int32Array(0);
  /** Recent mean of the time in which the drafts of a step are made, ms. */
  #stepDraftMs = 0;
  /** Steps with drafts since the last one without. */
  #draftedSteps = 0;

  constructor(options: SpeculationOptions) {
    this.#options = options;
  }

  /**
   * Sets `length` and the draft of each decoding sequence. Together, drafts get at most `room` rows and KV tokens in
   * addition to the pending tokens.
   */
  propose(decoding: readonly Sequence[], room: number, stepMs: StepTimes): void {
    this.length = 0;
    const batch = decoding.length;
    const lengthMax = Math.min(LENGTH_MAX, Math.floor(room / Math.max(1, batch)));
    if (batch === 0 || lengthMax < 1) return;
    const { drafter, planner, clock } = this.#options;
    const looksAtPlainStep = this.#draftedSteps === DRAFTED_STEPS_MAX;
    if (looksAtPlainStep) this.#draftedSteps = 0;
    if (looksAtPlainStep || !planner.wantsDrafts()) return;
    const startMs = clock.nowMs();
    let whole = 0;
    const queries: DraftQuery[] = [];
    this.#asking = [];
    for (const sequence of decoding) {
      whole += weightOf(sequence);
      // A step yields one token more than it accepts, and must not go beyond the chunk.
      const tokensMax = Math.min(lengthMax, sequence.chunkEnd - sequence.length - 1);
      const { draft } = sequence;
      if (draft === null || tokensMax < 1 || !drafter.has(draft.groupId)) continue;
      const { groupId, sampleIndex } = draft;
      const { probabilityMin } = planner;
      queries.push({ groupId, sampleIndex, tokensMax, probabilityMin, tree: false });
      this.#asking.push(sequence);
    }
    if (queries.length > 0) {
      const drafts = drafter.propose(queries);
      this.#tokens = drafts.tokens;
      const gains = this.#gainsOf(drafts, lengthMax);
      const offer = { batch, whole, gains, draftMs: this.#stepDraftMs };
      this.length = planner.choose(offer, stepMs);
      if (this.length > 0) this.#take(drafts);
      this.#draftedSteps = this.length > 0 ? this.#draftedSteps + 1 : 0;
    }
    const ms = clock.nowMs() - startMs;
    this.#stepDraftMs += DRAFT_MS_RATE * (ms - this.#stepDraftMs);
    this.draftMs += ms;
  }

  /** The token at `depth` (0 = first) of the sequence's draft; -1: the draft is shorter. */
  token(sequence: Sequence, depth: number): number {
    if (depth >= sequence.draftLength) return -1;
    return this.#tokens[sequence.draftFrom + depth] as number;
  }

  /** For each depth, the expected accepted tokens of all drafts, weighted by the requests' priorities. */
  #gainsOf({ start, probabilities }: Drafts, lengthMax: number): Float64Array {
    this.#gains.fill(0);
    for (const [i, sequence] of this.#asking.entries()) {
      const from = start[i] as number;
      const weight = weightOf(sequence);
      for (let j = from; j < (start[i + 1] as number); j += 1)
        this.#gains[j - from] =
          (this.#gains[j - from] as number) + weight * (probabilities[j] as number);
    }
    return this.#gains.subarray(0, lengthMax);
  }

  #take({ start }: Drafts): void {
    for (const [i, sequence] of this.#asking.entries()) {
      const from = start[i] as number;
      const tokens = Math.min(this.length, (start[i + 1] as number) - from);
      if (tokens === 0) continue;
      sequence.draftFrom = from;
      sequence.draftLength = tokens;
      sequence.draftedTokens += tokens;
      this.drafts += 1;
      this.draftedTokens += tokens;
    }
  }
}

function weightOf({ priority }: Sequence): number {
  return priority === "high" ? HIGH_WEIGHT : 1;
}
