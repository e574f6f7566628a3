import { expect, onTestFinished, test } from "bun:test";
import { type StandInOptions, VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { Engine } from "./engine.ts";
import { checkPool } from "./shared-checks.ts";

async function servers(...options: Partial<StandInOptions>[]): Promise<readonly [Engine, Engine]> {
  const [a, b] = await Promise.all(options.map((one) => VllmStandIn.start(one)));
  if (a === undefined || b === undefined) throw new Error("two servers are compared");
  onTestFinished(() => a.stop());
  onTestFinished(() => b.stop());
  const engines = [new Engine(a.url, null), new Engine(b.url, null)] as const;
  await Promise.all(engines.map((engine) => engine.probe()));
  return engines;
}

const pool = (savesOutput = true) => ({ kvPool: { blocks: new Set<number>(), savesOutput } });
const SALT = "s";

test("checkPool: what one made is found by the other, and under no other salt", async () => {
  const one = pool();
  const finding = await checkPool(...(await servers(one, one)), SALT);
  expect(finding).toMatchObject({ check: "KV pool", verdict: "ok" });
  expect(finding?.reason).toContain("none under another salt");
});

test("checkPool: two pools that are not one are reported, with what to look at", async () => {
  const finding = await checkPool(...(await servers(pool(), pool())), SALT);
  expect(finding?.verdict).toBe("warn");
  expect(finding?.fix).toContain("PYTHONHASHSEED");
}, 180_000);

test("checkPool: engines without a pool, with different ones or without output are not compared", async () => {
  expect(await checkPool(...(await servers({}, {})), SALT)).toBe(null);
  expect(await checkPool(...(await servers(pool(), {})), SALT)).toBe(null);
  expect(await checkPool(...(await servers(pool(false), pool(false))), SALT)).toBe(null);
});

test("checkPool: a pool whose keys leave out the salt is a failure", async () => {
  const one = { ...pool(), ignoresSalt: true };
  const finding = await checkPool(...(await servers(one, one)), SALT);
  expect(finding?.verdict).toBe("fail");
  expect(finding?.reason).toContain("under another salt");
});
