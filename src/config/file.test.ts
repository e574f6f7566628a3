import { expect, test } from "bun:test";
import { settingsIn } from "./file.ts";

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
