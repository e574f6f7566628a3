import { expect, test } from "bun:test";
import fc from "fast-check";
import { Timeline } from "./timeline.ts";

test("timeline: everything comes out once, by time, equal times in the order they went in", () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 20 })), (times) => {
      const timeline = new Timeline<number>();
      for (const [i, atMs] of times.entries()) timeline.add(atMs, i);
      const wanted = times
        .map((atMs, i) => ({ atMs, i }))
        .sort((a, b) => a.atMs - b.atMs || a.i - b.i);
      for (const { atMs, i } of wanted) {
        expect(timeline.nextMs).toBe(atMs);
        expect(timeline.take()).toBe(i);
      }
      expect(timeline.take()).toBeNull();
      expect(timeline.nextMs).toBe(Number.POSITIVE_INFINITY);
    }),
  );
});
