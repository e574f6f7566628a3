// A client's connection to one draft server, as a port. Implemented over a WebSocket in
// src/server/draft-client.ts and in one process by local-link.ts.

import type { ClientMessage, ServerMessage } from "./message.ts";

/** full: too much waits to be sent; try again later. closed: the connection is gone. */
export type LinkSend = "sent" | "full" | "closed";

export interface Link {
  /** Never blocks and never throws. */
  send(message: ClientMessage): LinkSend;
  /** Ends the connection; `closed` need not follow. Safe to call twice. */
  close(): void;
}

/** What a link tells its owner, in order; nothing after `closed`. Any of it may come during a call. */
export interface LinkEvents {
  opened(): void;
  received(message: ServerMessage): void;
  /** The connection failed, was refused, or ended. */
  closed(problem: string): void;
}

/** Begins a connection. Never throws: what goes wrong is told by `closed`. */
export type Dial = (events: LinkEvents) => Link;
