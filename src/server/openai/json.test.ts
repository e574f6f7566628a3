import { expect, test } from "bun:test";
import { TinyText } from "../../../test/golden/requests/tiny-text.ts";
import { RolloutResponse } from "../../core/request/response.ts";
import * as json from "./json.ts";

const { chatLogprobs, completionLogprobs, generateLogprobs, logprobText } = json;

/** Two tokens: the first is the second likeliest of its position, the other none of the likeliest. */
function twoTokens() {
  const response = new RolloutResponse(10, 2);
  response.append(0, Int32Array.of(97, 98), Float32Array.of(-0.5, -8), {
    count: 2,
    tokens: Int32Array.of(99, 97, 99, -1),
    logprobs: Float32Array.of(-0.25, -0.5, -0.125, 0),
  });
  return { response, from: 0, to: 2 };
}

const written = json.writtenNames(new TinyText());
const numbered = json.numberedNames(new TinyText());

test("completionLogprobs: the drawn token, then as many of the likeliest as were asked for", () => {
  const { json: text, offset } = completionLogprobs(twoTokens(), {
    names: written,
    top: 2,
    offset: 3,
  });
  const tops = '[{"a":-0.5,"c":-0.25},{"b":-8,"c":-0.125}]';
  const values = '"text_offset":[3,4],"token_logprobs":[-0.5,-8],"tokens":["a","b"]';
  expect([text, offset]).toEqual([`{${values},"top_logprobs":${tops}}`, 5]);
});

test("chatLogprobs: bytes are the token's own, alternatives begin with the drawn token", () => {
  const entry = (token: number, logprob: number) => {
    return { token: `token_id:${token}`, logprob, bytes: [token] };
  };
  expect(JSON.parse(chatLogprobs(twoTokens(), numbered, 1)).content).toEqual([
    { ...entry(97, -0.5), top_logprobs: [entry(97, -0.5)] },
    { ...entry(98, -8), top_logprobs: [entry(98, -8)] },
  ]);
});

test("generateLogprobs: ids and ranks; a rank is null where the engine did not report it", () => {
  const { content } = JSON.parse(generateLogprobs(twoTokens(), 2));
  const entry = (id: number, logprob: number, rank: number | null) => {
    return { token_id: id, token: `token_id:${id}`, logprob, rank };
  };
  expect(content).toEqual([
    { ...entry(97, -0.5, 2), top_logprobs: [entry(97, -0.5, 2), entry(99, -0.25, 1)] },
    { ...entry(98, -8, null), top_logprobs: [entry(98, -8, null), entry(99, -0.125, 1)] },
  ]);
});

test("logprobText: what JSON cannot hold becomes vLLM's -9999", () => {
  const values = [Number.NEGATIVE_INFINITY, Number.NaN, -10_000, -1e-7];
  expect(values.map(logprobText)).toEqual(["-9999.0", "-9999.0", "-9999.0", "-1e-7"]);
});
