// What the model's own logprobs of a finished text show: tokens that it did not draw there, or not with these weights.

import { expect, test } from "bun:test";
import type { ResponseLine } from "./response-line.ts";
import { tokenProblem } from "./scoring.ts";

const LINE: ResponseLine = {
  ...{ group: "g", index: 0, prompt_token_ids: [1], token_ids: [5, 6], logprobs: [-0.1, -2] },
  ...{ finish_reason: "length", chunks: [{ weight_version: "a", tokens: 2 }] },
};
const SCORED = {
  logprobs: [-0.1001, -2.0001],
  top: [
    [-0.1001, -3],
    [-0.5, -2.0001],
  ],
};

test("scoring: a drawn response has the model's logprobs; another context or a missing one is found", () => {
  expect(tokenProblem(LINE, SCORED, false)).toBeNull();
  const moved = { ...SCORED, logprobs: [-0.1, -1.9] };
  expect(tokenProblem(LINE, moved, false)).toContain("token 1, 6, came with logprob -2");
  expect(tokenProblem(LINE, { logprobs: [-0.1], top: [[-0.1]] }, false)).toContain("token 1");
});

test("scoring: at temperature 0 each token is the likeliest one", () => {
  expect(tokenProblem(LINE, SCORED, true)).toContain("token 1, 6, has logprob -2.0001");
  const likeliest = { ...SCORED, top: [[-0.1], [-2]] };
  expect(tokenProblem(LINE, likeliest, true)).toBeNull();
});
