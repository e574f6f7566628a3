import { expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { pluginHash } from "./install-plugin.ts";

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
