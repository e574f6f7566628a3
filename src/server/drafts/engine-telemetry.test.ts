import { expect, test } from "bun:test";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { NO_TELEMETRY } from "../../../test/suite/no-figures.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import { STEP_TOKENS_UNBOUNDED } from "../../core/draft/service/limits.ts";
import type { Telemetry } from "../../core/draft/service/message.ts";
import { EngineTelemetry } from "./engine-telemetry.ts";

const TELEMETRY: Telemetry = { ...NO_TELEMETRY, epoch: weightEpoch(2), running: 4, steps: 10 };

function newTelemetry(drafts = true) {
  const clock = new ManualClock();
  const told: string[] = [];
  const telemetry = new EngineTelemetry({
    clock,
    drafts,
    notLossless: (engine) => told.push(engine),
  });
  return { telemetry, clock, told };
}

test("report: an engine that is well decides by itself, unless drafts are off", () => {
  const { telemetry, told } = newTelemetry();
  expect(telemetry.report("e", TELEMETRY)).toMatchObject({
    kind: "budget",
    epoch: 2,
    stepTokens: STEP_TOKENS_UNBOUNDED,
  });
  expect(told).toEqual([]);
  expect(newTelemetry(false).telemetry.report("e", TELEMETRY).stepTokens).toBe(0);
});

test("report: an engine that verifies drafts wrongly gets none, and is reported once", () => {
  const { telemetry, told } = newTelemetry();
  for (let i = 0; i < 3; i += 1) {
    expect(telemetry.report("e", { ...TELEMETRY, isLossless: false }).stepTokens).toBe(0);
  }
  expect(told).toEqual(["e"]);
});

test("seeds: vary while an engine drafts that does not draw by them", () => {
  const { telemetry, clock } = newTelemetry();
  expect(telemetry.variesSeeds).toBe(false);
  telemetry.report("exact", { ...TELEMETRY, repeatsSeeds: true });
  expect(telemetry.variesSeeds).toBe(false);
  telemetry.report("other", TELEMETRY);
  expect(telemetry.variesSeeds).toBe(true);
  clock.advance(40_000);
  expect(telemetry.variesSeeds).toBe(false);
  const { telemetry: off } = newTelemetry(false);
  off.report("other", TELEMETRY);
  expect(off.variesSeeds).toBe(false);
});

test("figures: are the last ones, by name, and go when an engine is silent", () => {
  const { telemetry, clock } = newTelemetry();
  telemetry.report("b", TELEMETRY);
  clock.advance(20_000);
  telemetry.report("a", TELEMETRY);
  telemetry.report("a", { ...TELEMETRY, steps: 11 });
  expect(telemetry.figures().map(({ engine, steps }) => [engine, steps])).toEqual([
    ["a", 11],
    ["b", 10],
  ]);
  clock.advance(15_000);
  expect(telemetry.figures().map(({ engine }) => engine)).toEqual(["a"]);
});

test("figures: a flood of names keeps those that are there", () => {
  const { telemetry } = newTelemetry();
  telemetry.report("first", TELEMETRY);
  for (let i = 0; i < 1000; i += 1) telemetry.report(`name-${i}`, TELEMETRY);
  expect(telemetry.figures().length).toBe(256);
  expect(telemetry.figures().some(({ engine }) => engine === "first")).toBe(true);
});
