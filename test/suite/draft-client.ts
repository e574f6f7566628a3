// The engine's end of the draft protocol, as the plugin has it in Python: messages to frames, the server's frames to
// messages, and a connection. It checks nothing: what the server says is the tests' business.

import { readFileSync } from "node:fs";
import protobuf from "protobufjs";
import { WebSocket } from "ws";
import { type GroupId, weightEpoch } from "../../src/core/base/ids.ts";
import {
  type ClientMessage,
  type Fetch,
  REFUSAL_REASONS,
  type RegisterGroup,
  type SampleDelta,
  type ServerMessage,
  type Update,
} from "../../src/core/draft/service/message.ts";
import type { DraftServer } from "../../src/core/draft/service/server.ts";
import { wallTimers } from "../../src/engines/vllm/clock.ts";
import { DraftSocketService } from "../../src/server/drafts/draft-socket.ts";
import { serveHttp } from "../../src/server/http.ts";

interface Served {
  readonly port: number;
  readonly apiToken: string | null;
}

export const TTL_MS = 60_000;

export function registerOf(groupId: GroupId, prompt: Int32Array, epoch = 0): RegisterGroup {
  return { kind: "register_group", epoch: weightEpoch(epoch), groupId, ttlMs: TTL_MS, prompt };
}

/** Tokens of one response. */
export function updateOf(groupId: GroupId, delta: SampleDelta, epoch = 0): Update {
  return { kind: "update", epoch: weightEpoch(epoch), groups: [{ groupId, deltas: [delta] }] };
}

export function fetchOf(groupId: GroupId, have: readonly number[], epoch = 0): Fetch {
  return { kind: "fetch", epoch: weightEpoch(epoch), states: [{ groupId, have }] };
}

/** A draft server on a port of its own. */
export function serveDrafts(
  server: DraftServer,
  { port = 0, apiToken = null }: Partial<Served> = {},
) {
  const later = (act: () => void, ms: number) => wallTimers.after(ms, act);
  const service = new DraftSocketService({ server, later });
  const http = serveHttp({
    ...{ host: "127.0.0.1", port, apiToken, routes: [], sockets: { "/v1/draft": service } },
    ...{ bodyBytesMax: 1024, frameBytesMax: server.limits.frameBytesMax },
    answered: () => {},
    failed: (error) => console.error(error),
  });
  return { http, service };
}

export interface Exchanged {
  readonly answers: ServerMessage[];
  /** null: the connection stayed open. */
  readonly closed: { readonly code: number; readonly reason: string } | null;
}

/** Sends frames on a connection of its own, and waits until each has its answer or the connection has ended. */
export async function exchange(
  url: string,
  messages: readonly (ClientMessage | Uint8Array | string)[],
): Promise<Exchanged> {
  const answers: ServerMessage[] = [];
  const socket = new WebSocket(url, { perMessageDeflate: false });
  const outcome = new Promise<Exchanged["closed"]>((resolve) => {
    socket.on("error", () => {});
    socket.on("close", (code, reason) => resolve({ code, reason: reason.toString() }));
    socket.on("message", (data: Buffer) => {
      answers.push(decodeServerMessage(data));
      if (answers.length === messages.length) resolve(null);
    });
  });
  const opened = new Promise<void>((resolve) => socket.once("open", () => resolve()));
  await Promise.race([opened, outcome]);
  for (const message of messages) {
    const isRaw = typeof message === "string" || message instanceof Uint8Array;
    socket.send(isRaw ? message : encodeClientMessage(message), () => {});
  }
  const closed = await outcome;
  socket.terminate();
  return { answers, closed };
}

const SCHEMA = new URL("../../proto/draft.proto", import.meta.url);
const { root } = protobuf.parse(readFileSync(SCHEMA, "utf8"));
const clientFrame = root.lookupType("foretoken.draft.v1.ClientFrame");
const serverFrame = root.lookupType("foretoken.draft.v1.ServerFrame");
const STATUSES = ["ok", "stale_epoch", "conflict", "full"] as const;

const toBytes = (tokens: Int32Array) =>
  new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
const toTokens = (bytes: Uint8Array) => new Int32Array(new Uint8Array(bytes).buffer);

function fieldsOf(message: ClientMessage): object {
  switch (message.kind) {
    case "hello":
      return { hello: message };
    case "register_group":
      return { registerGroup: { ...message, prompt: toBytes(message.prompt) } };
    case "update": {
      const groups = message.groups.map(({ groupId, deltas }) => ({
        groupId,
        deltas: deltas.map((delta) => ({ ...delta, tokens: toBytes(delta.tokens) })),
      }));
      return { update: { epoch: message.epoch, groups } };
    }
    case "fetch":
      return { fetch: message };
    case "telemetry": {
      const { waiting, kvUsage } = message;
      return { telemetry: { ...message, waiting: waiting ?? -1, kvUsage: kvUsage ?? -1 } };
    }
    case "fetch_past":
      return { fetchPast: message };
  }
}

export function encodeClientMessage(message: ClientMessage): Uint8Array {
  return clientFrame.encode(fieldsOf(message) as protobuf.Message).finish();
}

interface Wire {
  readonly status: number;
  readonly groups: { deltas: { tokens: Uint8Array }[] }[];
  readonly refusals: { reason: number }[];
  readonly responses: Uint8Array[];
  readonly telemetryMs: number;
  readonly hasPast: boolean;
}

/** @throws where it is no frame of the server. */
export function decodeServerMessage(frame: Uint8Array): ServerMessage {
  const options = { defaults: true, arrays: true, longs: Number, oneofs: true };
  const plain = serverFrame.toObject(serverFrame.decode(frame), options);
  const kind = plain.body as ServerMessage["kind"];
  const { telemetryMs, hasPast, ...fields } = plain[kind] as Wire;
  const message = { kind, ...fields } as object;
  const status = { status: STATUSES[fields.status - 1] };
  switch (kind) {
    case "welcome":
      if (telemetryMs > 0) Object.assign(message, { telemetryMs });
      if (hasPast) Object.assign(message, { hasPast });
      break;
    case "registered":
      Object.assign(message, status);
      break;
    case "updated": {
      const refusals = fields.refusals.map((one) => ({
        ...one,
        reason: REFUSAL_REASONS[one.reason - 1],
      }));
      Object.assign(message, status, { refusals });
      break;
    }
    case "fetched": {
      const groups = fields.groups.map((group) => ({
        ...group,
        deltas: group.deltas.map((delta) => ({ ...delta, tokens: toTokens(delta.tokens) })),
      }));
      Object.assign(message, status, { groups });
      break;
    }
    case "past":
      Object.assign(message, status, { responses: fields.responses.map(toTokens) });
      break;
  }
  return message as ServerMessage;
}
