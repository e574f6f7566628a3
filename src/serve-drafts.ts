// The draft service behind /v1/draft: all groups of the sidecar, for engines with the plugin.

import { randomWord, wallClock } from "./app.ts";
import { SAMPLES_MAX } from "./core/draft/service/limits.ts";
import { DraftServer } from "./core/draft/service/server.ts";
import type { Timers } from "./host/timers.ts";
import type { ServeOptions } from "./serve-options.ts";
import { DraftSocketService } from "./server/drafts/draft-socket.ts";
import { EngineTelemetry } from "./server/drafts/engine-telemetry.ts";
import { followedResponses } from "./server/drafts/followed-responses.ts";
import type { PromptHistory } from "./server/history/prompt-history.ts";
import type { Sidecar } from "./server/sidecar.ts";

/** Interval of the sweep for unused draft groups. */
const DRAFT_SWEEP_MS = 1000;

export interface Drafts {
  readonly server: DraftServer;
  readonly telemetry: EngineTelemetry;
  readonly service: DraftSocketService;
  /** Every connection ends. */
  end(): void;
}

/** The draft service for engines with the plugin: all groups of the sidecar, under its weight epochs. */
export function draftsOf(
  options: ServeOptions,
  sidecar: Sidecar,
  parts: { history: PromptHistory | null; timers: Timers },
): Drafts {
  const { history } = parts;
  const server = new DraftServer({
    clock: wallClock,
    instanceId: randomWord(),
    // Responses to a prompt that comes again and again are all of one group.
    limits: { samplesMax: SAMPLES_MAX },
    leads: true,
    source: followedResponses(sidecar.rollout, history),
    release: options.version,
  });
  const telemetry = new EngineTelemetry({
    clock: wallClock,
    drafts: options.draft !== "off",
    notLossless: options.events.notLossless,
  });
  const { afterwards, repeatedly } = parts.timers;
  const service = new DraftSocketService({ server, reports: telemetry, later: afterwards });
  const stopSweeping = repeatedly(() => server.sweep(), DRAFT_SWEEP_MS);
  return {
    server,
    telemetry,
    service,
    end: () => {
      stopSweeping();
      service.end();
    },
  };
}
