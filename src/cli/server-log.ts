// What `foretoken up` logs of the programs that it keeps running.

import type { ServerEvent } from "../tools/up/managed-server.ts";
import type { Log } from "./log.ts";

export function logServerEvent(
  log: Log,
  server: { name: string; port: number },
  event: ServerEvent,
): void {
  switch (event.kind) {
    case "started":
      log("info", "server_started", { ...server, pid: event.pid });
      return;
    case "waiting": {
      const { lastLine } = event;
      log("info", "server_starting", {
        ...server,
        seconds: seconds(event.ms),
        last_line: lastLine,
      });
      return;
    }
    case "healthy":
      log("info", "server_healthy", { ...server, seconds: seconds(event.ms) });
      return;
    case "died":
      log("error", "server_died", { ...server, how: event.how });
      for (const line of event.lines) log("error", "server_said", { name: server.name, line });
      return;
    case "restarts":
      log("warn", "server_restarts", { ...server, seconds: seconds(event.inMs) });
      return;
    default:
      log("error", "server_gave_up", server);
  }
}

function seconds(ms: number): number {
  return Math.round(ms / 100) / 10;
}
