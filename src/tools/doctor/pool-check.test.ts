import { expect, onTestFinished, test } from "bun:test";
import { type StandInOptions, VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { checkPool } from "./shared-checks.ts";

async function servers(...options: Partial<StandInOptions>[]): Promise<readonly [string, string]> {
  const [a, b] = await Promise.all(options.map((one) => VllmStandIn.start(one)));
  if (a === undefined || b === undefined) throw new Error("two servers are compared");
  onTestFinished(() => a.stop());
  onTestFinished(() => b.stop());
  return [a.url, b.url];
}

const pool = (savesOutput = true) => ({ kvPool: { blocks: new Set<number>(), savesOutput } });
const OPTIONS = { token: null, salt: "s" };

test("checkPool: what one made is found by the other, and under no other salt", async () => {
  const one = pool();
  const finding = await checkPool(await servers(one, one), OPTIONS);
  expect(finding).toMatchObject({ check: "KV pool", verdict: "ok" });
  expect(finding?.reason).toContain("none under another salt");
});

test("checkPool: two pools that are not one are reported, with what to look at", async () => {
  const finding = await checkPool(await servers(pool(), pool()), OPTIONS);
  expect(finding?.verdict).toBe("warn");
  expect(finding?.fix).toContain("PYTHONHASHSEED");
}, 180_000);

test("checkPool: engines without a pool, with different ones or without output are not compared", async () => {
  expect(await checkPool(await servers({}, {}), OPTIONS)).toBe(null);
  expect(await checkPool(await servers(pool(), {}), OPTIONS)).toBe(null);
  expect(await checkPool(await servers(pool(false), pool(false)), OPTIONS)).toBe(null);
});

test("checkPool: a pool whose keys leave out the salt is a failure", async () => {
  const one = { ...pool(), ignoresSalt: true };
  const finding = await checkPool(await servers(one, one), OPTIONS);
  expect(finding?.verdict).toBe("fail");
  expect(finding?.reason).toContain("under another salt");
});
