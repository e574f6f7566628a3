import { expect, test } from "bun:test";
import { Random } from "../../../test/suite/random.ts";
import { type WorkerId, workerId } from "../base/ids.ts";
import { Paces } from "./pace.ts";

const MS = 3_000;

/** Engines whose steps take 20 ms and 0.5 ms a row, times the given pace, 5 % more or less. */
class Engines {
  readonly paces = new Paces();
  readonly #random = new Random(1, "pace");

  /** Engine `id` runs `requests` for a span, each with `drafted` draft tokens a step. */
  span(id: number, pace: number, { requests = 20, drafted = 0, prefilled = 0 } = {}): void {
    const noise = 0.95 + 0.1 * this.#random.uniform();
    const stepMs = pace * noise * (20 + 0.5 * requests * (1 + drafted + prefilled));
    const steps = Math.round((MS / stepMs) * requests);
    const spent = { busyMs: MS, requestMs: MS * requests };
    const rows = { drafted: steps * drafted, prefilled: steps * prefilled };
    this.paces.observe(workerId(id), { ...spent, steps, ...rows });
  }

  all(ids: readonly number[]): number[] {
    return ids.map((id) => this.paces.of(workerId(id) as WorkerId));
  }
}

const FOUR = [0, 1, 2, 3];

test("pace: engines that differ by noise, by their requests and by their drafts alone are equal", () => {
  const engines = new Engines();
  for (let i = 0; i < 40; i += 1) {
    for (const id of FOUR) engines.span(id, 1, { requests: 1 + id * 20 + i, drafted: id });
    expect(engines.all(FOUR)).toEqual([1, 1, 1, 1]);
  }
  expect(engines.paces.error).toBeLessThan(0.05);
});

test("pace: what a row and the rest of a step take is found whatever the rows are of, prompts among them", () => {
  const engines = new Engines();
  for (let i = 0; i < 24; i += 1) engines.span(0, 1, { requests: 4 + (i % 5), prefilled: i % 7 });
  expect(engines.paces.rowMs(workerId(0))).toBeWithin(0.4, 0.6);
  expect(engines.paces.base).toBeWithin(30, 50);
});

test("pace: a slow engine is found within seconds, and found well again", () => {
  const engines = new Engines();
  for (let i = 0; i < 8; i += 1) for (const id of FOUR) engines.span(id, id === 2 ? 2 : 1);
  const [, , slow = 0] = engines.all(FOUR);
  expect(slow).toBeWithin(1.8, 2.2);
  expect(engines.all([0, 1, 3])).toEqual([1, 1, 1]);
  for (let i = 0; i < 16; i += 1) for (const id of FOUR) engines.span(id, 1);
  expect(engines.all(FOUR)).toEqual([1, 1, 1, 1]);
});

test("pace: of two engines the faster one is what the other is measured by", () => {
  const engines = new Engines();
  for (let i = 0; i < 8; i += 1) {
    engines.span(0, 3, { requests: 4 });
    engines.span(1, 1, { requests: 30 });
  }
  const [slow = 0, fast] = engines.all([0, 1]);
  // Some of it could be that steps hardly depend on their rows.
  expect(slow).toBeWithin(1.6, 3.5);
  expect(fast).toBe(1);
});

test("pace: an engine that is faster than most has a pace below 1", () => {
  const engines = new Engines();
  for (let i = 0; i < 8; i += 1) for (const id of FOUR) engines.span(id, id === 0 ? 0.5 : 1);
  expect(engines.all([0])[0]).toBeWithin(0.45, 0.55);
});

test("pace: other load that lasts for a third of the time, or delays all engines, changes nothing", () => {
  const engines = new Engines();
  for (let i = 0; i < 60; i += 1) {
    for (const id of FOUR) engines.span(id, (id === 1 && i % 3 === 0 ? 5 : 1) * (i > 30 ? 4 : 1));
    expect(engines.all(FOUR)).toEqual([1, 1, 1, 1]);
  }
});

test("pace: an engine alone is not slow, whatever the ones before it were", () => {
  const engines = new Engines();
  for (let i = 0; i < 8; i += 1) for (const id of [0, 1]) engines.span(id, id === 0 ? 3 : 1);
  engines.paces.forget(workerId(1));
  expect(engines.all([0, 1])).toEqual([1, 1]);
  expect(engines.paces.baseRequests(workerId(0))).toBeGreaterThan(0);
});
