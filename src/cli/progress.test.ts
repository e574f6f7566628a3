import { expect, test } from "bun:test";
import { stripVTControlCharacters } from "node:util";
import type { Progress } from "../core/rollout/meter.ts";
import { progressDisplay, renderProgress } from "./progress.ts";
import type { StatusOptions } from "./terminal.ts";

function progressOf(overrides: Partial<Progress> = {}): Progress {
  return {
    iteration: 1,
    isTail: false,
    elapsedS: 12.4,
    groupsDone: 9,
    groups: 16,
    requestsDone: 80,
    requests: 128,
    outputTokens: 34120,
    tokensPerS: 3411.7,
    running: 29,
    waiting: 19,
    migrations: 42,
    preemptions: 3,
    meanAcceptanceLength: 2.314,
    etaS: 75,
    etaLowS: 60,
    etaHighS: 95,
    workers: [
      { worker: 0, running: 16, waiting: 0, slots: 16, kvTokensUsed: 2908, kvTokens: 4096 },
      { worker: 1, running: 13, waiting: 0, slots: 16, kvTokensUsed: 4000, kvTokens: 4096 },
    ],
    ...overrides,
  };
}

// Tests may run on a terminal with colours.
const linesOf = (progress: Progress) =>
  renderProgress("seer", progress, 80).map(stripVTControlCharacters);

const facts = [
  "seer",
  "63%",
  "80/128 requests",
  "9/16 groups",
  "0:12",
  "ETA 1:00 - 1:35",
  "3,412 tok/s",
  "29 running",
  "19 waiting",
  "42 moved",
  "3 preempted",
  "acceptance 2.31",
  "kv 71% 98%",
];

test("renderProgress: tells everything, and on 80 columns no line wraps", () => {
  const lines = linesOf(progressOf());
  const text = lines.join("\n").replaceAll(/ +/g, " ");
  for (const fact of facts) expect(text).toContain(fact);
  for (const line of lines) expect(line.length).toBeLessThanOrEqual(80);
});

test("renderProgress: many workers take one line", () => {
  const workers = Array.from({ length: 64 }, (_, worker) => ({
    worker,
    running: 1,
    waiting: 0,
    slots: 16,
    kvTokensUsed: 100,
    kvTokens: 4096,
  }));
  const lines = linesOf(progressOf({ workers }));
  expect(lines).toHaveLength(3);
  expect(lines[2]).toMatch(/^kv 2% 2% .* \.\.\.$/);
  expect(lines[2]?.length).toBeLessThanOrEqual(80);
});

function pipe(): { text: string; write(text: string): boolean } {
  return {
    text: "",
    write(text: string): boolean {
      this.text += text;
      return true;
    },
  };
}

/** A display whose clock is that of the run. */
function displayOn(
  stream: NonNullable<StatusOptions["stream"]>,
  options: Partial<StatusOptions> = {},
) {
  let nowS = 0;
  const shared = { title: "seer", quiet: false, nowS: () => nowS };
  const display = progressDisplay({ ...shared, stream, ...options });
  return {
    finish: () => display.finish(),
    note: (text: string) => display.note(text),
    update: (overrides: Partial<Progress> = {}) => {
      const progress = progressOf(overrides);
      nowS = progress.elapsedS;
      display.onProgress(progress);
    },
  };
}

test("progressDisplay: away from a terminal it writes a line every few seconds, and one at the end", () => {
  const stream = pipe();
  const display = displayOn(stream);
  for (let tenth = 0; tenth <= 120; tenth += 1) display.update({ elapsedS: tenth / 10 });
  display.update({ elapsedS: 12.1, requestsDone: 128, groupsDone: 16 });
  display.finish();
  display.finish();
  const lines = stream.text.trimEnd().split("\n");
  expect(lines.map((line) => line.slice(0, 14))).toEqual([
    "seer 0:00, 80/",
    "seer 0:05, 80/",
    "seer 0:10, 80/",
    "seer finished:",
  ]);
  expect(lines[3]).toBe(
    "seer finished: 128/128 requests, 16/16 groups, 34,120 tokens generated in 0:12",
  );
  expect(stream.text).not.toContain("\u001B");
});

test("progressDisplay: quiet, it writes nothing at all", () => {
  const stream = pipe();
  const display = displayOn(stream, { quiet: true });
  display.update();
  display.note("stopping");
  display.finish();
  expect(stream.text).toBe("");
});
