import { expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { parsePluginRunner, pluginHash } from "./install-plugin.ts";

const root = temporaryFolder("plugin");

test("install-plugin: the plugin is another one as soon as any of its files is", async () => {
  const write = (name: string, text: string): void => {
    mkdirSync(dirname(join(root, name)), { recursive: true });
    writeFileSync(join(root, name), text);
  };
  const folder = "native/foretoken_vllm";
  const files = [
    `${folder}/pyproject.toml`,
    `${folder}/hatch_build.py`,
    `${folder}/src/foretoken_vllm/core.py`,
    `${folder}/src/foretoken_vllm/deeper/one.py`,
    "build/core.wasm",
  ];
  for (const file of files) write(file, "one");
  const seen = new Set([await pluginHash(root)]);
  for (const file of files) {
    write(file, "two");
    seen.add(await pluginHash(root));
  }
  write(`${folder}/src/foretoken_vllm/new.py`, "");
  seen.add(await pluginHash(root));
  expect(seen.size).toBe(files.length + 2);
});

test("parsePluginRunner: the last line of the plugin's answer names the runner and the reason", () => {
  expect(parsePluginRunner("INFO a log line\nrunner 2: vLLM 0.33.0 has Triton here\n")).toEqual({
    runner: 2,
    reason: "vLLM 0.33.0 has Triton here",
  });
  expect(parsePluginRunner("runner 1: it is set")).toEqual({ runner: 1, reason: "it is set" });
  expect(parsePluginRunner("runner 0: on GPUs")).toEqual({ runner: 0, reason: "on GPUs" });
  for (const other of ["", "runner 3: x", "Traceback", "runner 1: x\nand more"]) {
    expect(parsePluginRunner(other)).toBeNull();
  }
});
