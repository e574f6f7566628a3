import { expect, test } from "bun:test";
import { LengthEstimate } from "./length-estimate.ts";

const CASES = [
  { what: "the upper bound until a response has finished", progressed: 300, tokens: 1000 },
  { what: "the longest finished response", finished: [200, 50], tokens: 200 },
  {
    what: "a running response that is longer already",
    finished: [200],
    progressed: 350,
    tokens: 350,
  },
  {
    what: "a prior, which counts as a finished response",
    prior: 400,
    finished: [200],
    tokens: 400,
  },
  { what: "the bound, where a prior is more", bound: 100, prior: 400, tokens: 100 },
];
test.each(CASES)(
  "estimate: is $what",
  ({ bound = 1000, prior, finished = [], progressed, tokens }) => {
    const estimate = new LengthEstimate(bound, prior);
    for (const one of finished) estimate.finished(one);
    if (progressed !== undefined) estimate.progressed(progressed);
    expect(estimate.tokens).toBe(tokens);
    expect(estimate.informed).toBe(finished.length > 0 || prior !== undefined);
  },
);
