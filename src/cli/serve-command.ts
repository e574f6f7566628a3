// `foretoken serve`: runs the sidecar until a signal stops it.

import type { Command } from "commander";
import packageJson from "../../package.json" with { type: "json" };
import { EngineSources } from "../compose/engines.ts";
import { type Log, stderrLog } from "../compose/log.ts";
import type { EngineSettings } from "../compose/model.ts";
import { type Ending, operatorLog } from "../compose/operator-log.ts";
import { serveUntilStopped } from "../compose/server.ts";
import {
  EMBEDDED_FIELDS,
  envName,
  FIELDS,
  LISTENING_FIELDS,
  type Settings,
} from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { runNamed } from "../core/schedule/policies.ts";
import { rootsFor } from "../server/control/weights-roots.ts";
import { commandOf, givenFields, refuseGiven } from "./command.ts";
import { checkExposure } from "./exposure.ts";
import { EXIT_FAILED, EXIT_INTERRUPTED } from "./output.ts";
import { type Signals, untilSignal } from "./signals.ts";
import { catchUncaught } from "./uncaught.ts";

const POLICY_FIELDS = ["policy", "chunkTokens", "historyMb", "journal"] as const;
const ENGINES_FIELDS = ["tokenizer", "servedModelName", "workerToken", "minWorkers"] as const;
const RUNNING_FIELDS = ["weightsRoot", "weightsTimeoutS", "drainS", "log", "config"] as const;
/** Options of every command that serves. */
export const SERVING_FIELDS = [
  ...LISTENING_FIELDS,
  ...ENGINES_FIELDS,
  ...POLICY_FIELDS,
  ...RUNNING_FIELDS,
] as const;

const MIB = 1024 * 1024;
/** Default port, which is vLLM's. */
const PORT = 8000;
/** Default KV of an embedded engine: a server's requests are longer than those of the example job. */
const KV_TOKENS = 32_768;
/** Time in which a retry with the id of a request whose client has left takes it over. */
const RETRY_GRACE_MS = 30_000;

const EXAMPLES = `
Examples:
  $ foretoken serve --llama 2      two embedded engines on the bundled model
  $ foretoken serve --worker http://gpu-0:8000 --worker http://gpu-1:8000
  $ foretoken serve                engines come later, by POST /workers
  $ foretoken serve --config foretoken.toml`;

export const serveCommand = commandOf({
  name: "serve",
  description: "Serve a pool of engines to a trainer as if it were one `vllm serve`.",
  help: EXAMPLES,
  fields: ["worker", "llama", "model", ...EMBEDDED_FIELDS, ...SERVING_FIELDS],
  defaults: { port: PORT, kvTokens: KV_TOKENS },
  run: async (settings, _, command) => {
    const log = stderrLog(settings.log);
    checkUseless(command, settings.llama, log);
    return await serve(settings, log);
  },
});

type ServeSettings = ServingSettings &
  Settings<"worker" | "llama" | "model" | (typeof EMBEDDED_FIELDS)[number]>;

/** Throws AppError usage if a setting that was given can have no effect; for an inherited one it only warns. */
function checkUseless(command: Command, llama: number, log: Log): void {
  if (llama > 0) return;
  const of = "embedded engines (--llama)";
  refuseGiven(command, EMBEDDED_FIELDS, `here: it is for ${of}, and there are none`);
  for (const name of givenFields(command, EMBEDDED_FIELDS).inherited) {
    log("warn", "no_effect", { setting: envName(FIELDS[name]), reason: `it is for ${of}` });
  }
}

async function serve(settings: ServeSettings, log: Log): Promise<number> {
  checkExposure(settings, (reason) => log("warn", "insecure", { reason }));
  const count = settings.worker.length + settings.llama;
  if (count > 0 && settings.minWorkers > count) {
    const problem = `--min-workers is ${settings.minWorkers}, and there are ${count} workers`;
    throw new AppError("usage", problem);
  }
  const { slots, kvTokens, deterministic } = settings;
  const own = { count: settings.llama, slots, kvTokens, deterministic };
  const engines = { ...settings, embedded: settings.llama === 0 ? null : own };
  return await serveOver(engines, { settings, log, signals: untilSignal() });
}

/** The settings that serving needs with every kind of engine. */
export type ServingSettings = Settings<(typeof SERVING_FIELDS)[number]>;

/** Serves until a signal stops it, and returns the exit status. @throws AppError: as `serveUntilStopped`. */
export async function serveOver(
  named: EngineSettings,
  parts: { settings: ServingSettings; log: Log; signals: Signals },
): Promise<number> {
  const { settings, log, signals: stopping } = parts;
  const broken = Promise.withResolvers<never>();
  broken.promise.catch(() => undefined);
  const events = operatorLog(log, broken.reject);
  const engines = new EngineSources(named, events);
  const weightsRoots = await rootsFor(settings.host, settings.weightsRoot);
  const options = {
    host: settings.host,
    port: settings.port,
    apiToken: settings.apiToken,
    allowOrigins: settings.allowOrigin,
    weightsRoots,
    historyBytes: settings.historyMb * MIB,
    journal: settings.journal,
    ...runNamed(settings.policy),
    chunkTokens: settings.chunkTokens,
    workersMin: settings.minWorkers,
    retryGraceMs: RETRY_GRACE_MS,
    weightsTimeoutMs: settings.weightsTimeoutS * 1000,
    version: packageJson.version,
  };
  const uncatch = catchUncaught(log);
  try {
    return statusOf(
      await serveUntilStopped({
        engines,
        options,
        events,
        stopping,
        broken: broken.promise,
        drainS: settings.drainS,
      }),
    );
  } finally {
    uncatch();
  }
}

function statusOf(ending: Ending): number {
  if (ending === "drained") return 0;
  return ending === "interrupted" || ending === "second_signal" ? EXIT_INTERRUPTED : EXIT_FAILED;
}
