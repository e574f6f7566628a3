// An engine that dies is opened again and again; one that cannot be opened any more is given up.

import { expect, test } from "bun:test";
import { newSimulated } from "../../../test/suite/simulated-runs.ts";
import type { Worker } from "../../core/rollout/worker.ts";
import { EngineKeeper } from "./engine-keeper.ts";

class Bed {
  readonly laters: { readonly act: () => void; readonly ms: number }[] = [];
  readonly notices: string[] = [];
  readonly served: Worker[] = [];
  nowMs = 0;
  opened = 0;
  isBroken = false;

  async keeper(): Promise<EngineKeeper> {
    const open = async () => {
      if (this.isBroken) throw new Error("no such file");
      this.opened += 1;
      return newSimulated();
    };
    const keeper = await EngineKeeper.open(open, {
      later: (act, ms) => {
        this.laters.push({ act, ms });
        return () => {};
      },
      nowMs: () => this.nowMs,
      notify: (kind) => this.notices.push(kind),
    });
    keeper.serve((worker) => this.served.push(worker));
    return keeper;
  }

  /** Runs what was scheduled for later now. Returns the pauses. */
  async later(): Promise<number[]> {
    const laters = this.laters.splice(0);
    for (const { act } of laters) act();
    await new Promise((resolve) => setImmediate(resolve));
    return laters.map(({ ms }) => ms);
  }
}

test("keeper: an engine that dies again and again is opened each time, after growing pauses", async () => {
  const bed = new Bed();
  const keeper = await bed.keeper();
  const pauses: number[] = [];
  for (let i = 0; i < 50; i += 1) {
    keeper.failed();
    keeper.failed();
    pauses.push(...(await bed.later()));
  }
  expect(bed.opened).toBe(51);
  expect(bed.served.at(-1)).toBe(keeper.worker);
  expect(pauses.slice(0, 3)).toEqual([100, 200, 400]);
  expect(Math.max(...pauses)).toBe(5_000);
  // The engine served well for a while.
  bed.nowMs += 60_000;
  keeper.failed();
  expect(await bed.later()).toEqual([100]);
  await keeper.close();
});

test("keeper: an engine that cannot be opened ten times in a row is given up", async () => {
  const bed = new Bed();
  const keeper = await bed.keeper();
  bed.isBroken = true;
  keeper.failed();
  for (let i = 0; i < 9; i += 1) await bed.later();
  expect(bed.laters.length).toBe(1);
  await bed.later();
  expect(bed.laters.length).toBe(0);
  expect(await keeper.gaveUp).toBe("no such file");
  expect(bed.notices.filter((kind) => kind === "engine_not_opened").length).toBe(10);
  await keeper.close();
});

test("keeper: what opens after it was closed is closed as well, and not served", async () => {
  const bed = new Bed();
  const keeper = await bed.keeper();
  keeper.failed();
  await keeper.close();
  await bed.later();
  expect(bed.served).toEqual([]);
});
