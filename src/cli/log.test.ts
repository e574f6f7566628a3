import { expect, test } from "bun:test";
import { createLog } from "./log.ts";

function lines(form: "text" | "json" | "off"): string[] {
  const written: string[] = [];
  const log = createLog(form, (line) => written.push(line));
  log("warn", "worker_down", { worker: "http://a:1", reason: 'it said "no"\n', tries: 3 });
  return written;
}

test("log, text: one line, values quoted where they need it", () => {
  expect(lines("text")).toHaveLength(1);
  expect(lines("text")[0]).toMatch(
    /^\S+Z WARN {2}worker_down worker=http:\/\/a:1 reason="it said \\"no\\"\\n" tries=3\n$/,
  );
});

test("log, json: an object a line", () => {
  expect(JSON.parse(lines("json")[0] ?? "")).toMatchObject({
    level: "warn",
    event: "worker_down",
    reason: 'it said "no"\n',
    tries: 3,
  });
});

test("log, off: nothing", () => {
  expect(lines("off")).toEqual([]);
});
