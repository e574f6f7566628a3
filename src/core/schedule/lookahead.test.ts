import { expect, test } from "bun:test";
import { Lookahead } from "./lookahead.ts";

test("lookahead: begins with a small part of the KV, within bounds", () => {
  expect(new Lookahead(2048).tokens).toBe(8);
  expect(new Lookahead(25_600).tokens).toBe(100);
  expect(new Lookahead(1_000_000).tokens).toBe(512);
});

test("lookahead: preemptions of one cause double it once, later ones again, up to an eighth of the KV", () => {
  const ahead = new Lookahead(2048);
  ahead.preempted(1);
  ahead.preempted(5);
  expect(ahead.tokens).toBe(16);
  ahead.generated(511);
  ahead.preempted(6);
  expect(ahead.tokens).toBe(16);
  ahead.generated(1);
  ahead.preempted(6);
  expect(ahead.tokens).toBe(16);
  for (let total = 7; total < 30; total += 1) {
    ahead.preempted(total);
    ahead.generated(512);
  }
  expect(ahead.tokens).toBe(256);
});

test("lookahead: comes back step by step while nothing is preempted", () => {
  const ahead = new Lookahead(2048);
  for (let total = 1; total < 4; total += 1) {
    ahead.preempted(total);
    ahead.generated(1000);
  }
  expect(ahead.tokens).toBe(64);
  ahead.generated(1048);
  expect(ahead.tokens).toBe(48);
  for (let i = 0; i < 20; i += 1) ahead.generated(2048);
  expect(ahead.tokens).toBe(8);
});
