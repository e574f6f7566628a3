import { expect, test } from "bun:test";
import { ManualClock } from "../../base/clock.ts";
import { weightEpoch } from "../../base/ids.ts";
import { STEP_TOKENS_UNBOUNDED } from "../../draft/service/limits.ts";
import type { Telemetry } from "../../draft/service/message.ts";
import { EngineBook } from "./engine-book.ts";

const TELEMETRY: Telemetry = {
  kind: "telemetry",
  epoch: weightEpoch(2),
  running: 4,
  waiting: null,
  kvUsage: 0.25,
  isLossless: true,
  steps: 10,
  stepUs: 1000,
  proposeUs: 10,
  drafted: 5,
  accepted: 3,
  traced: 2,
  tracedElsewhere: 1,
  faults: 0,
};

function newBook(drafts = true) {
  const clock = new ManualClock();
  const told: string[] = [];
  const book = new EngineBook({ clock, drafts, notLossless: (engine) => told.push(engine) });
  return { book, clock, told };
}

test("report: an engine that is well decides by itself", () => {
  const { book, told } = newBook();
  expect(book.report("e", TELEMETRY)).toMatchObject({
    kind: "budget",
    epoch: 2,
    stepTokens: STEP_TOKENS_UNBOUNDED,
  });
  expect(told).toEqual([]);
});

test("report: nobody drafts where drafts are off", () => {
  expect(newBook(false).book.report("e", TELEMETRY).stepTokens).toBe(0);
});

test("report: an engine that misjudges drafts gets none, and is told of once", () => {
  const { book, told } = newBook();
  for (let i = 0; i < 3; i += 1) {
    expect(book.report("e", { ...TELEMETRY, isLossless: false }).stepTokens).toBe(0);
  }
  expect(told).toEqual(["e"]);
});

test("figures: are the last ones, by name, and go when an engine is silent", () => {
  const { book, clock } = newBook();
  book.report("b", TELEMETRY);
  clock.advance(20_000);
  book.report("a", TELEMETRY);
  book.report("a", { ...TELEMETRY, steps: 11 });
  expect(book.figures().map(({ engine, steps }) => [engine, steps])).toEqual([
    ["a", 11],
    ["b", 10],
  ]);
  clock.advance(15_000);
  expect(book.figures().map(({ engine }) => engine)).toEqual(["a"]);
});

test("figures: a flood of names keeps those that are there", () => {
  const { book } = newBook();
  book.report("first", TELEMETRY);
  for (let i = 0; i < 1000; i += 1) book.report(`name-${i}`, TELEMETRY);
  expect(book.figures().length).toBe(256);
  expect(book.figures().some(({ engine }) => engine === "first")).toBe(true);
});
