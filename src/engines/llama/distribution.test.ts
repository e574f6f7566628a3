// On the fastest kernels logits may differ in their last bits from batch to batch, so drafted and plain
// runs part in time; what must agree is the distribution. Seeded, so the result is the same every time.

import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import type { TrialCounts } from "../../../test/llama/distribution-trials.ts";
import { skipReason } from "../../../test/llama/engine-fixture.ts";

function chiSquare(counts: Record<string, number>, { exact, trials }: TrialCounts): number {
  let rest = trials;
  let restExpected = trials;
  let chi2 = 0;
  for (const [pair, p] of Object.entries(exact)) {
    const expected = p * trials;
    const count = counts[pair] ?? 0;
    chi2 += (count - expected) ** 2 / expected;
    rest -= count;
    restExpected -= expected;
  }
  return chi2 + (rest - restExpected) ** 2 / restExpected;
}

/** 99.9 % quantile of chi-square, by the approximation of Wilson and Hilferty (1931). */
function quantile(degrees: number): number {
  const a = 2 / (9 * degrees);
  return degrees * (1 - a + 3.0902 * Math.sqrt(a)) ** 3;
}

describe.skipIf(skipReason !== null)("distribution", () => {
  test("the joint of the first two tokens is the model's: plain and with drafts", async () => {
    const program = join(import.meta.dir, "../../../test/llama/distribution-trials.ts");
    const child = Bun.spawn([process.execPath, program], { stdout: "pipe", stderr: "inherit" });
    const output = await new Response(child.stdout).text();
    expect(await child.exited).toBe(0);
    const counts: TrialCounts = JSON.parse(output.split("\n").at(-2) ?? "");
    const cells = Object.keys(counts.exact).length;
    expect(cells).toBeGreaterThan(10);
    for (const way of ["plain", "drafted"] as const) {
      expect(chiSquare(counts[way], counts)).toBeLessThan(quantile(cells));
    }
    // A distribution that is off by a tenth on half of the cells would be noticed.
    const bent = { ...counts.exact };
    Object.keys(bent).forEach((pair, i) => {
      bent[pair] = (bent[pair] ?? 0) * counts.trials * (i % 2 === 0 ? 1.15 : 0.85);
    });
    expect(chiSquare(bent, counts)).toBeGreaterThan(quantile(cells));
  }, 180_000);
});
