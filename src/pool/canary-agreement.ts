// Whether engines compute alike: each makes the same few greedy tokens (its canary) when it has got weights and when it has
// woken up, and their logprobs are compared with each other, with those of the same epoch before, and with the trainer's.
// It decides only: the caller fences. An engine that reports no logprobs of its canary is not compared.

import * as v from "valibot";

const TOKENS_MAX = 256;

export const CANARY = v.object({
  prompt: v.optional(v.array(v.number())),
  tokens: v.pipe(v.array(v.number()), v.minLength(1), v.maxLength(TOKENS_MAX)),
  logprobs: v.pipe(v.array(v.number()), v.minLength(1), v.maxLength(TOKENS_MAX)),
});
export type CanaryTokens = v.InferOutput<typeof CANARY>;

interface Canary {
  readonly name: string;
  readonly made: CanaryTokens;
}

/** Kernels and batch sizes change low bits: logprobs may differ by so much before engines were seen to agree. */
const TOLERANCE_MAX = 0.25;
const TOLERANCE_MIN = 0.01;
/** Ratio to the largest difference of engines that agreed. */
const NOISE_RATIO = 10;

export class CanaryAgreement {
  /** The current epoch's canary, and that of the epoch before; null: not known. */
  #reference: Canary | null = null;
  #before: Canary | null = null;
  #expected: { readonly canary: Canary; readonly tolerance: number } | null = null;
  /** The largest difference of engines that agreed; null: none were compared. */
  #noise: number | null = null;
  #hasCompared = false;

  get hasCompared(): boolean {
    return this.#hasCompared;
  }

  /** null: not known. */
  get reference(): CanaryTokens | null {
    return this.#reference?.made ?? null;
  }

  /** The trainer's own, of the next weights. */
  expect(made: CanaryTokens, tolerance = TOLERANCE_MAX): void {
    this.#expected = { canary: { name: "the trainer", made }, tolerance };
  }

  /** Other weights may serve from now on, of which nothing is known. */
  begin(): void {
    this.#before = this.#reference ?? this.#before;
    this.#reference = null;
  }

  /** Why an engine whose canary was answered with `body` may not serve; null: it may. */
  difference(body: unknown): string | null {
    const canary = canaryOf("it", body);
    if (canary === null || this.#reference === null) return null;
    return this.#problem(canary, this.#reference, this.#tolerance);
  }

  /** As `difference`, of several that were asked at the same time. Without a reference, most of them are right. */
  compare(answers: readonly { name: string; body: unknown }[]): (string | null)[] {
    this.#hasCompared = true;
    const canaries = answers.map(({ name, body }) => canaryOf(name, body));
    const known = canaries.filter((one) => one !== null);
    const expected = this.#reference === null ? this.#expected : null;
    const tolerance = expected?.tolerance ?? this.#tolerance;
    const right = expected?.canary ?? this.#reference ?? this.#most(known);
    if (right === null && known.length > 0) {
      const [first, ...others] = known as [Canary, ...Canary[]];
      const by = Math.max(...others.map((one) => differenceOf(one.made, first.made)));
      const reason = `its canary's logprobs differ by ${by.toFixed(3)} between engines, and nothing says which is right: POST /v1/weights/expect does`;
      return canaries.map((canary) => canary && reason);
    }
    if (right === null) return canaries.map(() => null);
    const problems = canaries.map((canary) => canary && this.#problem(canary, right, tolerance));
    const agreed = canaries.find((canary, i) => canary !== null && problems[i] === null);
    this.#reference ??= agreed ?? null;
    if (agreed != null) this.#expected = null;
    return problems;
  }

  get #tolerance(): number {
    const learned = this.#noise === null ? TOLERANCE_MAX : this.#noise * NOISE_RATIO;
    return Math.min(TOLERANCE_MAX, Math.max(TOLERANCE_MIN, learned));
  }

  /** The canary that most agree with; of as many, one that is not as under the weights before. null: several. */
  #most(known: readonly Canary[]): Canary | null {
    const agreeing = (canary: Canary) =>
      known.filter(({ made }) => differenceOf(made, canary.made) <= this.#tolerance).length;
    const most = Math.max(0, ...known.map(agreeing));
    let best = known.filter((canary) => agreeing(canary) === most);
    const before = this.#before;
    if (before !== null && 2 * most <= known.length) {
      best = best.filter(({ made }) => differenceOf(made, before.made) > 0);
    }
    const [first] = best;
    const isOne = best.every(
      ({ made }) => first !== undefined && differenceOf(made, first.made) <= this.#tolerance,
    );
    return isOne ? (first ?? null) : null;
  }

  #problem({ name, made }: Canary, right: Canary, tolerance: number): string | null {
    const by = differenceOf(made, right.made);
    if (by > tolerance) {
      const allowed = `${tolerance} is allowed`;
      return `its canary's logprobs differ by ${by.toFixed(3)} from those of ${right.name}; ${allowed}`;
    }
    if (name !== right.name) this.#noise = Math.max(this.#noise ?? 0, by);
    return null;
  }
}

function canaryOf(name: string, body: unknown): Canary | null {
  const read = v.safeParse(CANARY, body);
  return read.success ? { name, made: read.output } : null;
}

/** The largest difference of logprobs, up to the first token that differs: after it the texts are others. */
function differenceOf(one: CanaryTokens, other: CanaryTokens): number {
  let most = 0;
  const length = Math.min(one.logprobs.length, other.logprobs.length);
  for (let i = 0; i < length; i += 1) {
    most = Math.max(most, Math.abs((one.logprobs[i] ?? 0) - (other.logprobs[i] ?? 0)));
    if (one.tokens[i] !== other.tokens[i]) break;
  }
  return most;
}
