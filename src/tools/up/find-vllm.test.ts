import { expect, test } from "bun:test";
import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { findVllm } from "./find-vllm.ts";

const folder = temporaryFolder("find");

function executable(path: string, text: string): string {
  mkdirSync(join(path, ".."), { recursive: true });
  writeFileSync(path, text);
  chmodSync(path, 0o755);
  return path;
}

/** A `vllm` of an environment whose Python says this version. */
function environment(name: string, version: string): string {
  const python = executable(join(folder, name, "bin", "python"), `#!/bin/sh\necho ${version}\n`);
  return executable(join(folder, name, "bin", "vllm"), `#!${python}\nimport vllm\n`);
}

test("findVllm: asks the environment of the command for its version and its device", () => {
  const cpu = findVllm(environment("cpu", "0.32.0+cpu"), folder);
  expect(cpu.build).toEqual({ version: "0.32.0", isCpu: true });
  const gpu = findVllm(environment("gpu", "0.29.1"), folder);
  expect(gpu.build).toEqual({ version: "0.29.1", isCpu: false });
});

test("findVllm: an interpreter whose path is too long for the first line stands in the second", () => {
  const python = executable(join(folder, "x".repeat(140), "python"), "#!/bin/sh\necho 0.30.0\n");
  const script = `#!/bin/sh\n'''exec' "${python}" "$0" "$@"\n' '''\nimport vllm\n`;
  const found = findVllm(executable(join(folder, "far", "vllm"), script), folder);
  expect(found.build.version).toBe("0.30.0");
  expect(found.python).toBe(python);
});

test("findVllm: without a path it is the project's own, once that is wholly installed", () => {
  const own = environment(join("project", ".cache", "vllm"), "0.32.0+cpu");
  const root = join(folder, "project");
  const found = (): string | null => {
    try {
      return findVllm(null, root).command;
    } catch {
      return null;
    }
  };
  expect(found()).not.toBe(own);
  writeFileSync(join(root, ".cache", "vllm", "installed"), "");
  expect(found()).toBe(own);
});

test("findVllm: what is not there, or does not print its version, is an error with a hint", () => {
  expect(() => findVllm(join(folder, "none"), folder)).toThrow(/there is no .*none: npm run/);
  const broken = executable(join(folder, "broken"), "#!/no/such/python\n");
  expect(() => findVllm(broken, folder)).toThrow("does not print its version");
  const silent = environment("silent", "");
  expect(() => findVllm(silent, folder)).toThrow("does not print its version");
});
