// Messages of the worker link to bytes and back. Never throws on what a peer sent.

import type { Decoded } from "../../proto/checked.ts";
import { InvalidEvents, packEvents, type TokenColumns, unpackEvents } from "../packed-events.ts";
import { decodeFrame, encodeFrame } from "./frame.ts";
import { NAME_CHARS_MAX } from "./limits.ts";
import {
  HOST_MESSAGE,
  type HostMessage,
  type OtherEvent,
  SIDECAR_MESSAGE,
  type SidecarMessage,
  type TokensEvent,
  type WireEvent,
} from "./message.ts";

export function encodeSidecarMessage(message: SidecarMessage): Uint8Array {
  switch (message.kind) {
    case "commands": {
      const commands = message.commands.map((command) => {
        if (command.kind !== "run" || command.request.sampling.engineFields === null)
          return command;
        const { sampling } = command.request;
        const engineFields = JSON.stringify(sampling.engineFields);
        return {
          ...command,
          request: { ...command.request, sampling: { ...sampling, engineFields } },
        };
      });
      return encodeFrame({ ...message, commands });
    }
    case "operation":
      return encodeFrame({ ...message, operation: textOf(message.operation) });
    default:
      return encodeFrame(message);
  }
}

export function decodeSidecarMessage(bytes: Uint8Array): Decoded<SidecarMessage> {
  return decodeFrame(bytes, SIDECAR_MESSAGE);
}

export function encodeHostMessage(message: HostMessage): Uint8Array {
  switch (message.kind) {
    case "events":
      return encodeFrame({ kind: "events", epoch: message.epoch, ...pack(message.events) });
    case "answer": {
      const { answer } = message;
      return encodeFrame({ ...message, answer: { ...answer, body: textOf(answer.body) } });
    }
    default:
      return encodeFrame(message);
  }
}

export function decodeHostMessage(bytes: Uint8Array): Decoded<HostMessage> {
  const decoded = decodeFrame(bytes, HOST_MESSAGE);
  if (decoded.kind !== "ok") return decoded;
  const { message } = decoded;
  if (message.kind !== "events") return { kind: "ok", message };
  const { kind, epoch } = message;
  try {
    return { kind: "ok", message: { kind, epoch, events: unpackEvents(message, tokensOf) } };
  } catch (error) {
    if (!(error instanceof InvalidEvents)) throw error;
    return { kind: "invalid_message", problem: error.message };
  }
}

function textOf(body: unknown): string {
  return JSON.stringify(body ?? null);
}

function pack(events: readonly WireEvent[]): object {
  const sent = events.map((event) => (event.kind === "tokens" ? event : shortened(event)));
  return packEvents<TokensEvent, OtherEvent>(sent, ({ run }) => run);
}

/** An engine's message may be longer than a peer takes. */
function shortened(event: OtherEvent): OtherEvent {
  const short = (message: string) => message.slice(0, NAME_CHARS_MAX);
  if (event.kind === "failed") return { ...event, message: short(event.message) };
  if (event.kind !== "chunk_done" || event.refusal === undefined) return event;
  const { status, message } = event.refusal;
  return { ...event, refusal: { status, message: short(message) } };
}

function tokensOf(run: number, columns: TokenColumns): TokensEvent {
  return { kind: "tokens", run, ...columns };
}
