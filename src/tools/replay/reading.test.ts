// The readers of both formats: groups, streams that are cut anywhere, and a message for each wrong input.

import { describe, expect, test } from "bun:test";
import { AppError } from "../../core/base/errors.ts";
import type { Chunks } from "../../host/json-lines.ts";
import { readResponses, readTrace, type TraceGroup } from "./recordings.ts";

const encoder = new TextEncoder();

async function* cut(bytes: Uint8Array, sizes: readonly number[]): Chunks {
  let at = 0;
  for (const size of sizes) {
    yield bytes.subarray(at, at + size);
    at += size;
  }
  yield bytes.subarray(at);
}

type Reader = (file: string, chunks: Chunks) => AsyncGenerator<TraceGroup>;

async function read(reader: Reader, text: string, sizes: readonly number[] = []) {
  const groups: { name: string; prompt: number[]; responses: number[][] }[] = [];
  for await (const { name, prompt, responses } of reader("f", cut(encoder.encode(text), sizes))) {
    groups.push({ name, prompt: [...prompt], responses: responses.map((one) => [...one]) });
  }
  return groups;
}

async function problem(reader: Reader, text: string): Promise<string> {
  try {
    await read(reader, text);
  } catch (error) {
    if (error instanceof AppError) return error.message;
    throw error;
  }
  return "read without complaint";
}

const line = (fields: object) => `${JSON.stringify(fields)}\n`;
const one = { group: "a", index: 0, prompt_token_ids: [1], token_ids: [2, 3] };

describe("responses", () => {
  test("responses: adjacent lines of a group are one group, in the order of their index", async () => {
    const text =
      line({ ...one, index: 1, token_ids: [9] }) +
      line(one) +
      line({ group: "ü", index: 0, token_ids: [] });
    expect(await read(readResponses, text)).toEqual([
      { name: "a", prompt: [1], responses: [[2, 3], [9]] },
      { name: "ü", prompt: [], responses: [[]] },
    ]);
  });

  test("responses: blank lines, CRLF, a missing last line end and unknown fields do no harm", async () => {
    const text = `\n${JSON.stringify({ ...one, text: "x\n" })}\r\n\r\n${JSON.stringify({ ...one, index: 1 })}`;
    expect((await read(readResponses, text))[0]?.responses).toHaveLength(2);
  });

  test("responses: the stream may be cut at every byte", async () => {
    const text = line({ ...one, group: "äö" }) + line({ ...one, index: 1 }).replace('"a"', '"äö"');
    const whole = await read(readResponses, text);
    for (let at = 0; at <= encoder.encode(text).length; at += 1) {
      expect(await read(readResponses, text, [at])).toEqual(whole);
    }
  });

  test.each([
    ["", "f: holds no response"],
    [`${line(one)}{"group"\n`, "f:2: is not valid JSON"],
    ["[]\n", "f:1: holds []; it must be a JSON object"],
    [line({ ...one, group: "" }), 'f:1: group is ""; it must be a string that names the group'],
    [line({ ...one, group: undefined }), "f:1: group is missing"],
    [line({ ...one, index: undefined }), "f:1: index is missing"],
    [line({ ...one, index: -1 }), "f:1: index is -1; it must be a whole number from 0 on"],
    [line({ ...one, token_ids: undefined }), "f:1: token_ids is missing"],
    [line({ ...one, token_ids: "x" }), 'f:1: token_ids is "x"; it must be an array of token ids'],
    [line({ ...one, token_ids: [1, 0.5] }), "f:1: token_ids[1] is 0.5; it must be a whole number"],
    [line({ ...one, token_ids: [1, -1] }), "f:1: token_ids[1] is -1"],
    [line({ ...one, token_ids: [2 ** 31] }), "f:1: token_ids[0] is 2147483648"],
    [line({ ...one, prompt_token_ids: [null] }), "f:1: prompt_token_ids[0] is null"],
    [line(one) + line(one), "f:2: index is 0, as on f:1; a group has each index once"],
    [
      line(one) + line({ ...one, index: 1, prompt_token_ids: [2] }),
      "f:2: prompt_token_ids differs from that of f:1",
    ],
  ])("responses: %j is refused", async (text, message) => {
    expect(await problem(readResponses, text)).toStartWith(message);
  });
});

describe("trace", () => {
  const groups = [
    { group: "a]}", prompt: [1], responses: [[2], []], meta: { note: '{"groups":[' } },
    { group: "b", prompt: null, responses: [], meta: [[{}]] },
  ];
  const trace = { name: "groups", split: { groups: [1] }, groups, after: [{ group: 1 }] };
  const expected = [
    { name: "a]}", prompt: [1], responses: [[2], []] },
    { name: "b", prompt: [], responses: [] },
  ];

  test("trace: groups are found wherever brackets, quotes and the word stand besides", async () => {
    expect(await read(readTrace, JSON.stringify(trace))).toEqual(expected);
    expect(await read(readTrace, JSON.stringify(trace, null, 2), [3, 20])).toEqual(expected);
  });

  test.each([
    ["", "f: is not valid JSON"],
    ["[]", "f: holds []; it must be a JSON object"],
    ['{"groups":5}', "f: groups is 5; it must be an array of groups"],
    ['{"group":[]}', "f: groups is missing"],
    ['{"groups":[1]}', "f: groups[0]: responses is missing"],
    ['{"groups":[{"group":"a","responses":[]}', "f: is not valid JSON"],
    ['{"groups":[{"responses":[]}]}', "f: groups[0]: group is missing"],
    ['{"groups":[{"group":"a"}]}', "f: groups[0]: responses is missing"],
    ['{"groups":[{"group":"a","responses":[3]}]}', "f: groups[0]: responses[0] is 3"],
    ['{"groups":[{"group":"a","responses":[[],["x"]]}]}', 'f: groups[0]: responses[1][0] is "x"'],
    ['{"groups":[{"group":"a","prompt":1,"responses":[]}]}', "f: groups[0]: prompt is 1"],
  ])("trace: %s is refused", async (text, message) => {
    expect(await problem(readTrace, text)).toStartWith(message);
  });
});
