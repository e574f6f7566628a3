// One attempt to reach a host: opens a WebSocket, sends the hello, and hands over what follows. Owns nothing
// afterwards.

import { WebSocket } from "ws";
import type { Clock } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import { CLOSE } from "../../proto/close-codes.ts";
import { type Closed, Connection } from "./connection.ts";
import {
  FRAME_OVERHEAD_BYTES,
  LINK_PATH,
  LINK_PROTOCOL_VERSION,
  type LinkLimits,
} from "./limits.ts";
import type { Data, Welcome } from "./message.ts";

export interface DialOptions {
  readonly url: URL;
  readonly token: string | null;
  readonly sidecar: SidecarIdentity;
  readonly limits: LinkLimits;
  readonly clock: Clock;
}

/** Who dials. */
export interface SidecarIdentity {
  /** Random; the same for all sessions that one owner begins, one after the other, with one host. */
  readonly id: string;
  /** Display name, sent to other sidecars that request the worker. */
  readonly name: string;
}

/** The session: whether it may begin, and how many of its data frames have arrived. */
export interface Wanted {
  readonly sessionId: string;
  readonly isNew: boolean;
  readonly received: number;
}

export interface DialListener {
  /** `ack`: data frames that the host has. */
  welcome(connection: Connection, welcome: Welcome, ack: number): void;
  data(connection: Connection, frame: Data): void;
  /** The host is silent; null: it sends again. */
  quiet(connection: Connection, reason: string | null): void;
  closed(connection: Connection, closed: Closed): void;
}

/** @throws AppError usage if `url` is none of a host. */
export function hostUrl(url: string): URL {
  const parsed = URL.parse(url);
  const isSocket = parsed?.protocol === "ws:" || parsed?.protocol === "wss:";
  if (parsed === null || !isSocket) {
    throw new AppError("usage", `"${url}" is not a worker; ws://HOST:PORT is`);
  }
  if (parsed.pathname === "/") parsed.pathname = LINK_PATH;
  return parsed;
}

export function dial(options: DialOptions, wanted: Wanted, listener: DialListener): Connection {
  const { limits, clock } = options;
  const socket = new WebSocket(options.url.href, {
    maxPayload: limits.frameBytesMax + FRAME_OVERHEAD_BYTES,
    perMessageDeflate: false,
    handshakeTimeout: limits.silenceMsMax,
  });
  let isWelcome = false;
  const connection: Connection = new Connection(socket, {
    limits,
    clock,
    listener: {
      frame: (body, ack) => {
        if (body.kind === "data" && isWelcome) listener.data(connection, body);
        else if (body.kind !== "welcome" || isWelcome) {
          connection.end(CLOSE.protocol, `unexpected_message: a ${body.kind}`);
        } else if (body.protocolVersion !== LINK_PROTOCOL_VERSION) {
          const versions = `${body.protocolVersion}, not ${LINK_PROTOCOL_VERSION}`;
          connection.end(CLOSE.version, `version: the host speaks ${versions}`);
        } else {
          isWelcome = true;
          listener.welcome(connection, body, ack);
        }
      },
      quiet: (reason) => listener.quiet(connection, reason),
      closed: (closed) => listener.closed(connection, closed),
    },
  });
  socket.on("open", () => {
    connection.send(
      {
        kind: "hello",
        protocolVersion: LINK_PROTOCOL_VERSION,
        token: options.token ?? "",
        sessionId: wanted.sessionId,
        isNew: wanted.isNew,
        messageBytesMax: limits.messageBytesMax,
        kvBytesMax: limits.kvBytesMax,
        sidecarId: options.sidecar.id,
        sidecarName: options.sidecar.name,
      },
      wanted.received,
    );
  });
  return connection;
}
