// The npm package: packed, installed from the tarball in an empty folder with npm alone, and used by npx.

import { beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../e2e/tool.ts";
import { until } from "../faults/http-client.ts";
import { ToolProcess } from "../faults/process.ts";
import { expectFollowed, streamExample } from "../suite/stream-example.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { GOOD, ranIn, SMALL_DEMO } from "./ran-in.ts";

describe("the npm package", () => {
  const packed = temporaryFolder("npm");
  const folder = temporaryFolder("npm");

  const env = { ...process.env, npm_config_cache: join(packed, "cache") };
  const run = (command: readonly string[], cwd = folder) => ranIn(cwd, command, env);

  let installed = "";

  beforeAll(() => {
    mkdirSync(join(packed, "out"));
    expect(run(["npm", "pack", "--pack-destination", join(packed, "out")], ROOT)).toEqual(GOOD);
    const [tarball = ""] = readdirSync(join(packed, "out"));
    writeFileSync(join(folder, "package.json"), '{"name": "user"}');
    const { status, said } = run(["npm", "install", join(packed, "out", tarball)]);
    expect({ status, said }).toEqual(GOOD);
    installed = said;
  }, 600_000);

  test("npm: no package refuses this Node", () => {
    expect(installed).not.toContain("EBADENGINE");
  });

  test("npm: npx runs the demo", () => {
    const { status, said } = run(["npx", "--no-install", ...SMALL_DEMO]);
    expect({ status, said }).toEqual(GOOD);
    expect(said).toContain("a real model's price");
    expect(said).toContain("vs group");
  });

  test("npm: Node follows a sidecar's tokens with foretoken/stream, as STREAM.md says", async () => {
    const program = [join(folder, "node_modules", ".bin", "foretoken")];
    const serve = ["serve", "--llama", "1", "--port", "0"];
    const sidecar = new ToolProcess(serve, { program });
    try {
      await sidecar.listens();
      await until(() => sidecar.http.isServing(), "the engine");
      writeFileSync(join(folder, "follow.mjs"), await streamExample(sidecar.http.url.host));
      const node = Bun.spawn(["node", "follow.mjs"], { cwd: folder, stdout: "pipe" });
      expectFollowed(await new Response(node.stdout).text(), ["0", "1"]);
      expect(await node.exited).toBe(0);
    } finally {
      await sidecar.kill();
    }
  }, 180_000);

  test("npm: the command runs without npx, and with no Bun on PATH", () => {
    const program = join(folder, "node_modules", ".bin", "foretoken");
    const { exitCode, stdout } = Bun.spawnSync([program, "--version"], {
      env: { PATH: "/usr/bin:/bin" },
    });
    expect(exitCode).toBe(0);
    expect(stdout.toString()).toMatch(/^\d+\.\d+\.\d+\n$/);
  });
});
