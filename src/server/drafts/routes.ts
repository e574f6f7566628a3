// GET /foretoken/engines: the last telemetry of engines with the plugin, and the draft service's groups.

import type { DraftServer } from "../../core/draft/service/server.ts";
import type { RouteDescription } from "../openapi.ts";
import { jsonResponse, type Route } from "../route.ts";
import type { EngineFigures, EngineTelemetry } from "./engine-telemetry.ts";

const PATH = "/foretoken/engines";

export function pluginRoutes(parts: { telemetry: EngineTelemetry; server: DraftServer }): Route[] {
  const handle = () => {
    const { groups, bytes, epoch, tokensTaken, tokensOwn, tokensFetched, tokensPast } =
      parts.server.stats();
    return jsonResponse({
      engines: parts.telemetry.figures().map(wireFigures),
      draft_service: {
        weight_epoch: epoch,
        groups,
        bytes,
        tokens_taken: tokensTaken,
        tokens_own: tokensOwn,
        tokens_fetched: tokensFetched,
        tokens_past: tokensPast,
      },
    });
  };
  return [{ method: "GET", path: PATH, handle }];
}

export function describePlugin(): RouteDescription[] {
  const summary = "Engines that draft by the plugin, and their telemetry";
  return [{ method: "GET", path: PATH, summary, request: null, streams: false }];
}

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
