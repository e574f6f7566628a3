import { expect, test } from "bun:test";
import { LengthEstimate } from "./length-estimate.ts";

test("estimate: is the upper bound until a response has finished", () => {
  const estimate = new LengthEstimate(1000);
  estimate.progressed(300);
  expect(estimate.tokens).toBe(1000);
  expect(estimate.informed).toBe(false);
});

test("estimate: is the longest finished response", () => {
  const estimate = new LengthEstimate(1000);
  estimate.finished(200);
  estimate.finished(50);
  expect(estimate.tokens).toBe(200);
});

test("estimate: a running response that is longer already raises it", () => {
  const estimate = new LengthEstimate(1000);
  estimate.finished(200);
  estimate.progressed(350);
  expect(estimate.tokens).toBe(350);
});

test("estimate: a prior counts as a finished response, within the bound", () => {
  const estimate = new LengthEstimate(1000, 400);
  expect(estimate.informed).toBe(true);
  expect(estimate.tokens).toBe(400);
  estimate.finished(200);
  expect(estimate.tokens).toBe(400);
  estimate.progressed(500);
  expect(estimate.tokens).toBe(500);
  expect(new LengthEstimate(100, 400).tokens).toBe(100);
});
