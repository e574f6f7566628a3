import { expect, test } from "bun:test";
import { EngineTime } from "./effective-time.ts";

test("ettr: engine time in service, times the share of tokens that were kept", () => {
  const time = new EngineTime();
  expect(time.ettr({ kept: 0, again: 0 })).toBe(1);
  time.at(0, null);
  time.at(1000, { serving: 2, size: 2 });
  time.at(3000, { serving: 1, size: 2 });
  time.at(4000, { serving: 2, size: 2 });
  time.at(5000, null);
  time.at(9000, null);
  expect([time.wallMs, time.servedMs, time.awayMs]).toEqual([4000, 7000, 1000]);
  expect(time.ettr({ kept: 100, again: 0 })).toBeCloseTo(7 / 8);
  expect(time.ettr({ kept: 75, again: 25 })).toBeCloseTo((7 / 8) * 0.75);
});
