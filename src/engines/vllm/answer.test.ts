import { expect, test } from "bun:test";
import { cutField, SseReader } from "./answer.ts";

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

function cut(value: unknown, name = "big"): [unknown, unknown] | null {
  const found = cutField(Buffer.from(JSON.stringify(value)), name);
  if (found === null) return null;
  return [JSON.parse(found.value.toString()), JSON.parse(found.rest.toString())];
}

test("cut: texts, lists and objects come out whole, and null takes their place", () => {
  for (const value of [
    "abc",
    "",
    'a"b\\',
    "\\",
    [[1], { a: '"]' }],
    { x: ["}", { y: '\\"{' }] },
    [],
  ]) {
    expect(cut({ a: 1, big: value, z: [2] })).toEqual([value, { a: 1, big: null, z: [2] }]);
    expect(cut({ list: [{ big: value }] })).toEqual([value, { list: [{ big: null }] }]);
  }
});

test("cut: numbers, null, absent fields and texts that look like the field are left alone", () => {
  for (const value of [
    { big: null },
    { big: 5 },
    { a: 1 },
    { a: '"big":"x"' },
    { a: ["big", "x"] },
  ]) {
    expect(cut(value)).toBeNull();
  }
  expect(cut({ a: '"big":[', big: [1] })).toEqual([[1], { a: '"big":[', big: null }]);
  expect(cutField(Buffer.from('{"big" : [1, 2] }'), "big")?.value.toString()).toBe("[1, 2]");
});

test("cut: a value that does not end is none", () => {
  const json = Buffer.from(JSON.stringify({ big: [{ a: '\\"]' }, "x"] }));
  for (let end = json.length - 2; end > 8; end -= 1) {
    expect(cutField(json.subarray(0, end), "big")).toBeNull();
  }
});
