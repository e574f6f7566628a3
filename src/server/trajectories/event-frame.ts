// A trajectory's event as a frame of a journal: the length of its JSON, the JSON, and the arrays of a turn behind it.

import { FRAME_HEADER_BYTES, scanFrame, sealFrame } from "../../core/journal/frame.ts";
import type { Stopped, TrajectoryEvent } from "./trajectories.ts";

type Event = TrajectoryEvent | Stopped;

const WORD = Int32Array.BYTES_PER_ELEMENT;
const NO_ARRAYS = {
  news: new Int32Array(0),
  output: new Int32Array(0),
  logprobs: new Float32Array(0),
};

export function encodeEvent(event: Event): Uint8Array {
  const { news, output, logprobs } = event.kind === "ended" ? event.turn : NO_ARRAYS;
  const short =
    event.kind === "ended" ? { ...event, turn: { ...event.turn, ...NO_ARRAYS } } : event;
  const lengths = [news.length, output.length];
  const json = Buffer.from(JSON.stringify([short, lengths]));
  const words = news.length + output.length + logprobs.length;
  const frame = new Uint8Array(FRAME_HEADER_BYTES + WORD + words * WORD + json.length);
  new DataView(frame.buffer).setUint32(FRAME_HEADER_BYTES, json.length, true);
  let at = FRAME_HEADER_BYTES + WORD;
  for (const array of [news, output, logprobs]) {
    // Every host of Bun is little-endian.
    frame.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), at);
    at += array.byteLength;
  }
  frame.set(json, at);
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
  const jsonBytes = new DataView(payload.buffer, payload.byteOffset).getUint32(0, true);
  const end = payload.byteLength - jsonBytes;
  const [event, [newsTokens, outputTokens]]: [Event, [number, number]] = JSON.parse(
    Buffer.from(payload.subarray(end)).toString(),
  );
  if (event.kind !== "ended") return event;
  // A copy: the payload stands anywhere, and a Buffer's slice is a view.
  const words = new Uint8Array(payload.subarray(WORD, end)).buffer;
  const news = new Int32Array(words, 0, newsTokens).slice();
  const output = new Int32Array(words, newsTokens * WORD, outputTokens).slice();
  const logprobs = new Float32Array(words, (newsTokens + outputTokens) * WORD).slice();
  return { ...event, turn: { ...event.turn, news, output, logprobs } };
}
