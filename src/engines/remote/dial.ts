// One attempt to reach a host: opens a WebSocket, sends the hello, and hands over what follows. Owns nothing
// afterwards. Also asks whether a host that was lost is still there.

import http from "node:http";
import https from "node:https";
import { WebSocket } from "ws";
import type { Clock } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import { CLOSE } from "../../proto/close-codes.ts";
import { decodeHostMessage, encodeSidecarMessage } from "./codec.ts";
import { type Closed, Connection } from "./connection.ts";
import { LINK_PATH, LINK_PROTOCOL_VERSION, type LinkLimits, RUN_HEADER } from "./limits.ts";
import type { HostMessage, Welcome } from "./message.ts";

export interface DialOptions {
  readonly url: URL;
  readonly token: string | null;
  readonly sidecar: SidecarIdentity;
  readonly limits: LinkLimits;
  readonly clock: Clock;
}

/** The identity that a dialling sidecar sends. */
export interface SidecarIdentity {
  /** Random; the same for all sessions that one owner begins, one after the other, with one host. */
  readonly id: string;
  /** Display name, sent to other sidecars that request the worker. */
  readonly name: string;
}

export interface DialListener {
  /** The session begins. */
  welcome(connection: HostConnection, welcome: Welcome): void;
  message(message: AfterWelcome): void;
  /** The host is silent; null: it sends again. */
  quiet(reason: string | null): void;
  closed(closed: Closed): void;
}

export type AfterWelcome = Exclude<HostMessage, { kind: "welcome" | "heartbeat" }>;
export type HostConnection = Connection<Welcome | AfterWelcome>;

const HEARTBEAT = encodeSidecarMessage({ kind: "heartbeat" });

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

export function dial(options: DialOptions, listener: DialListener): void {
  const { limits, clock } = options;
  const socket = new WebSocket(options.url.href, {
    maxPayload: limits.messageBytesMax,
    perMessageDeflate: false,
    handshakeTimeout: limits.silenceMsMax,
  });
  let isWelcome = false;
  const connection: HostConnection = new Connection<Welcome | AfterWelcome>(socket, {
    limits,
    clock,
    decode: decodeHostMessage,
    heartbeat: HEARTBEAT,
    message: (message) => {
      if (message.kind !== "welcome" && isWelcome) listener.message(message);
      else if (message.kind !== "welcome" || isWelcome) {
        connection.end(CLOSE.protocol, `unexpected_message: a ${message.kind}`);
      } else if (message.protocolVersion !== LINK_PROTOCOL_VERSION) {
        const versions = `${message.protocolVersion}, not ${LINK_PROTOCOL_VERSION}`;
        connection.end(CLOSE.version, `version: the host speaks ${versions}`);
      } else {
        isWelcome = true;
        listener.welcome(connection, message);
      }
    },
    quiet: (reason) => listener.quiet(reason),
    closed: (closed) => listener.closed(closed),
  });
  const hello = {
    kind: "hello",
    protocolVersion: LINK_PROTOCOL_VERSION,
    token: options.token ?? "",
    kvBytesMax: limits.kvBytesMax,
    sidecarId: options.sidecar.id,
    sidecarName: options.sidecar.name,
  } as const;
  socket.once("open", () => connection.push(encodeSidecarMessage(hello)));
}

/**
 * Whether the host's process is still the one that welcomed the session. Asked until something answers: a link that was
 * cut may be cut again. false: another process does, connections are refused, or nothing answers in time.
 */
export async function isStillThere(options: DialOptions, hostRun: string): Promise<boolean> {
  const { url, limits, clock } = options;
  const address = new URL(url);
  address.protocol = url.protocol === "wss:" ? "https:" : "http:";
  const endMs = clock.nowMs() + limits.openMsMax;
  let pauseMs = limits.retryMsMin;
  for (;;) {
    const leftMs = Math.max(1, endMs - clock.nowMs());
    try {
      return (await runAt(address, leftMs)) === hostRun;
    } catch (error) {
      const isRefused = Reflect.get(Object(error), "code") === "ECONNREFUSED";
      if (isRefused || clock.nowMs() + pauseMs >= endMs) return false;
    }
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
    pauseMs = Math.min(2 * pauseMs, limits.retryMsMax);
  }
}

/** The run of the host that answers; by node:http, which asks no proxy (HTTP_PROXY) for the address. */
async function runAt(address: URL, msMax: number): Promise<unknown> {
  const { get } = address.protocol === "https:" ? https : http;
  return await new Promise((resolve, reject) => {
    const asked = get(address, { signal: AbortSignal.timeout(msMax) }, ({ headers }) => {
      resolve(headers[RUN_HEADER]);
      asked.destroy();
    });
    asked.on("error", reject);
  });
}
