import { expect, test } from "bun:test";
import { BINS, Calibration } from "./calibration.ts";

test("calibration: the error is the mean distance of probability and frequency, weighted by tokens", () => {
  const calibration = new Calibration();
  // Four tokens of 0.5, one accepted: off by 0.25. One of 0.9, accepted: off by 0.1.
  for (const isAccepted of [true, false, false, false]) calibration.add(0.5, isAccepted);
  calibration.add(0.9, true);
  expect(calibration.error()).toBeCloseTo((4 * 0.25 + 0.1) / 5, 12);
});

test("calibration: a bin reports its tokens, their mean probability and the share accepted", () => {
  const calibration = new Calibration();
  calibration.add(0.26, true);
  calibration.add(0.28, false);
  const [bin] = calibration.bins();
  expect(calibration.bins()).toHaveLength(1);
  expect(bin).toMatchObject({ from: 5 / BINS, to: 6 / BINS, count: 2, accepted: 0.5 });
  expect(bin?.probability).toBeCloseTo(0.27, 12);
});

test("calibration: probabilities 0 and 1 fall into the outermost bins", () => {
  const calibration = new Calibration();
  calibration.add(0, false);
  calibration.add(1, true);
  expect(calibration.bins().map((bin) => bin.to)).toEqual([1 / BINS, 1]);
});
