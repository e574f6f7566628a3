import { expect, test } from "bun:test";
import { formatBytes, formatClock, formatCount, formatSeconds, formatShare } from "./format.ts";

test("formatCount: groups thousands", () => {
  expect([0, 999, 1000, 1234567.6].map(formatCount)).toEqual(["0", "999", "1,000", "1,234,568"]);
});

test("formatSeconds: keeps three digits, then minutes", () => {
  expect([0, 0.004, 9.99, 9.996, 12.34, 119.9, 120, 3725].map(formatSeconds)).toEqual([
    "0.00 s",
    "0.00 s",
    "9.99 s",
    "10.0 s",
    "12.3 s",
    "119.9 s",
    "2:00",
    "1:02:05",
  ]);
});

test("formatClock: carries seconds into minutes and hours", () => {
  expect([0, 7.4, 59.6, 61, 3599.7].map(formatClock)).toEqual([
    "0:00",
    "0:07",
    "1:00",
    "1:01",
    "1:00:00",
  ]);
});

test("formatBytes: uses decimal units", () => {
  expect([0, 999, 1000, 41e6, 999.6e6, 123e9, 9e18].map(formatBytes)).toEqual([
    "0 B",
    "999 B",
    "1.0 kB",
    "41.0 MB",
    "1.0 GB",
    "123 GB",
    "9000 PB",
  ]);
});

test("formatShare: all and nothing are said only when they are so", () => {
  expect([0, 0.001, 0.614, 0.999, 1].map(formatShare)).toEqual(["0%", "1%", "61%", "99%", "100%"]);
});
