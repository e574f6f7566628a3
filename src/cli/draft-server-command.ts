// `foretoken draft-server`: one draft server on a socket, until a signal stops it. Engines with the vLLM plugin
// share the tokens of their groups through it where no sidecar runs (docs/PROTOCOL.md). It keeps everything in
// memory: the engines send again what is lost with it.

import packageJson from "../../package.json" with { type: "json" };
import { listening } from "../compose/server.ts";
import { LISTENING_FIELDS, type Settings } from "../config/fields.ts";
import { DraftServer } from "../core/draft/service/server.ts";
import { randomWord, wallClock } from "../host/system.ts";
import { timersOf } from "../host/timers.ts";
import { DraftSocketService } from "../server/drafts/draft-socket.ts";
import { commandOf } from "./command.ts";
import { checkExposure } from "./exposure.ts";
import { untilSignal } from "./signals.ts";

const MIB = 2 ** 20;
const PATH = "/v1/draft";
/** Interval between searches for groups whose lifetime has passed. */
const SWEEP_MS = 1000;
const WATCH_MS = 10_000;
/** Time for peers to answer a close. */
const CLOSE_MS_MAX = 2000;
const CLOSE_LOOK_MS = 20;

const EXAMPLES = `
Examples:
  $ foretoken draft-server                            loopback only
  $ FORETOKEN_API_TOKEN=... foretoken draft-server --host 0.0.0.0 --port 7447`;

export const draftServerCommand = commandOf({
  name: "draft-server",
  description: "Share the tokens of each group's responses between engines that draft from them.",
  help: EXAMPLES,
  fields: LISTENING_FIELDS,
  run: serveDrafts,
});

async function serveDrafts(settings: Settings<(typeof LISTENING_FIELDS)[number]>): Promise<number> {
  const { host, port, apiToken, allowOrigin: allowOrigins } = settings;
  checkExposure(settings, (reason) => console.error(`draft-server: ${reason} [insecure]`));
  const failed = (error: unknown) => console.error("draft-server:", error);
  const timers = timersOf(failed);
  const server = new DraftServer({
    clock: wallClock,
    instanceId: randomWord(),
    release: packageJson.version,
  });
  const service = new DraftSocketService({ server, later: timers.afterwards });
  const http = listening(
    { host, port, apiToken, allowOrigins },
    { routes: [], sockets: { [PATH]: service }, answered: () => {}, failed },
  );
  const { first: stopped, release } = untilSignal();
  console.log(`draft server on ws://${http.url.host}${PATH}`);
  timers.repeatedly(() => server.sweep(), SWEEP_MS);
  timers.repeatedly(evictionsOf(server), WATCH_MS);
  await stopped;
  // A second signal ends the process, as by default.
  release();
  service.end();
  const deadlineMs = wallClock.nowMs() + CLOSE_MS_MAX;
  while (service.connections > 0 && wallClock.nowMs() < deadlineMs) await Bun.sleep(CLOSE_LOOK_MS);
  await http.stop();
  timers.stop();
  return 0;
}

/** Prints on stderr how many groups were dropped for lack of room since the last time. */
function evictionsOf(server: DraftServer): () => void {
  let reported = 0;
  return () => {
    const { groupsEvicted, groups, bytes } = server.stats();
    if (groupsEvicted === reported) return;
    const dropped = `${groupsEvicted - reported} groups dropped for lack of room`;
    const left = `${groups} groups in ${Math.ceil(bytes / MIB)} MiB remain`;
    console.error(`draft-server: ${dropped}; ${left}`);
    reported = groupsEvicted;
  };
}
