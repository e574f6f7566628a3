// `foretoken draft-server`: one draft server on a socket, until it is told to stop. Engines on any
// machine share the tokens of their groups through it (docs/PROTOCOL.md); several share the groups by
// name. It keeps everything in memory: what is lost with it, the engines send again.

import { Command } from "commander";
import { wallClock } from "../app.ts";
import type { Settings } from "../config/fields.ts";
import { DraftServer } from "../draft/service/server.ts";
import { DraftService } from "../server/draft-service.ts";
import { addFields, readFields } from "./commander-fields.ts";

const FIELD_NAMES = [
  "host",
  "port",
  "draftGroups",
  "draftMemoryMb",
  "draftGroupMemoryMb",
  "draftWindowTokens",
  "draftFrameKb",
  "draftConnections",
  "json",
  "quiet",
] as const;

type DraftServerSettings = Settings<(typeof FIELD_NAMES)[number]>;

const KIB = 2 ** 10;
const MIB = 2 ** 20;
const WATCH_MS = 10_000;

const EXAMPLES = `
Examples:
  foretoken draft-server                            loopback only
  foretoken draft-server --host 0.0.0.0 --port 7447 reachable from other machines; it asks for no password
`;

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
  const server = new DraftServer({
    clock: wallClock,
    instanceId: crypto.getRandomValues(new Uint32Array(1))[0] ?? 0,
    limits: {
      groupsMax: settings.draftGroups,
      bytesMax: settings.draftMemoryMb * MIB,
      groupBytesMax: Math.min(settings.draftGroupMemoryMb, settings.draftMemoryMb) * MIB,
      windowTokens: settings.draftWindowTokens,
      frameBytesMax: settings.draftFrameKb * KIB,
    },
  });
  const service = await DraftService.listen({
    server,
    host: settings.host,
    port: settings.port,
    connectionsMax: settings.draftConnections,
  });
  const stopped = untilSignal();
  console.log(`draft server on ${service.url}`);
  const watch = setInterval(reportEvictions(server), WATCH_MS);
  await stopped;
  clearInterval(watch);
  await service.drain();
  if (settings.json) {
    console.log(JSON.stringify({ server: server.stats(), service: service.stats() }, null, 2));
  } else if (!settings.quiet) console.log(describe(server, service));
  return 0;
}

/** The first SIGINT or SIGTERM; a second one ends the process as it always does. */
function untilSignal(): Promise<void> {
  return new Promise((resolve) => {
    const stop = () => {
      process.off("SIGINT", stop);
      process.off("SIGTERM", stop);
      resolve();
    };
    process.on("SIGINT", stop);
    process.on("SIGTERM", stop);
  });
}

/** Says on stderr how many groups were dropped for lack of room since the last time. */
function reportEvictions(server: DraftServer): () => void {
  let told = 0;
  return () => {
    const { groupsEvicted, groups, bytes } = server.stats();
    if (groupsEvicted === told) return;
    const held = `${groups} groups in ${Math.ceil(bytes / MIB)} MiB remain`;
    console.error(
      `draft-server: ${groupsEvicted - told} groups dropped for lack of room; ${held} ` +
        "(--memory-mb, --max-groups)",
    );
    told = groupsEvicted;
  };
}

function describe(server: DraftServer, service: DraftService): string {
  const { tokensTaken, tokensFetched, registered, groupsEvicted, gaps, stale } = server.stats();
  const { accepted, framesReceived, broken } = service.stats();
  return [
    `${tokensTaken} tokens taken, ${tokensFetched} fetched, ${registered} registrations, ` +
      `${groupsEvicted} groups evicted, ${gaps} gaps, ${stale} messages of older weights`,
    `${accepted} connections, ${broken} of them broken, ${framesReceived} frames`,
  ].join("\n");
}
