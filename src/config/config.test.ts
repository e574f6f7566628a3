// The options: values of flags, of the environment and of a file, and how many there are.

import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { programOf } from "../cli/cli.ts";
import { runNamed } from "../core/schedule/policies.ts";
import { checkEnvironment } from "./environment.ts";
import { FIELDS, type Field, parseField } from "./fields.ts";
import { settingsIn } from "./file.ts";

test.each([
  [FIELDS.servers, "0", "--workers is 0; it must be between 1 and 64"],
  [FIELDS.servers, "65", "between 1 and 64"],
  [FIELDS.policy, "best", "seer, seer:grouped, seer:off"],
  ...["", " ", "1.5", "x", "1e400", "NaN", "12abc"].map(
    (text) => [FIELDS.servers, text, "a whole number"] as const,
  ),
])("parseField: %o refuses %p by flag, value and bound", (field, text, problem) => {
  expect(() => parseField(field, text)).toThrow(problem);
});

test("fields: every default lies in its own range", () => {
  for (const field of Object.values<Field>(FIELDS)) {
    if (field.kind === "switch" || field.kind === "list" || field.default === null) continue;
    expect<unknown>(parseField(field, String(field.default))).toBe(field.default);
  }
});

test("policy: drafting is on with seer and off with the baselines, unless a run names it", () => {
  expect((["group", "seer"] as const).map(runNamed)).toEqual([
    { policy: "group", draft: "off" },
    { policy: "seer", draft: "grouped" },
  ]);
  expect((["group:grouped", "seer:off"] as const).map(runNamed)).toEqual([
    { policy: "group", draft: "grouped" },
    { policy: "seer", draft: "off" },
  ]);
});

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

const options = {
  where: "f.toml",
  names: ["kvTokens", "worker", "json", "policy", "port"] as const,
};

test("settingsIn: takes every kind of value by the name of its flag", () => {
  const content = { kv_tokens: 2560, worker: ["http://a"], json: true, policy: "seer", port: 8000 };
  expect([...settingsIn(content, options)]).toEqual([
    ["kvTokens", 2560],
    ["worker", ["http://a"]],
    ["json", true],
    ["policy", "seer"],
    ["port", 8000],
  ]);
});

test("settingsIn: names what an unknown key should have been", () => {
  expect(() => settingsIn({ kvtokens: 1 }, options)).toThrow(
    "kvtokens is not known; did you mean kv_tokens?",
  );
  expect(() => settingsIn({ room: 1 }, options)).toThrow(
    "room is not known; known are json, kv_tokens",
  );
});

test("settingsIn: names the file, the key, the value and the bound", () => {
  expect(() => settingsIn({ kv_tokens: 1 }, options)).toThrow(
    "f.toml: kv_tokens: --kv-tokens is 1; it must be between 16",
  );
  expect(() => settingsIn({ json: "yes" }, options)).toThrow(
    'f.toml: json is "yes"; it is true or false',
  );
  expect(() => settingsIn({ worker: "http://a" }, options)).toThrow("it is a list of strings");
  expect(() => settingsIn({ policy: ["seer"] }, options)).toThrow("it is one value");
  expect(() => settingsIn([], options)).toThrow("is not a table of settings");
});

const OPTIONS_MAX = 60;
const SERVE_OPTIONS_MAX = 24;

const { commands } = await programOf(() => {});
const flagsOf = (names: readonly string[]) =>
  commands
    .filter((command) => names.length === 0 || names.includes(command.name()))
    .flatMap(({ options }) => options.map(({ long }) => long ?? ""));

test("options: serve and the whole command line have a bounded number", () => {
  expect(flagsOf(["serve"]).length).toBeLessThanOrEqual(SERVE_OPTIONS_MAX);
  expect(new Set(flagsOf([])).size).toBeLessThanOrEqual(OPTIONS_MAX);
});
