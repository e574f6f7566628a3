import { expect, test } from "bun:test";
import { terminalOf } from "./terminal.ts";

const tty = { isTTY: true, columns: 120, rows: 40, write: () => true };
const file = { write: () => true };

test("terminalOf: a terminal is live, in colour and as wide as it reports", () => {
  expect(terminalOf(tty, {})).toEqual({
    live: true,
    columns: 120,
    rows: 40,
    color: true,
    unicode: true,
  });
});

test("terminalOf: a file is neither live nor in colour, and has a usual size", () => {
  expect(terminalOf(file, {})).toMatchObject({ live: false, color: false, columns: 80, rows: 24 });
});

test("terminalOf: NO_COLOR and a dumb terminal are respected", () => {
  expect(terminalOf(tty, { NO_COLOR: "1" })).toMatchObject({ live: true, color: false });
  expect(terminalOf(tty, { NO_COLOR: "" }).color).toBe(true);
  expect(terminalOf(tty, { TERM: "dumb" })).toMatchObject({ live: false, color: false });
});

test("terminalOf: the locale decides about Unicode, in its order of precedence", () => {
  const unicode = (env: Record<string, string>) => terminalOf(tty, env).unicode;
  expect(unicode({ LANG: "en_US.UTF-8" })).toBe(true);
  expect(unicode({ LANG: "C.utf8" })).toBe(true);
  expect(unicode({ LANG: "C" })).toBe(false);
  expect(unicode({ LANG: "en_US.UTF-8", LC_ALL: "POSIX" })).toBe(false);
  expect(unicode({ LANG: "C", LC_CTYPE: "C.UTF-8" })).toBe(true);
  expect(unicode({ TERM: "linux", LANG: "en_US.UTF-8" })).toBe(false);
  expect(unicode({})).toBe(true);
});
