import { expect, test } from "bun:test";
import fc from "fast-check";
import { BodyBudget, type Room } from "./body.ts";

const MIB = 2 ** 20;

class Timers {
  readonly #acts = new Set<() => void>();

  readonly later = (act: () => void): (() => void) => {
    this.#acts.add(act);
    return () => this.#acts.delete(act);
  };

  get pending(): number {
    return this.#acts.size;
  }

  fire(): void {
    for (const act of [...this.#acts]) act();
    this.#acts.clear();
  }
}

function budgetOf(bytesMax: number): { budget: BodyBudget; timers: Timers } {
  const timers = new Timers();
  const options = { bytesMax, waitMsMax: 1000, later: timers.later, nowMs: () => 0 };
  return { budget: new BodyBudget(options), timers };
}

const still = new AbortController().signal;
const settled = () => new Promise<void>((resolve) => setImmediate(resolve));

test("take: who finds no room waits, and has it when another goes", async () => {
  const { budget, timers } = budgetOf(8 * MIB);
  const first = await budget.take(6 * MIB, still);
  let second: Room | null = null;
  void budget.take(4 * MIB, still).then((room) => {
    second = room;
  });
  await settled();
  expect(second).toBeNull();
  first.release();
  await settled();
  expect(second).not.toBeNull();
  expect([budget.used, timers.pending]).toEqual([4 * MIB, 0]);
});

test("take: large bodies leave a quarter for small ones", async () => {
  const { budget } = budgetOf(8 * MIB);
  await budget.take(6 * MIB, still);
  void budget.take(2 * MIB, still).catch(() => {});
  const small = await budget.take(MIB, still);
  small.release();
  expect(budget.used).toBe(6 * MIB);
});

test("take: waiting ends in queue_full, or with the client", async () => {
  const { budget, timers } = budgetOf(8 * MIB);
  const room = await budget.take(6 * MIB, still);
  const client = new AbortController();
  const gone = budget.take(6 * MIB, client.signal);
  client.abort();
  await expect(gone).rejects.toThrow("the client disconnected");
  const waiting = budget.take(6 * MIB, still);
  timers.fire();
  await expect(waiting).rejects.toThrow("request bodies of");
  room.release();
  expect(budget.used).toBe(0);
});

test("take: one that is larger than the budget is served alone", async () => {
  const { budget } = budgetOf(MIB);
  const room = await budget.take(9 * MIB, still);
  room.release();
  expect(budget.used).toBe(0);
});

test("take: what is no number of bytes is never counted", async () => {
  const { budget } = budgetOf(MIB);
  for (const bytes of [Number.NaN, -1, 1.5, Number.POSITIVE_INFINITY]) {
    await expect(budget.take(bytes, still)).rejects.toThrow("is a number of bytes");
  }
  const room = await budget.take(1000, still);
  expect(() => room.grow(Number.POSITIVE_INFINITY)).toThrow("is a number of bytes");
  expect(budget.used).toBe(1000);
});

test("grow: takes what there is, and does not wait for more", async () => {
  const { budget } = budgetOf(8 * MIB);
  const one = await budget.take(1000, still);
  const other = await budget.take(1000, still);
  one.grow(5 * MIB);
  expect(() => other.grow(4 * MIB)).toThrow("request bodies of");
  one.release();
  other.grow(4 * MIB);
  other.release();
  expect(budget.used).toBe(0);
});

test("take: nothing is lost and the bound holds, whatever comes and goes", async () => {
  const act = fc.record({
    bytes: fc.integer({ min: 0, max: 6 * MIB }),
    grows: fc.boolean(),
    ends: fc.nat({ max: 10 }),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(act, { maxLength: 40 }), async (acts) => {
      const { budget, timers } = budgetOf(8 * MIB);
      const rooms: Room[] = [];
      const asked = acts.map(async ({ bytes, grows, ends }) => {
        const room = await budget.take(bytes, still);
        rooms.push(room);
        try {
          if (grows) room.grow(2 * bytes);
        } catch {}
        expect(budget.used).toBeLessThanOrEqual(12 * MIB);
        if (rooms.length > ends) rooms.shift()?.release();
      });
      const all = Promise.allSettled(asked);
      for (let i = 0; i < 100; i += 1) {
        await settled();
        rooms.shift()?.release();
      }
      timers.fire();
      await all;
      for (const room of rooms) room.release();
      expect(budget.used).toBe(0);
    }),
    { numRuns: 50 },
  );
});
