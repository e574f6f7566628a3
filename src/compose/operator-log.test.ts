// The answers that a server logs, and their levels.

import { expect, test } from "bun:test";
import { createLog } from "./log.ts";
import { operatorLog } from "./operator-log.ts";

function levelOf(path: string, status: number): string | undefined {
  const lines: string[] = [];
  const log = createLog("json", { level: "debug", write: (line) => lines.push(line) });
  const answer = { status, ms: 1, id: "a", method: "GET", path, asked: "", reason: null };
  operatorLog(log, () => {}).answered(answer);
  return JSON.parse(lines[0] ?? "{}").level;
}

test("answered: a server that is not ready does not fill its log with the answers to its probes", () => {
  expect(levelOf("/health", 503)).toBe("debug");
  expect(levelOf("/ping", 503)).toBe("debug");
  expect(levelOf("/v1/completions", 503)).toBe("warn");
  expect(levelOf("/v1/completions", 400)).toBe("info");
  expect(levelOf("/v1/completions", 200)).toBe("debug");
});
