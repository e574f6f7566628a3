import { expect, test } from "bun:test";
import { DiskQueue } from "./disk-queue.ts";

test("push: operations run one after the other, in order, and not at once", async () => {
  const queue = new DiskQueue();
  const log: string[] = [];
  for (let i = 0; i < 600; i += 1) {
    queue.push(async () => {
      log.push(`begin ${i}`);
      await null;
      log.push(`end ${i}`);
    });
  }
  expect(log).toEqual([]);
  await queue.idle();
  const wanted = Array.from({ length: 600 }, (_, i) => [`begin ${i}`, `end ${i}`]).flat();
  expect(log).toEqual(wanted);
});

test("idle: waits for what an operation pushed", async () => {
  const queue = new DiskQueue();
  const log: number[] = [];
  queue.push(async () => {
    log.push(1);
    queue.push(async () => {
      log.push(2);
    });
  });
  await queue.idle();
  expect(log).toEqual([1, 2]);
  await queue.idle();
});

test("clear: forgets what has not begun", async () => {
  const queue = new DiskQueue();
  const log: number[] = [];
  queue.push(async () => {
    log.push(1);
    queue.clear();
  });
  queue.push(async () => {
    log.push(2);
  });
  await queue.idle();
  expect(log).toEqual([1]);
  queue.push(async () => {
    log.push(3);
  });
  await queue.idle();
  expect(log).toEqual([1, 3]);
});
