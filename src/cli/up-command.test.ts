import { expect, test } from "bun:test";
import { join } from "node:path";

const MAIN = join(import.meta.dir, "..", "main.ts");

test("up: a size for the KV pool without one, and with somebody else's, is a usage error", async () => {
  const up = async (args: string[], env: Record<string, string> = {}) => {
    const child = Bun.spawn([process.execPath, MAIN, "up", ...args], {
      env: { ...process.env, ...env },
      stdin: "ignore",
      stdout: "ignore",
      stderr: "pipe",
    });
    return { errors: await new Response(child.stderr).text(), status: await child.exited };
  };
  const [alone, theirs, small] = await Promise.all([
    up(["--kv-segment-mb", "64"]),
    up(["--kv-segment-mb", "64", "--kv-connector", "mooncake"], { MOONCAKE_CONFIG_PATH: "/c" }),
    up(["--kv-segment-mb", "1", "--kv-connector", "mooncake"]),
  ]);
  expect(alone.errors).toContain("--kv-segment-mb has no effect here: it is for --kv-connector");
  expect(theirs.errors).toContain("--kv-segment-mb has no effect here: MOONCAKE_CONFIG_PATH=/c");
  expect(small.errors).toContain("--kv-segment-mb");
  expect([alone, theirs, small].map(({ status }) => status)).toEqual([2, 2, 2]);
});
