import { expect, test } from "bun:test";
import { programOf } from "../cli/cli.ts";
import { settingsIn } from "./file.ts";
import { removedFlag, removedVariable } from "./removed.ts";

const OPTIONS_MAX = 60;
const SERVE_OPTIONS_MAX = 25;

const { commands } = programOf(() => {});
const flagsOf = (names: readonly string[]) =>
  commands
    .filter((command) => names.length === 0 || names.includes(command.name()))
    .flatMap(({ options }) => options.map(({ long }) => long ?? ""));

test("options: serve and the whole command line have a bounded number", () => {
  expect(flagsOf(["serve"]).length).toBeLessThanOrEqual(SERVE_OPTIONS_MAX);
  expect(new Set(flagsOf([])).size).toBeLessThanOrEqual(OPTIONS_MAX);
});

test("options: one that is gone names what to use instead, wherever it is given", () => {
  expect(removedFlag("--log-level")).toBe(
    "--log-level is gone: use --log text:LEVEL or json:LEVEL",
  );
  expect(removedFlag("--port")).toBeNull();
  const env = { FORETOKEN_TLS_CERT: "a.pem", FORETOKEN_PARENT: "1" };
  expect(removedVariable(env, () => false)).toContain("FORETOKEN_TLS_CERT (--tls-cert) is gone");
  expect(removedVariable(env, () => true)).toBeNull();
  expect(() => settingsIn({ session_s: 1 }, { where: "f.toml", names: ["port"] })).toThrow(
    "f.toml: session_s: --session-s is gone",
  );
});
