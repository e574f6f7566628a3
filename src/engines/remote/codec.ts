// Messages of the worker link to bytes and back. Never throws on what a peer sent.

import type { Decoded } from "../../proto/checked.ts";
import { InvalidEvents, packEvents, unpackEvents } from "../packed-events.ts";
import { decodeFrame, encodeFrame } from "./frame.ts";
import {
  HOST_MESSAGE,
  type HostMessage,
  type OtherEvent,
  SIDECAR_MESSAGE,
  type SidecarMessage,
  type TokensEvent,
} from "./message.ts";

export function encodeSidecarMessage(message: SidecarMessage): Uint8Array {
  return encodeFrame(message);
}

export function decodeSidecarMessage(bytes: Uint8Array): Decoded<SidecarMessage> {
  return decodeFrame(bytes, SIDECAR_MESSAGE);
}

export function encodeHostMessage(message: HostMessage): Uint8Array {
  if (message.kind !== "events") return encodeFrame(message);
  const { kind, epoch, events } = message;
  const packed = packEvents<TokensEvent, OtherEvent>(events, ({ run }) => run);
  return encodeFrame({ kind, epoch, ...packed });
}

export function decodeHostMessage(bytes: Uint8Array): Decoded<HostMessage> {
  const decoded = decodeFrame(bytes, HOST_MESSAGE);
  if (decoded.kind !== "ok") return decoded;
  const { message } = decoded;
  if (message.kind !== "events") return { kind: "ok", message };
  const { kind, epoch } = message;
  try {
    const events = unpackEvents(message, (run, columns): TokensEvent => {
      return { kind: "tokens", run, ...columns };
    });
    return { kind: "ok", message: { kind, epoch, events } };
  } catch (error) {
    if (!(error instanceof InvalidEvents)) throw error;
    return { kind: "invalid_message", problem: error.message };
  }
}
