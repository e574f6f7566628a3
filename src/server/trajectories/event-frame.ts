// A trajectory's event as a frame of a journal: JSON, with the arrays of a turn in base64.

import { FRAME_HEADER_BYTES, scanFrame, sealFrame } from "../../core/journal/frame.ts";
import type { Stopped, TrajectoryEvent } from "./trajectories.ts";

type Event = TrajectoryEvent | Stopped;

export function encodeEvent(event: Event): Uint8Array {
  const json = JSON.stringify(event, (_, value: unknown) =>
    ArrayBuffer.isView(value)
      ? Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString("base64")
      : value,
  );
  const frame = Buffer.alloc(FRAME_HEADER_BYTES + Buffer.byteLength(json));
  frame.write(json, FRAME_HEADER_BYTES);
  sealFrame(frame);
  return frame;
}

/** The events of a file, up to the first that is cut or damaged. */
export function* eventsIn(bytes: Uint8Array): Generator<Event> {
  for (let at = 0; ; ) {
    const scan = scanFrame(bytes, at);
    if (scan.kind !== "frame") return;
    yield decodeEvent(scan.payload);
    at = scan.end;
  }
}

/** Decodes an event; the frame's CRC vouches for its content. */
function decodeEvent(payload: Uint8Array): Event {
  const event: Event = JSON.parse(new TextDecoder().decode(payload));
  if (event.kind !== "ended") return event;
  const { news, output, logprobs } = event.turn;
  const turn = {
    ...event.turn,
    // Every host of Bun is little-endian.
    news: new Int32Array(bytesOf(news)),
    output: new Int32Array(bytesOf(output)),
    logprobs: new Float32Array(bytesOf(logprobs)),
  };
  return { ...event, turn };
}

function bytesOf(base64: unknown): ArrayBuffer {
  return new Uint8Array(Buffer.from(String(base64), "base64")).buffer;
}
