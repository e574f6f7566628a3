// Events as a live vLLM 0.32 wrote them, and the shapes of older versions.

import { expect, test } from "bun:test";
import { sglangPiece } from "./sglang/event.ts";
import { errorMessage, readEvent } from "./stream-event.ts";

const event = (json: unknown, top = 0) => readEvent(Buffer.from(JSON.stringify(json)), top);

const GENERATED = {
  request_id: "generate-tokens-ft-1-0-0",
  usage: { prompt_tokens: 5, total_tokens: 8, completion_tokens: 3, prompt_tokens_details: null },
  output_mode: "tokens",
  choices: [
    {
      index: 0,
      finish_reason: null,
      stop_reason: null,
      token_ids: [706, 11],
      logprobs: {
        content: [
          {
            token_id: 706,
            logprob: -0.5056091547012329,
            rank: 1,
            top_logprobs: [
              { token_id: 706, logprob: -0.5056091547012329, rank: 1 },
              { token_id: 746, logprob: -3.3235011100769043, rank: 2 },
              { token_id: 9, logprob: -4.5, rank: 3 },
            ],
          },
          {
            token_id: 11,
            logprob: -3.98980712890625,
            rank: 6,
            top_logprobs: [
              { token_id: 11, logprob: -3.98980712890625, rank: 6 },
              { token_id: 259, logprob: -0.2515162527561188, rank: 1 },
              { token_id: 266, logprob: -2.453765869140625, rank: 2 },
            ],
          },
        ],
      },
    },
  ],
};

test("readEvent: generate: tokens, logprobs, and the likeliest without the token drawn", () => {
  expect(event(GENERATED, 2)).toEqual({
    kind: "piece",
    tokens: [706, 11],
    logprobs: [-0.5056091547012329, -3.98980712890625],
    alternatives: [
      [706, -0.5056091547012329, 746, -3.3235011100769043],
      [259, -0.2515162527561188, 266, -2.453765869140625],
    ],
    finishReason: null,
    usage: { promptTokens: 5, completionTokens: 3, cachedTokens: null },
    weightVersion: null,
  });
});

test("readEvent: completions: the same from columns", () => {
  const completion = {
    id: "cmpl-ft-1-0-0",
    choices: [
      {
        index: 0,
        text: "350,",
        logprobs: {
          text_offset: [11],
          token_logprobs: [-3.98980712890625],
          tokens: ["token_id:11"],
          top_logprobs: [
            { "token_id:11": -3.98980712890625, "token_id:259": -0.25, "token_id:266": -2.45 },
          ],
        },
        finish_reason: "length",
        token_ids: [11],
      },
    ],
  };
  expect(event(completion, 2)).toEqual({
    kind: "piece",
    tokens: [11],
    logprobs: [-3.98980712890625],
    alternatives: [[259, -0.25, 266, -2.45]],
    finishReason: "length",
    usage: null,
    weightVersion: null,
  });
});

test("readEvent: the end of a response names the weights of its last token", () => {
  const spans = [
    { version: "step-1", start: 0, end: 4 },
    { version: "step-2", start: 4, end: 6 },
  ];
  const choice = { token_ids: [7], logprobs: null, weight_versions: spans };
  const last = event({ choices: [{ ...choice, finish_reason: "stop" }] });
  expect(last).toMatchObject({ weightVersion: "step-2" });
  const earlier = event({ choices: [{ ...choice, finish_reason: null }] });
  expect(earlier).toMatchObject({ weightVersion: null });
});

test("readEvent: usage with cached tokens, the end, and what is not readable", () => {
  const usage = {
    prompt_tokens: 512,
    completion_tokens: 5,
    prompt_tokens_details: { cached_tokens: 384 },
  };
  expect(event({ usage, choices: [] })).toEqual({
    kind: "usage",
    usage: { promptTokens: 512, completionTokens: 5, cachedTokens: 384 },
  });
  expect(readEvent(Buffer.from("[DONE]"), 0)).toEqual({ kind: "done" });
  for (const text of ["", "{", "[]", "null", "{}", '{"choices":[]}', '{"choices":[3]}']) {
    expect(readEvent(Buffer.from(text), 0)).toEqual({ kind: "unreadable" });
  }
});

test("readEvent: an error inside a stream, in the shapes of new and old versions", () => {
  const error = { message: "out of blocks", type: "InternalServerError", code: 500 };
  const expected = { kind: "error", status: 500, message: "out of blocks" } as const;
  expect(event({ error })).toEqual(expected);
  expect(event({ object: "error", ...error })).toEqual(expected);
  expect(event({ error: { code: "x" } })).toMatchObject({ kind: "error", status: 0 });
});

test("errorMessage: finds the message in every shape of body", () => {
  expect(errorMessage('{"error":{"message":"no","code":400}}')).toBe("no");
  expect(errorMessage('{"message":"no"}')).toBe("no");
  expect(errorMessage('{"detail":"Not Found"}')).toBe("Not Found");
  expect(errorMessage('{"error":"Unauthorized"}')).toBe("Unauthorized");
  expect(errorMessage("Bad Gateway")).toBe("Bad Gateway");
});

test("readEvent: a count that is no whole number within bounds makes the event unreadable", () => {
  const choices = [{ index: 0, token_ids: [7], logprobs: null, finish_reason: null }];
  for (const count of [1.5, -1, "2", 2 ** 31, true, [1]]) {
    for (const usage of [
      { completion_tokens: count },
      { prompt_tokens: count, completion_tokens: 1 },
      { completion_tokens: 1, prompt_tokens_details: { cached_tokens: count } },
    ]) {
      expect(event({ usage, choices })).toEqual({ kind: "unreadable" });
    }
    const triples = { output_token_logprobs: [[-1, 7, null]] };
    const meta = { completion_tokens: 1, ...triples, cached_tokens: count };
    expect(sglangPiece({ output_ids: [7], meta_info: meta }, 0)).toEqual({ kind: "unreadable" });
  }
});

test("readEvent: no name of a token stands for token 0 but its own", () => {
  const names = ["token_id:", "token_id: ", "token_id:0x0", "token_id:1e400", "x", "token_id:0"];
  const logprobs = { tokens: names, token_logprobs: names.map(() => -1) };
  expect(event({ choices: [{ logprobs }] })).toMatchObject({ tokens: [-1, -1, -1, -1, -1, 0] });
  const row = {
    output_top_logprobs: [
      [
        [-1, null],
        [-2, 3],
      ],
    ],
  };
  const meta = { completion_tokens: 1, output_token_logprobs: [[-1, 7, null]], ...row };
  const piece = sglangPiece({ output_ids: [7], meta_info: meta }, 2);
  expect(piece).toMatchObject({ alternatives: [[-1, -1, 3, -2]] });
});
