// Frames of the draft protocol as this host writes them, with the messages that they are. `canonical` is the same frame
// without fields that hold their default, as another protobuf runtime writes it; it and `body` are the file's, of which the
// plugin's tests know what Python's runtime makes. A message that is added to the file has neither at first: those tests
// print them.

import { readFileSync } from "node:fs";
import type { ClientMessage, ServerMessage } from "../../../src/core/draft/service/message.ts";
import { decodeClientMessage, encodeServerMessage } from "../../../src/proto/draft-codec.ts";
import { decodeServerMessage, encodeClientMessage } from "../../suite/draft-client.ts";

export interface GoldenFrame {
  readonly name: string;
  readonly side: "client" | "server";
  /** Lists of tokens are plain ones. */
  readonly message: unknown;
  readonly frame: string;
  readonly canonical: string;
  /** The one field that is set, as protobuf's own JSON has it (snake_case, bytes as base64, enums by name). */
  readonly body: unknown;
}

export function draftVectors(): GoldenFrame[] {
  const text = readFileSync(new URL("frames.json", import.meta.url), "utf8");
  return (JSON.parse(text) as GoldenFrame[]).map((vector) => {
    const { name, side, message } = vector;
    const bytes =
      side === "client"
        ? encodeClientMessage(said(vector) as ClientMessage)
        : encodeServerMessage(said(vector) as ServerMessage);
    const frame = Buffer.from(bytes).toString("hex");
    const { canonical = frame, body = null } = vector;
    return { name, side, message, frame, canonical, body };
  });
}

/** The message that this implementation decodes a canonical frame to. */
export function understood({ side, canonical }: GoldenFrame): unknown {
  const bytes = Buffer.from(canonical, "hex");
  return side === "client"
    ? decodeClientMessage(bytes)
    : { kind: "ok", message: decodeServerMessage(bytes) };
}

/** The message itself. */
export function said({ message }: GoldenFrame): unknown {
  const tokensOf = (list: number[]) => Int32Array.from(list);
  return JSON.parse(JSON.stringify(message), (key, value) => {
    if (key === "prompt" || key === "tokens") return tokensOf(value);
    return key === "responses" ? value.map(tokensOf) : value;
  });
}
