// The plugin's own tests, its copies of what the repository decides elsewhere, its types and its style, by their own
// tools. Skipped, with the reason, where no Python environment for them can be made.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { PLUGIN, pluginVenv } from "../../scripts/plugin-venv.ts";

setDefaultTimeout(240_000);

const venv = pluginVenv();
if (venv.kind === "missing") console.log(`plugin: skipped, ${venv.reason}`);

function run(tool: string, ...args: string[]): { status: number; said: string } {
  const bin = venv.kind === "ready" ? venv.bin : "";
  const { exitCode, stdout, stderr } = Bun.spawnSync([`${bin}/${tool}`, ...args], {
    cwd: PLUGIN,
    env: {
      ...process.env,
      PYTHONPATH: `${PLUGIN}/src:${PLUGIN}/tests`,
      PYTHONDONTWRITEBYTECODE: "1",
      FORETOKEN_BUN: process.execPath,
    },
    stdout: "pipe",
    stderr: "pipe",
  });
  return { status: exitCode, said: `${stdout}${stderr}` };
}

const GOOD = expect.objectContaining({ status: 0 });

describe.skipIf(venv.kind === "missing")("the plugin's package", () => {
  test("plugin: its copies of the core's ABI and of the protocol are current", () => {
    expect(run("python", "generate.py", "--check")).toEqual(GOOD);
  });

  test("plugin: pytest", () => {
    const { status, said } = run("python", "-m", "pytest");
    console.log(`plugin: ${said.trim().split("\n").at(-1)}`);
    expect({ status, said }).toEqual(GOOD);
  });

  test("plugin: ruff and mypy --strict have nothing to say", () => {
    expect(run("ruff", "check", "--no-cache", ".")).toEqual(GOOD);
    expect(run("ruff", "format", "--no-cache", "--check", ".")).toEqual(GOOD);
    expect(run("mypy", "--cache-dir", "../../.cache/plugin/mypy")).toEqual(GOOD);
  });
});
