import { expect, test } from "bun:test";
import fc from "fast-check";
import { KvPoolTwin, sum } from "../../test/reference/kv-pool-twin.ts";
import { failure, MemoryFile } from "../../test/reference/memory-file.ts";
import { kind, weighted } from "../../test/suite/arbitraries.ts";
import { blobOf, keyOf } from "../../test/suite/kv-blobs.ts";
import { weightEpoch } from "../core/base/ids.ts";
import { EmbeddedKvPool } from "./embedded-pool.ts";

// Few keys and long sequences, so that operations meet what others have left or are still about.
const TOKENS = 4;
const EPOCHS = 3;
const KEYS = Array.from({ length: TOKENS * EPOCHS }, (_, i) =>
  keyOf(i % TOKENS, weightEpoch(Math.floor(i / TOKENS))),
);

type Operation =
  | { kind: "put"; token: number; size: number; epoch: number }
  | { kind: "get" | "release"; token: number; epoch: number }
  /** The weights have changed. */
  | { kind: "release_all" }
  | { kind: "settle" };

const token = fc.nat(TOKENS - 1);
const epoch = fc.nat(EPOCHS - 1);

const operation: fc.Arbitrary<Operation> = fc.oneof(
  weighted(8, { kind: kind("put"), token, size: fc.integer({ min: 1, max: 40 }), epoch }),
  weighted(6, { kind: fc.constantFrom("get" as const, "release" as const), token, epoch }),
  weighted(1, { kind: kind("release_all") }),
  weighted(2, { kind: kind("settle") }),
);

const limits = fc.record({
  memory: fc.integer({ min: 0, max: 120 }),
  disk: fc.integer({ min: 0, max: 160 }),
});

function makePool(memory: number, disk: number, pending: number) {
  const file = new MemoryFile();
  const pool = new EmbeddedKvPool({
    memoryBytesMax: memory,
    disk: { file, bytesMax: disk, pendingBytesMax: pending },
  });
  return { file, pool };
}

test("EmbeddedKvPool: agrees with its twin after every operation", async () => {
  await fc.assert(
    fc.asyncProperty(
      limits,
      fc.array(operation, { maxLength: 60, size: "max" }),
      async (limit, operations) => {
        const { file, pool } = makePool(limit.memory, limit.disk, 1_000_000);
        const twin = new KvPoolTwin(limit.memory, limit.disk);
        for (const op of operations) {
          if (op.kind === "settle") {
            await pool.settled();
          } else if (op.kind === "release_all") {
            pool.release(KEYS);
            for (const key of KEYS) twin.release(key);
          } else {
            const key = keyOf(op.token, weightEpoch(op.epoch));
            if (op.kind === "put") {
              const bytes = blobOf(op.token, op.size);
              const copy = new Uint8Array(bytes.slice(0));
              expect(pool.put(key, bytes)).toBe(twin.put(key, copy));
            } else if (op.kind === "get") {
              const got = await pool.get(key);
              const wanted = twin.get(key);
              expect(got === null ? [] : [...new Uint8Array(got)]).toEqual([...(wanted ?? [])]);
            } else {
              pool.release([key]);
              twin.release(key);
            }
          }
          const stats = pool.stats();
          expect(stats.diskBytes).toBe(sum(twin.disk));
          expect(stats.evictions).toBe(twin.evictions);
          expect(stats).toMatchObject({ corrupt: 0, diskErrors: 0 });
        }
        await pool.settled();
        expect(pool.stats().memoryBytes).toBe(sum(twin.memory));
        expect(file.bytes.length).toBeLessThanOrEqual(limit.disk);
        await pool.close();
        expect(file.isClosed).toBe(true);
      },
    ),
    { numRuns: 300 },
  );
});

test("EmbeddedKvPool: whatever fails, and in whatever order, bytes are right or absent", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.scheduler(),
      // Little memory, so that blobs are written and read while other things happen.
      fc.record({ memory: fc.constantFrom(0, 20, 40), disk: fc.integer({ min: 0, max: 160 }) }),
      fc.nat(80),
      fc.array(operation, { maxLength: 40, size: "max" }),
      fc.array(fc.nat(7), { minLength: 1, maxLength: 40 }),
      async (s, limit, pending, operations, faults) => {
        const { file, pool } = makePool(limit.memory, limit.disk, pending);
        let fault = 0;
        file.before = async (kind) => {
          await s.schedule(Promise.resolve(), kind);
          fault += 1;
          if (faults[fault % faults.length] === 0 && kind !== "close") throw failure("EIO");
        };
        async function perform(op: Operation): Promise<void> {
          if (op.kind === "release_all") pool.release(KEYS);
          else if (op.kind !== "settle") {
            const key = keyOf(op.token, weightEpoch(op.epoch));
            if (op.kind === "put") pool.put(key, blobOf(op.token, 20));
            else if (op.kind === "release") pool.release([key]);
            else if (op.kind === "get") {
              const got = await pool.get(key);
              if (got !== null) expect(got).toEqual(blobOf(op.token, 20));
            }
          }
          const { memoryBytes, diskBytes } = pool.stats();
          expect(memoryBytes).toBeLessThanOrEqual(limit.memory + pending);
          expect(diskBytes).toBeLessThanOrEqual(limit.disk);
        }
        // The scheduler is not given what `perform` returns: it runs nothing else until that has settled,
        // so that a get would wait for a read that waits for its turn; and it swallows what is thrown.
        const performed: Promise<void>[] = [];
        s.scheduleSequence(
          operations.map((op) => ({
            label: op.kind,
            builder: async () => {
              performed.push(perform(op));
            },
          })),
        );
        await s.waitIdle();
        const closing = pool.close();
        await s.waitIdle();
        await closing;
        expect(performed).toHaveLength(operations.length);
        await Promise.all(performed);
        expect(file.isClosed).toBe(true);
        expect(pool.stats()).toMatchObject({ memoryBytes: 0, diskBytes: 0, corrupt: 0 });
      },
    ),
    { numRuns: 2000 },
  );
});
