// Whether the engines of one weight epoch have the same weights. Embedded engines report a digest, which is equal or not.
// Every engine generates a canary, a few greedy tokens, after it got weights or woke up; canaries are compared by logprobs with
// one another, with earlier ones of the same epoch, and with the trainer's. Engines that have neither are not compared. It only
// decides: the pool fences.

import * as v from "valibot";
import type { WeightEpoch, WeightsId } from "../core/base/ids.ts";

const TOKENS_MAX = 256;

const MADE = v.object({
  tokens: v.pipe(v.array(v.number()), v.minLength(1), v.maxLength(TOKENS_MAX)),
  logprobs: v.pipe(v.array(v.number()), v.minLength(1), v.maxLength(TOKENS_MAX)),
});
export const CANARY = v.object({ prompt: v.optional(v.array(v.number())), ...MADE.entries });
export type CanaryTokens = v.InferOutput<typeof CANARY>;

/** An engine's answer. ranks: the canaries of its other data parallel ranks. */
const ANSWER = v.object({ ...CANARY.entries, ranks: v.optional(v.array(MADE), []) });

const NAMED = v.object({ name: v.string(), made: CANARY });
type Canary = v.InferOutput<typeof NAMED>;

const STATE = v.object({
  /** The current epoch's canary, and that of the epoch before; null: not known. */
  reference: v.nullable(NAMED),
  before: v.nullable(NAMED),
  /** The trainer's canary of the next weights. isDue: engines may have these by now; before, it is compared with nothing. */
  expected: v.nullable(
    v.object({ canary: NAMED, tolerance: v.number(), isDue: v.optional(v.boolean(), false) }),
  ),
});
type State = v.InferOutput<typeof STATE>;

/** Logprobs of equal weights may differ by this much: kernels of other GPUs and batch sizes change the low bits. */
const TOLERANCE = 0.1;

/** An engine's name for people, and the digest of its weights; null: it reports none. */
export interface NamedWeights {
  readonly name: string;
  readonly weights: WeightsId | null;
}

export class Agreement {
  /** The engine whose digest others are compared with in this epoch; null: none that serves has one. */
  #digest: NamedWeights | null = null;
  #state: State = { reference: null, before: null, expected: null };
  /** The state as it was before epoch `next` was prepared; null: none was. */
  #ended: { readonly next: WeightEpoch; readonly state: State } | null = null;

  /** Begins an epoch with the digest that most of these engines have; in a tie, the first one's. */
  begin(engines: readonly NamedWeights[]): void {
    const named = engines.filter(({ weights }) => weights !== null);
    this.#digest = mostAlike(named, (a, b) => a.weights === b.weights).best[0] ?? null;
  }

  /** The digest that engines are compared with; null: none is known. */
  get weights(): WeightsId | null {
    return this.#digest?.weights ?? null;
  }

  /** Why the engine may not serve with the weights that it names; null: it may. */
  digestDifference({ weights }: NamedWeights): string | null {
    const digest = this.#digest;
    if (weights === null || digest === null || weights === digest.weights) return null;
    return `has weights ${weights}, ${digest.name} has ${digest.weights}: engines of one weight epoch have the same`;
  }

  /** The engine begins to serve: if no digest is known, the others are compared with its digest from now on. */
  accept(engine: NamedWeights): void {
    if (engine.weights !== null) this.#digest ??= engine;
  }

  /** The canary of this epoch; null: not known. */
  get reference(): CanaryTokens | null {
    return this.#state.reference?.made ?? null;
  }

  /** The canaries' state in this epoch, as JSON for `restore` in a successor process. */
  stateIn(epoch: WeightEpoch): unknown {
    return this.#ended !== null && epoch < this.#ended.next ? this.#ended.state : this.#state;
  }

  /** `isOfEpoch`: the epoch of `state` is the current one. A value of another form is ignored. */
  restore(state: unknown, isOfEpoch: boolean): void {
    const read = v.safeParse(STATE, state);
    if (!read.success) return;
    const { reference, before } = read.output;
    const old = { reference: null, before: reference ?? before, expected: null };
    this.#state = isOfEpoch ? read.output : old;
  }

  /** Sets the canary that the trainer computed of the next weights. */
  expect(made: CanaryTokens, tolerance = TOLERANCE): void {
    const isDue = this.#ended !== null && this.#state.reference === null;
    this.#state.expected = { canary: { name: "the trainer", made }, tolerance, isDue };
  }

