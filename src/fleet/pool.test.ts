// What a pool does with workers whose connections are lost: it says so, places nothing new on them, and opens
// those whose sessions are over again, soon and for as long as it takes.

import { expect, test } from "bun:test";
import { ControlFixture } from "../../test/suite/control-fixture.ts";
import { workerId } from "../core/base/ids.ts";

const LENGTH = 30;
const opened = () => ControlFixture.open();

test("pool: a worker with a lost connection gets nothing new, and continues when it is back", async () => {
  const bed = await opened();
  const before = bed.ask(3);
  await bed.steps(2);
  bed.told.length = 0;
  bed.lose(0);
  expect(bed.states).toEqual(["reconnecting", "ready", "ready"]);
  const held = before.filter(({ workerId: id }) => id === workerId(0));
  const lengths = held.map(({ response }) => response.length);
  bed.worker(0).isDead = true;
  const after = bed.ask(4);
  await bed.steps(80);
  expect(after.map(({ response }) => response.finish)).toEqual(Array(4).fill("stop"));
  expect(held.map(({ response }) => response.length)).toEqual(lengths);
  bed.worker(0).isDead = false;
  bed.regain(0);
  await bed.steps(60);
  expect(before.map(({ response }) => response.finish)).toEqual(Array(3).fill("stop"));
  expect(bed.told).toEqual([
    "engine-0 reconnecting the connection was lost",
    "engine-0 ready null",
  ]);
});

test("pool: KV that is on a lost connection, or leaving over it, is computed again elsewhere", async () => {
  // Lost at every step of chunks that begin, run, end and leave their KV.
  for (let lostAt = 1; lostAt <= 16; lostAt += 1) {
    const bed = await opened();
    // More requests than slots: at the end of each chunk its KV has to make way.
    const requests = bed.ask(10);
    await bed.steps(lostAt);
    bed.lose(0);
    bed.worker(0).isDead = true;
    const isHeld = ({ status, workerId: id }: (typeof requests)[number]) =>
      status === "running" && id === workerId(0);
    const free = requests.filter((request) => !isHeld(request));
    await bed.steps(250);
    expect(free.filter(({ status }) => status !== "finished")).toEqual([]);
    bed.worker(0).isDead = false;
    bed.regain(0);
    await bed.steps(80);
    expect(requests.map(({ response }) => response.length)).toEqual(requests.map(() => LENGTH));
  }
});

test("pool: requests of a worker that leaves go on elsewhere, with the KV that they have there", async () => {
  for (let leftAt = 1; leftAt <= 16; leftAt += 1) {
    const bed = await opened();
    const requests = bed.ask(10);
    await bed.steps(leftAt);
    void bed.pool.leave(workerId(0), 60_000);
    for (let i = 0; bed.states.length > 2 && i < 30; i += 1) {
      await bed.steps(4);
      await bed.retry();
    }
    expect(bed.states).toEqual(["ready", "ready"]);
    await bed.steps(250);
    expect(requests.map(({ response }) => response.length)).toEqual(requests.map(() => LENGTH));
    const recomputed = [1, 2].map((index) => bed.worker(index).stats().recomputedTokens);
    expect(recomputed).toEqual([0, 0]);
  }
});

test("pool: when the session is over its requests move, and the worker is reconnecting until it is opened", async () => {
  const bed = await opened();
  const requests = bed.ask(4);
  await bed.steps(2);
  await bed.retry();
  bed.refusesToOpen = true;
  bed.told.length = 0;
  bed.lose(0);
  bed.worker(0).kill();
  expect(bed.states).toEqual(["reconnecting", "ready", "ready"]);
  const pauses: number[] = [];
  for (let i = 0; i < 20; i += 1) pauses.push(...(await bed.retry()).filter((ms) => ms < 5_000));
  expect(pauses[0]).toBeLessThanOrEqual(100);
  expect(Math.max(...pauses)).toBeLessThanOrEqual(2000);
  expect(bed.states[0]).toBe("reconnecting");
  // 20 tries that ended alike are not 20 lines.
  expect(bed.told.length).toBeLessThan(10);
  await bed.steps(80);
  expect(requests.every(({ response }) => response.finish === "stop")).toBe(true);
  bed.refusesToOpen = false;
  await bed.retry();
  expect(bed.states).toEqual(["ready", "ready", "ready"]);
});

test("engines that report no weights get those of the process before, which may not be theirs any more", async () => {
  const base = { kind: "load", path: "/weights", version: null, options: {} } as const;
  const before = { base, weights: null };
  const bed = await ControlFixture.open({ keepsWeights: true, before });
  expect(bed.states).toEqual(["ready", "ready", "ready"]);
  const heard = [0, 1, 2].flatMap((index) => bed.worker(index).heard);
  expect(heard).toEqual([base, base, base]);
});
