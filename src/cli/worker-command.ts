// `foretoken worker`: one embedded engine, controlled by a sidecar on another machine over a WebSocket
// (docs/PROTOCOL.md), until a signal stops it. It stores nothing: tokens that are lost with it are generated again
// elsewhere.

import { Command } from "commander";
import type { Settings } from "../config/fields.ts";
import { AppError, errorText } from "../core/base/errors.ts";
import { weightEpoch } from "../core/base/ids.ts";
import type { Worker } from "../core/rollout/worker.ts";
import { type LlamaModel, openLlamaModel } from "../engines/llama/open.ts";
import { LinkHost, type LinkHostEvent } from "../engines/remote/host.ts";
import { BUNDLED_MODEL } from "../host/installation.ts";
import { wallClock } from "../host/system.ts";
import { EngineKeeper } from "../tools/up/engine-keeper.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { checkExposure } from "./exposure.ts";
import { type Log, stderrLog } from "./log.ts";
import { catchUncaught } from "./operator-log.ts";
import { EXIT_FAILED } from "./output.ts";
import { untilStopSignal } from "./signals.ts";

const FIELD_NAMES = [
  "model",
  "listen",
  "insecure",
  "workerToken",
  "slots",
  "kvTokens",
  "contextTokens",
  "deterministic",
  "log",
] as const;

type WorkerSettings = Settings<(typeof FIELD_NAMES)[number]>;

/** Epoch of the weights at the start; the sidecar counts from there. */
const EPOCH = weightEpoch(0);

const EXAMPLES = `
Examples:
  $ foretoken worker                 the bundled model, loopback only
  $ FORETOKEN_WORKER_TOKEN=... foretoken worker --model m.gguf \\
      --listen 0.0.0.0:7448`;

export function workerCommand(setStatus: (status: number) => void): Command {
  const command = new Command("worker")
    .description("Run one engine for a sidecar on another machine.")
    .addHelpText("after", EXAMPLES);
  addFields(command, FIELD_NAMES);
  return command.action(async () => {
    setStatus(await serveWorker(readFields(command, FIELD_NAMES)));
  });
}

async function serveWorker(settings: WorkerSettings): Promise<number> {
  const address = parseAddress(settings.listen);
  const { workerToken: token, insecure } = settings;
  const protection = { token, tokenFlag: "--worker-token", insecure };
  const warning = checkExposure({ flag: "--listen", host: address.host, ...protection });
  if (warning !== null) console.error(`worker: ${warning} [insecure]`);
  const path = settings.model ?? BUNDLED_MODEL;
  const model = await openLlamaModel({ path, deterministic: settings.deterministic });
  try {
    return await serveModel(model, settings, address);
  } finally {
    model.close();
  }
}

async function serveModel(
  model: LlamaModel,
  settings: WorkerSettings,
  address: { host: string; port: number },
): Promise<number> {
  const log = stderrLog(settings.log);
  const engine = await EngineKeeper.open(() => openEngine(model, settings), {
    later: (act, ms) => {
      const timer = setTimeout(act, ms);
      return () => clearTimeout(timer);
    },
    nowMs: () => wallClock.nowMs(),
    notify: (kind, fields) => log("warn", kind, fields),
  });
  try {
    const host = await LinkHost.listen({
      ...address,
      worker: engine.worker,
      vocabularySize: model.vocabularySize,
      epoch: EPOCH,
      token: settings.workerToken,
      clock: wallClock,
      events: (event) => {
        tell(log, event);
        if (event.kind === "worker_failed") engine.failed();
      },
    });
    engine.serve((worker) => host.replace(worker, EPOCH));
    // A bug in the code that serves a session ends the session, and the next one has a new engine. The process
    // continues however many there are, because nothing else would restart it.
    const failed = (error: unknown) => host.workerFailed(`a bug: ${errorText(error)}`);
    const restore = catchUncaught(log, failed, Number.POSITIVE_INFINITY);
    const stopped = untilStopSignal().then(() => null);
    console.log(`worker on ${host.url}`);
    const failure = await Promise.race([stopped, engine.gaveUp]);
    restore();
    await host.close();
    if (failure === null) return 0;
    console.error(`foretoken: the engine cannot be started: ${failure} [worker_failed]`);
    return EXIT_FAILED;
  } finally {
    await engine.close();
  }
}

async function openEngine(model: LlamaModel, settings: WorkerSettings): Promise<Worker> {
  const { slots, kvTokens } = settings;
  const contextTokens = settings.contextTokens ?? Math.min(model.contextTokens, kvTokens);
  const capacity = { slots, kvTokens, contextTokens };
  const [worker] = await model.openWorkers({ workers: 1, epoch: EPOCH, ...capacity });
  if (worker === undefined) throw new AppError("worker_failed", "the engine did not open");
  return worker;
}

function tell(log: Log, { kind, ...fields }: LinkHostEvent): void {
  log(kind === "session_began" ? "info" : "warn", kind, fields);
}

/** `HOST:PORT`, the host in brackets if it is an IPv6 address. @throws AppError usage. */
function parseAddress(listen: string): { host: string; port: number } {
  const [, bracketed, plain, digits] = /^(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})$/.exec(listen) ?? [];
  const host = bracketed ?? plain;
  const port = Number(digits);
  if (host !== undefined && port <= 65_535) return { host, port };
  throw new AppError("usage", `--listen is "${listen}"; it is HOST:PORT, like 127.0.0.1:7448`);
}
