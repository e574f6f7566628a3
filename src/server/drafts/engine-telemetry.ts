// Telemetry of engines with the plugin, and the answer to it: whether they may draft. Each engine decides by itself how
// many tokens it drafts. One that sends no telemetry for a while is dropped. A rollout's correctness does not depend on it.

import type { Clock } from "../../core/base/clock.ts";
import { STEP_TOKENS_UNBOUNDED } from "../../core/draft/service/limits.ts";
import type { Budget, Telemetry } from "../../core/draft/service/message.ts";
import type { DraftServer, EngineReports } from "../../core/draft/service/server.ts";
import { jsonResponse, type Row } from "../route.ts";

export interface EngineFigures extends Omit<Telemetry, "kind"> {
  /** The name that the engine gave itself. */
  readonly engine: string;
  /** Draft tokens per step that the last answer allowed; 0: the engine may not draft. */
  readonly stepTokens: number;
  readonly heardMs: number;
}

/** Limit of engines with telemetry; a sidecar has at most 64 workers. */
const ENGINES_MAX = 256;
const TELEMETRY_MS = 1_000;
/** Time for which an answer holds: several reports may be late. */
const BUDGET_TTL_MS = 10_000;
const FORGOTTEN_MS = 30_000;

export interface EngineTelemetryOptions {
  readonly clock: Clock;
  /** Whether drafting is on; false: no engine may draft. */
  readonly drafts: boolean;
  /** Called when an engine first reports that its sampler verifies drafts wrongly. */
  readonly notLossless: (engine: string, reason: string) => void;
}

export class EngineTelemetry implements EngineReports {
  readonly telemetryMs = TELEMETRY_MS;
  readonly #options: EngineTelemetryOptions;
  readonly #engines = new Map<string, EngineFigures>();

  constructor(options: EngineTelemetryOptions) {
    this.#options = options;
  }

  /** Engines with recent telemetry, by name. */
  figures(): EngineFigures[] {
    const since = this.#options.clock.nowMs() - FORGOTTEN_MS;
    for (const [name, { heardMs }] of this.#engines)
      if (heardMs < since) this.#engines.delete(name);
    return [...this.#engines.values()].sort((a, b) => (a.engine < b.engine ? -1 : 1));
  }

  /** Whether an engine drafts now in a way that changes what a seed draws, so that a request may get other tokens. */
  get variesSeeds(): boolean {
    return this.figures().some(({ stepTokens, repeatsSeeds }) => stepTokens > 0 && !repeatsSeeds);
  }

  report(engine: string, { kind: _, ...telemetry }: Telemetry): Budget {
    const previous = this.#engines.get(engine);
    if (!telemetry.isLossless && previous?.isLossless !== false) {
      this.#options.notLossless(engine, "its plugin says that its sampler verifies drafts wrongly");
    }
    const tokens = this.#options.drafts && telemetry.isLossless ? STEP_TOKENS_UNBOUNDED : 0;
    if (previous === undefined && this.#engines.size >= ENGINES_MAX) this.figures();
    if (previous !== undefined || this.#engines.size < ENGINES_MAX) {
      const heardMs = this.#options.clock.nowMs();
      this.#engines.set(engine, { ...telemetry, engine, stepTokens: tokens, heardMs });
    }
    return { kind: "budget", epoch: telemetry.epoch, stepTokens: tokens, ttlMs: BUDGET_TTL_MS };
  }
}

interface Parts {
  readonly telemetry: EngineTelemetry;
  readonly server: DraftServer;
}

export const PLUGIN_ROUTES: readonly Row<Parts>[] = [
  {
    method: "GET",
    path: "/foretoken/engines",
    summary: "Engines that draft by the plugin, and their telemetry",
    handle: ({ telemetry, server }) => {
      const { groups, bytes, epoch, ...tokens } = server.stats();
      return jsonResponse({
        engines: telemetry.figures().map(wireFigures),
        draft_service: {
          weight_epoch: epoch,
          groups,
          bytes,
          tokens_taken: tokens.tokensTaken,
          tokens_own: tokens.tokensOwn,
          tokens_fetched: tokens.tokensFetched,
          tokens_past: tokens.tokensPast,
        },
      });
    },
  },
];

function wireFigures(figures: EngineFigures): object {
  const { heardMs: _, stepTokens, ...rest } = figures;
  return {
    engine: rest.engine,
    weight_epoch: rest.epoch,
    running: rest.running,
    waiting: rest.waiting,
    kv_usage: rest.kvUsage,
    is_lossless: rest.isLossless,
    steps: rest.steps,
    step_us: rest.stepUs,
    propose_us: rest.proposeUs,
    drafted_tokens: rest.drafted,
    accepted_tokens: rest.accepted,
    traced_tokens: rest.traced,
    traced_elsewhere_tokens: rest.tracedElsewhere,
    faults: rest.faults,
    step_error: rest.stepError,
    step_tokens_max: stepTokens,
    repeats_seeds: rest.repeatsSeeds,
  };
}
