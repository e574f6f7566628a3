// `foretoken draft-server`: one draft server on a socket, until a signal stops it. Engines with the vLLM plugin
// share the tokens of their groups through it where no sidecar runs (docs/PROTOCOL.md). It keeps everything in
// memory: the engines send again what is lost with it.

import { Command } from "commander";
import packageJson from "../../package.json" with { type: "json" };
import { wallClock } from "../app.ts";
import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { DraftServer } from "../core/draft/service/server.ts";
import { DraftSocketService } from "../server/drafts/draft-socket.ts";
import { type HttpServer, serveHttp } from "../server/http.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { checkExposure, edgeOf } from "./exposure.ts";
import { untilStopSignal } from "./signals.ts";

const FIELD_NAMES = [
  "host",
  "port",
  "apiToken",
  "insecure",
  "allowOrigin",
  "json",
  "quiet",
] as const;

type DraftServerSettings = Settings<(typeof FIELD_NAMES)[number]>;

const MIB = 2 ** 20;
/** Beyond groups or bytes the least recently used group is dropped; a group's prompt must fit in one frame. */
const LIMITS = {
  groupsMax: 4096,
  bytesMax: 1024 * MIB,
  groupBytesMax: 64 * MIB,
  windowTokens: 4096,
  frameBytesMax: MIB,
} as const;
const CONNECTIONS_MAX = 1024;
const PATH = "/v1/draft";
/** Between two looks for groups whose lifetime has passed. */
const SWEEP_MS = 1000;
const WATCH_MS = 10_000;
/** Peers have this long to answer a close. */
const CLOSE_MS_MAX = 2000;
const CLOSE_LOOK_MS = 20;

const EXAMPLES = `
Examples:
  $ foretoken draft-server                            loopback only
  $ FORETOKEN_API_TOKEN=... foretoken draft-server --host 0.0.0.0 --port 7447`;

export function draftServerCommand(setStatus: (status: number) => void): Command {
  const command = new Command("draft-server")
    .description("Share the tokens of each group's responses between engines that draft from them.")
    .addHelpText("after", EXAMPLES);
  addFields(command, FIELD_NAMES);
  return command.action(async () => {
    setStatus(await serveDrafts(readFields(command, FIELD_NAMES)));
  });
}

async function serveDrafts(settings: DraftServerSettings): Promise<number> {
  const { host, apiToken: token, insecure } = settings;
  const protection = { token, tokenFlag: "--api-token", insecure };
  const warning = checkExposure({ flag: "--host", host, ...protection });
  if (warning !== null) console.error(`draft-server: ${warning} [insecure]`);
  const server = new DraftServer({
    clock: wallClock,
    instanceId: crypto.getRandomValues(new Uint32Array(1))[0] ?? 0,
    release: packageJson.version,
    limits: LIMITS,
  });
  const service = new DraftSocketService({
    server,
    reports: null,
    later: (act, ms) => {
      const timer = setTimeout(act, ms);
      return () => clearTimeout(timer);
    },
    connectionsMax: CONNECTIONS_MAX,
  });
  const http = listen(settings, server, service);
  const stopped = untilStopSignal();
  console.log(`draft server on ws://${http.url.host}${PATH}`);
  const timers = [
    setInterval(() => server.sweep(), SWEEP_MS),
    setInterval(reportEvictions(server), WATCH_MS),
  ];
  await stopped;
  for (const timer of timers) clearInterval(timer);
  service.end();
  const deadlineMs = performance.now() + CLOSE_MS_MAX;
  while (service.connections > 0 && performance.now() < deadlineMs) await Bun.sleep(CLOSE_LOOK_MS);
  await http.stop();
  if (settings.json) console.log(JSON.stringify({ server: server.stats() }, null, 2));
  else if (!settings.quiet) console.log(describe(server));
  return 0;
}

/** @throws AppError usage: the address cannot be had. */
function listen(
  settings: DraftServerSettings,
  server: DraftServer,
  service: DraftSocketService,
): HttpServer {
  const { host, port, apiToken, allowOrigin } = settings;
  try {
    return serveHttp({
      host,
      port,
      routes: [],
      sockets: { [PATH]: service },
      apiToken,
      ...edgeOf(allowOrigin),
      bodyBytesMax: 0,
      frameBytesMax: server.limits.frameBytesMax,
      answered: () => {},
      failed: (error) => console.error("draft-server:", error),
    });
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new AppError("usage", `cannot listen on ${host}:${port}: ${reason}`, { cause });
  }
}

/** Prints on stderr how many groups were dropped for lack of room since the last time. */
function reportEvictions(server: DraftServer): () => void {
  let reported = 0;
  return () => {
    const { groupsEvicted, groups, bytes } = server.stats();
    if (groupsEvicted === reported) return;
    const held = `${groups} groups in ${Math.ceil(bytes / MIB)} MiB remain`;
    console.error(
      `draft-server: ${groupsEvicted - reported} groups dropped for lack of room; ${held}`,
    );
    reported = groupsEvicted;
  };
}

function describe(server: DraftServer): string {
  const { tokensTaken, tokensFetched, registered, groupsEvicted, gaps, stale } = server.stats();
  return (
    `${tokensTaken} tokens taken, ${tokensFetched} fetched, ${registered} registrations, ` +
    `${groupsEvicted} groups evicted, ${gaps} gaps, ${stale} messages of older weights`
  );
}
