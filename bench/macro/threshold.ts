// Finds the probability threshold at which a drafter drafts a wanted number of tokens a step, so that drafters are
// compared at equal verification cost.

/** Below what any drafter is asked for: the core drafts nothing under 1/128. */
const THRESHOLD_MIN = 1 / 512;

export interface Found<T> {
  readonly probabilityMin: number;
  /** Tokens a step. */
  readonly drafted: number;
  readonly outcome: T;
}

/**
 * Bisects ln(threshold) until `drafted`, which must not grow with the threshold, is within `tolerance` (a share) of
 * `wanted`. If even the lowest threshold drafts less than that, it is what is returned.
 */
export async function bisect<T>(
  run: (probabilityMin: number) => Promise<{ drafted: number; outcome: T }>,
  options: { wanted: number; tolerance: number; runsMax: number },
): Promise<Found<T>> {
  const { wanted, tolerance, runsMax } = options;
  const distanceOf = ({ drafted }: Found<T>) => Math.abs(drafted - wanted);
  const at = async (probabilityMin: number) => ({ probabilityMin, ...(await run(probabilityMin)) });
  let best = await at(THRESHOLD_MIN);
  let [low, high] = [Math.log(THRESHOLD_MIN), 0];
  if (best.drafted <= wanted) return best;
  for (let runs = 1; runs < runsMax && distanceOf(best) > wanted * tolerance; runs += 1) {
    const ln = (low + high) / 2;
    const middle = await at(Math.exp(ln));
    if (distanceOf(middle) < distanceOf(best)) best = middle;
    if (middle.drafted > wanted) low = ln;
    else high = ln;
  }
  return best;
}
