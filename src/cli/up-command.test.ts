import { expect, test } from "bun:test";
import { ended, start } from "../../test/e2e/tool.ts";
import { modelName } from "./up-command.ts";

test("up: a size for the KV pool without one, and with somebody else's, is a usage error", async () => {
  const up = (args: string[], env = {}) => ended(start(["up", ...args], env));
  const [alone, theirs, small] = await Promise.all([
    up(["--kv-segment-mb", "64"]),
    up(["--kv-segment-mb", "64", "--kv-connector", "mooncake"], { MOONCAKE_CONFIG_PATH: "/c" }),
    up(["--kv-segment-mb", "1", "--kv-connector", "mooncake"]),
  ]);
  expect(alone.stderr).toContain("--kv-segment-mb has no effect here: it is for --kv-connector");
  expect(theirs.stderr).toContain("--kv-segment-mb has no effect here: MOONCAKE_CONFIG_PATH=/c");
  expect(small.stderr).toContain("--kv-segment-mb");
  expect([alone, theirs, small].map(({ status }) => status)).toEqual([2, 2, 2]);
});

test("up: a model's name is its folder's, of a hub's snapshot the repository's, of the bundled one its own", () => {
  const snapshot = "/root/.cache/hub/models--Qwen--Qwen2.5-0.5B/snapshots/060db6499f32";
  expect(["/models/my-policy/", snapshot, null].map(modelName)).toEqual([
    ...["my-policy", "Qwen/Qwen2.5-0.5B", "foretoken-3m"],
  ]);
});
