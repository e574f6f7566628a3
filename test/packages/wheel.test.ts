// The wheel of this machine's architecture: built, installed in a fresh environment, and used there as a user would,
// with no Node, no Bun and no checkout in reach.

import { beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, readdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { createPythonEnv, type PythonEnv } from "../../scripts/python-env.ts";
import { buildWheel } from "../../scripts/wheel.ts";
import { ROOT } from "../e2e/tool.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { GOOD, ranIn, SMALL_DEMO } from "./ran-in.ts";

const PYTHON = join(ROOT, "python");
/** openssl: of the tests. */
const COMMANDS = ["sh", "cat", "sleep", "openssl"];
/** The package index's limit. */
const SIZE_MAX = 100 * 1024 * 1024;

describe("the wheel", () => {
  const folder = temporaryFolder("wheel");
  let env: PythonEnv | null = null;

  const run = (command: readonly string[], cwd = folder) => {
    const PATH = `${env?.bin}:${join(folder, "bin")}`;
    return ranIn(cwd, command, { HOME: folder, PATH, LANG: "C.UTF-8" });
  };

  beforeAll(() => {
    if (process.arch !== "x64" && process.arch !== "arm64") throw new Error(process.arch);
    const wheel = buildWheel(process.arch);
    expect(Bun.file(wheel).size).toBeLessThan(SIZE_MAX);
    mkdirSync(join(folder, "bin"));
    for (const name of COMMANDS) symlinkSync(Bun.which(name) ?? "", join(folder, "bin", name));
    const made = createPythonEnv(join(folder, "venv"));
    if (typeof made === "string") throw new Error(made);
    const problem = made.install([wheel, "pytest>=9,<10", "ruff>=0.17,<0.18", "mypy>=2,<3"]);
    if (problem !== null) throw new Error(problem);
    env = made;
  }, 600_000);

  test("wheel: the demo ends with the comparison", () => {
    const { status, said } = run(SMALL_DEMO);
    expect({ status, said }).toEqual(GOOD);
    expect(said).toContain("a real model's price");
    expect(said).toContain("vs group");
    expect(said).toContain("tokens lost / twice");
    // It writes nothing unasked.
    expect(readdirSync(folder).toSorted()).toEqual(["bin", "venv"]);
  });

  test("wheel: a small verify is bit for bit equal, and the page and simulator are inside", () => {
    expect(run(["foretoken", "verify", "--limit", "1", "--quiet"])).toEqual(GOOD);
    const sizes = ["--limit", "4", "--group-size", "8", "--max-tokens", "512"];
    const files = ["--out", "responses.jsonl", "--report", "report.json"];
    const prompts = join(ROOT, "model", "prompts.jsonl");
    const rollout = ["foretoken", "rollout", prompts, "--llama", "2", ...sizes, ...files];
    expect(run([...rollout, "--quiet"])).toEqual(GOOD);
    const { status, said } = run(["foretoken", "simulate", "--trace", "report.json"]);
    expect({ status, said }).toEqual(GOOD);
    expect(said).toStartWith("SIMULATED from seer, recorded:");
  });

  test("wheel: the Python package passes its own tests", () => {
    expect(run(["python", "-m", "pytest", join(PYTHON, "tests")], PYTHON)).toEqual(GOOD);
  });

  test("wheel: ruff and mypy --strict have nothing to say", () => {
    expect(run(["ruff", "check", "--no-cache", "."], PYTHON)).toEqual(GOOD);
    expect(run(["ruff", "format", "--no-cache", "--check", "."], PYTHON)).toEqual(GOOD);
    const cache = ["--cache-dir", join(folder, "mypy")];
    expect(run(["python", "-m", "mypy", ...cache], PYTHON)).toEqual(GOOD);
  });

  test("wheel: the vLLM plugin is in it, of the same version", () => {
    const program = [
      "import importlib.metadata as m",
      "found = m.entry_points(group='vllm.general_plugins', name='foretoken')",
      "print([entry.value for entry in found], m.version('foretoken'))",
      "import foretoken_vllm.version as v; assert v.VERSION == m.version('foretoken')",
    ];
    const { status, said } = run(["python", "-c", program.join("\n")]);
    expect({ status, said }).toEqual(GOOD);
    expect(said).toContain("foretoken_vllm.plugin:register");
  });
});
