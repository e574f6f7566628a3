import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { checkEnvironment } from "./environment.ts";

const SETTINGS = join(
  import.meta.dir,
  "../../native/foretoken_vllm/src/foretoken_vllm/settings.py",
);

test("environment: every name that the plugin reads is known", () => {
  const source = readFileSync(SETTINGS, "utf8");
  const fields = [...source.matchAll(/^ {4}(\w+): (?:str|int|float) = /gm)].map(([, name]) => name);
  const [, switches = ""] = /_WANTED = \(([^)]*)\)/.exec(source) ?? [];
  const names = [...fields, ...[...switches.matchAll(/"(\w+)"/g)].map(([, name]) => name)];
  expect(names).toContain("REPAIR");
  const variables = names.map((name = "") => `FORETOKEN_${name.toUpperCase()}`);
  expect(() => checkEnvironment(variables)).not.toThrow();
  expect(() => checkEnvironment(["FORETOKEN_REPAIRS"])).toThrow("did you mean FORETOKEN_REPAIR?");
});
