import { expect, test } from "bun:test";
import { createLog, type Log, type LogLevel } from "./log.ts";

function logged(form: "text" | "json" | "off", level: LogLevel = "info") {
  const lines: string[] = [];
  const laters: (() => void)[] = [];
  const log: Log = createLog(form, {
    level,
    write: (line) => lines.push(line),
    nowMs: () => 0,
    later: (act) => laters.push(act),
  });
  return { log, lines, pass: () => laters.splice(0).map((act) => act()) };
}

const FIELDS = { worker: "http://a:1", reason: 'it said "no"\n', tries: 3 };

test("log, text: one line, values quoted where they need it", () => {
  const { log, lines } = logged("text");
  log("warn", "worker_down", FIELDS);
  expect(lines).toEqual([
    '1970-01-01T00:00:00.000Z WARN  worker_down worker=http://a:1 reason="it said \\"no\\"\\n" tries=3\n',
  ]);
});

test("log, json: an object a line", () => {
  const { log, lines } = logged("json");
  log("warn", "worker_down", FIELDS);
  expect(JSON.parse(lines[0] ?? "")).toMatchObject({
    level: "warn",
    event: "worker_down",
    reason: 'it said "no"\n',
  });
});

test("log: a reader that splits at every line end of Unicode gets one line", () => {
  for (const form of ["text", "json"] as const) {
    const { log, lines } = logged(form);
    log("warn", "worker_down", { reason: "\u0085\u2028\u2029" });
    expect(lines).toEqual([expect.stringContaining('"\\u0085\\u2028\\u2029"')]);
  }
});

test("log: lines below the level are left out", () => {
  const counts = (["debug", "info", "warn", "error"] as const).map((level) => {
    const { log, lines } = logged("text", level);
    for (const of of ["debug", "info", "warn", "error"] as const) log(of, "event");
    return lines.length;
  });
  expect(counts).toEqual([4, 3, 2, 1]);
});

test("log: of lines that are alike there are fifty in a while, and then how many there were", () => {
  const { log, lines, pass } = logged("text");
  for (let i = 0; i < 16_000; i += 1) log("info", "answered", { status: 429, id: String(i) });
  log("info", "answered", { status: 400, id: "x" });
  for (const worker of ["a", "b", "c"]) log("warn", "worker", { worker, state: "down" });
  expect(lines.length).toBe(50 + 1 + 3);
  pass();
  expect(lines.at(-1)).toMatch(/INFO {2}suppressed like="answered 429" lines=15950\n$/);
  log("info", "answered", { status: 429, id: "later" });
  expect(lines.at(-1)).toContain("later");
});

test("log: kinds beyond all bounds are one kind", () => {
  const { log, lines } = logged("text");
  for (let i = 0; i < 10_000; i += 1) log("warn", "worker", { worker: `w${i}` });
  expect(lines.length).toBeLessThan(400);
});