  /** Engines may have new weights from now on, with an unknown canary; these serve from epoch `next` on. */
  prepare(next: WeightEpoch): void {
    const { reference, before, expected } = this.#state;
    this.#ended = { next, state: this.#state };
    this.#state = {
      reference: null,
      before: reference ?? before,
      expected: expected && { ...expected, isDue: true },
    };
  }

  /** Why an engine that answered the canary with `body` may not serve; null: it may. */
  canaryDifference(body: unknown): string | null {
    const { reference } = this.#state;
    return reference && problemOf(canariesOf("it", body), reference, TOLERANCE);
  }

  /** Like `canaryDifference`, for engines asked at the same time. Without a reference, the majority is right. */
  compare(answers: readonly { name: string; body: unknown }[]): (string | null)[] {
    const { reference } = this.#state;
    const canaries = answers.map(({ name, body }) => canariesOf(name, body));
    // Each engine has one vote.
    const votes = canaries.flatMap(([first]) => first ?? []);
    const isDue = reference === null && this.#state.expected?.isDue === true;
    const expected = isDue ? this.#state.expected : null;
    const tolerance = expected?.tolerance ?? TOLERANCE;
    const right = expected?.canary ?? reference ?? this.#most(votes);
    if (right === null && votes.length > 0) {
      const by = Math.max(...votes.map(({ made }) => differenceOf(made, votes[0]?.made ?? made)));
      const reason = `its canary's logprobs differ by ${by.toFixed(3)} between engines, and nothing says which is right: POST /v1/weights/expect does`;
      return canaries.map(({ length }) => (length === 0 ? null : reason));
    }
    if (right === null) return canaries.map(() => null);
    const problems = canaries.map((ranks) => problemOf(ranks, right, tolerance));
    const [agreed] = canaries.find(({ length }, i) => length > 0 && problems[i] === null) ?? [];
    this.#state.reference ??= agreed ?? null;
    if (isDue && agreed !== undefined) this.#state.expected = null;
    return problems;
  }

  /** The majority's canary; without a majority, one that differs from the epoch before. null: it is ambiguous. */
  #most(votes: readonly Canary[]): Canary | null {
    const isAlike = (a: Canary, b: Canary) => differenceOf(a.made, b.made) <= TOLERANCE;
    const { best, count } = mostAlike(votes, isAlike);
    const { before } = this.#state;
    const isSplit = before !== null && 2 * count <= votes.length;
    const fresh = isSplit ? best.filter(({ made }) => differenceOf(made, before.made) > 0) : best;
    const [first] = fresh;
    return first !== undefined && fresh.every((canary) => isAlike(canary, first)) ? first : null;
  }
}

/** How one of an engine's canaries differs from the right one; null: none does. */
function problemOf(ranks: readonly Canary[], right: Canary, tolerance: number): string | null {
  for (const [rank, { made }] of ranks.entries()) {
    const by = differenceOf(made, right.made);
    if (by <= tolerance) continue;
    const whose = rank === 0 ? "its" : `its rank ${rank}'s`;
    return `${whose} canary's logprobs differ by ${by.toFixed(3)} from those of ${right.name}; ${tolerance} is allowed`;
  }
  return null;
}

/** The items that are alike to the most items, in order; `count`: how many that is, the item itself included. */
function mostAlike<T>(all: readonly T[], isAlike: (one: T, other: T) => boolean) {
  const counts = all.map((one) => all.filter((other) => isAlike(other, one)).length);
  const count = Math.max(0, ...counts);
  return { best: all.filter((_, i) => counts[i] === count), count };
}

/** The canary of each rank; empty: the answer has none. */
function canariesOf(name: string, body: unknown): Canary[] {
  const read = v.safeParse(ANSWER, body);
  if (!read.success) return [];
  const { ranks, ...made } = read.output;
  return [
    { name, made },
    ...ranks.map((other, i) => ({ name: `${name} rank ${i + 1}`, made: other })),
  ];
}

/** The largest difference of logprobs, up to the first token that differs: after it the contexts differ. */
function differenceOf(one: CanaryTokens, other: CanaryTokens): number {
  let most = 0;
  const length = Math.min(one.logprobs.length, other.logprobs.length);
  for (let i = 0; i < length; i += 1) {
    most = Math.max(most, Math.abs((one.logprobs[i] ?? 0) - (other.logprobs[i] ?? 0)));
    if (one.tokens[i] !== other.tokens[i]) break;
  }
  return most;
}
