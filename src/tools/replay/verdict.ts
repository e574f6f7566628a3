// Whether drafting would pay on an engine, from what a replay accepted and the engine's step times. It assumes that every
// request of the batch drafts alike.

import type { CellResult } from "./cell.ts";

/** One engine step of a batch, as measured without drafts, and what each further verified token adds. */
export interface EngineSteps {
  readonly batch: number;
  readonly stepMs: number;
  readonly rowUs: number;
}

type Acceptance = Pick<CellResult, "accepted_plus_1" | "drafted_per_step" | "us_per_token">;

/** Tokens per second with drafts, over those without. Below 1: drafting costs time. */
export function speedUp(result: Acceptance, engine: EngineSteps): number {
  const { accepted_plus_1: tokens, drafted_per_step: drafted, us_per_token: draftUs } = result;
  const { batch, stepMs, rowUs } = engine;
  const verifyMs = (batch * drafted * rowUs) / 1000;
  const draftMs = (batch * tokens * draftUs) / 1000;
  return (tokens * stepMs) / (stepMs + verifyMs + draftMs);
}
