import { expect, test } from "bun:test";
import { programOf } from "../cli/cli.ts";

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
