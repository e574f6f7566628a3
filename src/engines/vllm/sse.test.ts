import { expect, test } from "bun:test";
import { SseReader } from "./sse.ts";

const TEXT = 'data: {"a":"ü"}\r\n\r\n: a comment\nevent: x\ndata:{"b":2}\n\ndata: [DONE]\n\n';
const EVENTS = ['{"a":"ü"}', '{"b":2}', "[DONE]"];

function read(pieces: Buffer[], bytesMax = 1000): { events: string[]; ok: boolean } {
  const reader = new SseReader(bytesMax);
  const events: string[] = [];
  const ok = pieces.every((piece) =>
    reader.push(piece, (data) => {
      events.push(data.toString("utf8"));
      return true;
    }),
  );
  return { events, ok };
}

test("SseReader: finds the same events wherever the stream is cut", () => {
  const bytes = Buffer.from(TEXT);
  for (let at = 0; at <= bytes.length; at += 1) {
    const pieces = [bytes.subarray(0, at), bytes.subarray(at)];
    expect(read(pieces)).toEqual({ events: EVENTS, ok: true });
  }
  const single = Array.from(bytes, (_, i) => bytes.subarray(i, i + 1));
  expect(read(single)).toEqual({ events: EVENTS, ok: true });
});

test("SseReader: keeps the beginning of a line when its buffer is used again", () => {
  const buffer = Buffer.from('data: {"a":');
  const reader = new SseReader(1000);
  const events: string[] = [];
  const keep = (data: Buffer) => events.push(data.toString()) > 0;
  reader.push(buffer, keep);
  buffer.fill(0x20);
  reader.push(Buffer.from("1}\n"), keep);
  expect(events).toEqual(['{"a":1}']);
});

test("SseReader: throws when a line exceeds the limit", () => {
  expect(read([Buffer.from("data: 12345"), Buffer.from("67890")], 12)).toEqual({
    events: [],
    ok: false,
  });
});
