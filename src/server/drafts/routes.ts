// GET /foretoken/engines: the last telemetry of engines with the plugin, and the draft service's groups.

import type { DraftServer } from "../../core/draft/service/server.ts";
import { jsonResponse, type Row } from "../route.ts";
import type { EngineFigures, EngineTelemetry } from "./engine-telemetry.ts";

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
  };
}
