import { afterEach, expect, test } from "bun:test";
import { AppError } from "../core/base/errors.ts";
import { BodyReader, unpacked } from "./body-reader.ts";

const IDS = "12345,".repeat(3_000_000);
let reader = new BodyReader();
afterEach(() => {
  reader.close();
  reader = new BodyReader();
});

const bytesOf = (text: string) => new TextEncoder().encode(text);
const read = async (text: string, signal = new AbortController().signal) =>
  (await reader.read(bytesOf(text), signal)).value;

test("read: other work continues while a large body is read", async () => {
  let turns = 0;
  let isOver = false;
  const turn = () => {
    turns += 1;
    if (!isOver) setTimeout(turn, 1);
  };
  const body = bytesOf(`{"prompt":[${IDS}7],"more":[${IDS}7]}`);
  turn();
  const json = (await reader.read(body, new AbortController().signal)).value;
  isOver = true;
  // Parsed here it would be one.
  expect(turns).toBeGreaterThan(1);
  const { prompt, more } = json as { prompt: Int32Array; more: number[] };
  expect([prompt.length, prompt.at(-1), more.length, more.at(-1)]).toEqual([
    3_000_001, 7, 3_000_001, 7,
  ]);
  expect(prompt).toBeInstanceOf(Int32Array);
  expect(Array.isArray(more)).toBe(true);
});

test("json: only prompts may be packed, and only where it is asked for", async () => {
  const ids = Array.from({ length: 60_000 }, (_, i) => i);
  const groups = [{ token_ids: ids, stop: ids }];
  const body = { prompt: ids, input_ids: [[1], ids], groups, args: { prompt: ids } };
  const packed = Int32Array.from(ids);
  const { value } = await reader.read(bytesOf(JSON.stringify(body)), new AbortController().signal);
  expect(unpacked(value)).toEqual(body);
  expect(value).toEqual({
    prompt: packed,
    input_ids: [[1], packed],
    groups: [{ token_ids: packed, stop: ids }],
    args: { prompt: ids },
  });
});

test("read: what is no JSON is the same error, long or short; the next body is read", async () => {
  const told = async (text: string) =>
    await read(text).then(
      () => "read",
      (error: AppError) => `${error.code}: ${error.message}`,
    );
  const texts = ["[1,2", '{"a":[1,2,],"b":1}', '{"a":"', "[1] x", "[".repeat(129)];
  for (const text of texts) {
    const short = await told(text);
    expect(short).toStartWith("invalid_json: the body is ");
    expect(await told(text + " ".repeat(300_000))).toBe(await told(`${text} `));
    expect(await told(text.replace("1", `${IDS}1`))).toBe(short);
  }
  expect(await read(`[${IDS}1]`)).toHaveLength(3_000_001);
});

test("read: waiting requests fail when their client has gone, or the server stops", async () => {
  const gone = AbortSignal.abort();
  const large = `[${IDS}1]`;
  expect(read(large, gone)).rejects.toThrow(new AppError("interrupted", "the client disconnected"));
  const waiting = read(large).catch((error: AppError) => error.code);
  reader.close();
  expect(await waiting).toBe("draining");
});
