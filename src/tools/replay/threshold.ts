// Finds the probability threshold at which a drafter drafts a wanted number of tokens a step, so that
// drafters are compared at equal verification cost. It runs a given function and does not depend on the replay.

/** Below what any drafter is asked for: the core drafts nothing under 1/128. */
export const THRESHOLD_MIN = 1 / 512;
const THRESHOLD_MAX = 1;

/** Tokens drafted a step at a threshold; must not grow with it. */
export type DraftedAt = (probabilityMin: number) => Promise<number>;

export interface Found {
  readonly probabilityMin: number;
  readonly drafted: number;
  /**
   * Change of `drafted` for a change of ln(probabilityMin) by 1, near it; 0 if unknown. Thresholds
   * matter by their ratio: a token that is half as likely gains half as much.
   */
  readonly slope: number;
}

/**
 * Bisects ln(threshold) until `drafted` is within `tolerance` (a share) of `wanted`, `runsMax` runs at
 * most. If even the lowest threshold drafts less than that, it is what is returned.
 */
export async function bisect(
  run: DraftedAt,
  options: { wanted: number; tolerance: number; runsMax: number },
): Promise<Found> {
  const { wanted, tolerance, runsMax } = options;
  let low = { ln: Math.log(THRESHOLD_MIN), drafted: await run(THRESHOLD_MIN) };
  if (low.drafted <= wanted * (1 + tolerance)) {
    return { probabilityMin: THRESHOLD_MIN, drafted: low.drafted, slope: 0 };
  }
  // At threshold 1 next to nothing is drafted; no run is spent on it.
  let high = { ln: Math.log(THRESHOLD_MAX), drafted: 0 };
  let best = low;
  for (let runs = 1; runs < runsMax && !isClose(best.drafted, wanted, tolerance); runs += 1) {
    const ln = (low.ln + high.ln) / 2;
    const middle = { ln, drafted: await run(Math.exp(ln)) };
    if (Math.abs(middle.drafted - wanted) < Math.abs(best.drafted - wanted)) best = middle;
    if (middle.drafted > wanted) low = middle;
    else high = middle;
  }
  const slope = (high.drafted - low.drafted) / (high.ln - low.ln);
  return { probabilityMin: Math.exp(best.ln), drafted: best.drafted, slope };
}

/**
 * Moves from `start`, found on a sample, to the threshold of the whole: secant steps, `runsMax` runs at
 * most. Returns the closest.
 */
export async function refine(
  run: DraftedAt,
  start: Found,
  options: { wanted: number; tolerance: number; runsMax: number },
): Promise<Found> {
  const { wanted, tolerance, runsMax } = options;
  let { probabilityMin, slope } = start;
  let last: Found | null = null;
  let best: Found | null = null;
  for (let runs = 0; runs < runsMax; runs += 1) {
    const drafted = await run(probabilityMin);
    if (last !== null) slope = slopeBetween(last, { probabilityMin, drafted, slope });
    const found = { probabilityMin, drafted, slope };
    if (best === null || Math.abs(drafted - wanted) < Math.abs(best.drafted - wanted)) best = found;
    if (isClose(drafted, wanted, tolerance) || slope >= 0) break;
    last = found;
    const next = stepTo(found, wanted);
    if (next === probabilityMin) break;
    probabilityMin = next;
  }
  return best ?? start;
}

export function isClose(drafted: number, wanted: number, tolerance: number): boolean {
  return Math.abs(drafted - wanted) <= wanted * tolerance;
}

/** A secant that was measured over next to no distance, or upwards, is not trusted: the old one is kept. */
function slopeBetween(last: Found, now: Found): number {
  const distance = Math.log(now.probabilityMin) - Math.log(last.probabilityMin);
  const slope = (now.drafted - last.drafted) / distance;
  return Number.isFinite(slope) && slope < 0 ? slope : last.slope;
}

/** At most a factor of e: a flat secant would leap out of its range. */
function stepTo(from: Found, wanted: number): number {
  const step = Math.max(-1, Math.min(1, (wanted - from.drafted) / from.slope));
  const next = from.probabilityMin * Math.exp(step);
  return Math.min(THRESHOLD_MAX, Math.max(THRESHOLD_MIN, next));
}
