// `foretoken chaos` as its user runs it: a few seeds. All of them are `foretoken chaos --seeds 1000`.

import { expect, setDefaultTimeout, test } from "bun:test";
import { ended, engineMissing, foretoken, start } from "./tool.ts";

const missing = engineMissing();
if (missing !== null) console.warn(`skipped, the embedded engine cannot run here: ${missing}`);
const engineTest = test.skipIf(missing !== null);

setDefaultTimeout(240_000);

engineTest("chaos: no response is lost, repeated or changed, and the sums say so", async () => {
  const kinds = ["sidecar_kill", "worker_kill", "link_cut"].flatMap((kind) => ["--fault", kind]);
  const { status, stdout, stderr } = await foretoken("chaos", "--seeds", "2", "--json", ...kinds);
  expect([status, stderr.includes("repeat it")]).toEqual([0, false]);
  const report = JSON.parse(stdout);
  expect(report).toMatchObject({ rollouts: 2, lost: 0, twice: 0, wrong: 0, failed_seeds: [] });
  expect(report.responses).toBe(12);
  expect(report.faults).toBeGreaterThanOrEqual(2);
  expect(report.ettr).toBeGreaterThan(0);
  expect(report.ettr).toBeLessThan(1);
});

engineTest("chaos: an unknown fault is refused, and a signal ends every process", async () => {
  const refused = await foretoken("chaos", "--fault", "meteor");
  expect([refused.status, refused.stderr]).toEqual([2, expect.stringContaining("worker_kill")]);
  const child = start(["chaos", "--seeds", "100"]);
  await Bun.sleep(3_000);
  child.kill("SIGTERM");
  expect((await ended(child)).status).toBe(130);
});
