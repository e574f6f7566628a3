import { expect, test } from "bun:test";
import { Screen } from "../../test/reference/screen.ts";
import type { Progress } from "../core/rollout/report.ts";
import { ProgressDisplay, renderProgress } from "./progress.ts";
import type { StatusOptions, Terminal } from "./terminal.ts";

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

function terminalOf(overrides: Partial<Terminal> = {}): Terminal {
  return { live: true, columns: 100, rows: 24, color: false, unicode: true, ...overrides };
}

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
  "71% kv 16/16 slots",
  "98% kv 13/16 slots",
];

test("renderProgress: tells everything, and on 80 columns no line wraps", () => {
  const lines = renderProgress("seer", progressOf(), terminalOf({ columns: 80 }));
  const text = lines.join("\n").replaceAll(/ +/g, " ");
  for (const fact of facts) expect(text).toContain(fact);
  for (const line of lines) expect(line.length).toBeLessThanOrEqual(80);
});

test("renderProgress: many workers take few lines, and the rest is counted", () => {
  const workers = Array.from({ length: 64 }, (_, worker) => ({
    worker,
    running: 1,
    waiting: 0,
    slots: 16,
    kvTokensUsed: 100,
    kvTokens: 4096,
  }));
  const lines = renderProgress("seer", progressOf({ workers }), terminalOf({ columns: 80 }));
  expect(lines.length).toBeLessThan(10);
  expect(lines.at(-1)).toMatch(/^and 5\d workers more$/);
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
  const shared = { title: "seer", quiet: false, env: {}, nowS: () => nowS };
  const display = new ProgressDisplay({ ...shared, stream, ...options });
  return {
    finish: () => display.finish(),
    note: (text: string) => display.note(text),
    update: (overrides: Partial<Progress> = {}) => {
      const progress = progressOf(overrides);
      nowS = progress.elapsedS;
      display.update(progress);
    },
  };
}

test("ProgressDisplay: away from a terminal it writes a line every few seconds, and one at the end", () => {
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
  expect(lines[3]).toBe("seer finished: 128/128 requests, 16/16 groups, 34,120 tokens in 0:12");
  expect(stream.text).not.toContain("\u001B");
});

test("ProgressDisplay: quiet, it writes nothing at all", () => {
  for (const stream of [pipe(), new Screen(80)]) {
    const display = displayOn(stream, { quiet: true });
    display.update();
    display.note("stopping");
    display.finish();
    expect("raw" in stream ? stream.raw : stream.text).toBe("");
  }
});

test("ProgressDisplay: on a terminal it draws over its own lines and leaves one", () => {
  const screen = new Screen(80);
  screen.write("before\n");
  const display = displayOn(screen);
  for (let step = 0; step <= 80; step += 1) {
    const workers = progressOf().workers.slice(0, 1 + (step % 2));
    display.update({ elapsedS: step / 5, requestsDone: step, workers });
    const lines = screen.lines();
    expect(lines[0]).toBe("before");
    expect(lines).toHaveLength(4);
    expect(lines[1]).toContain(`${step}/128 requests`);
  }
  display.finish();
  screen.write("after\n");
  expect(screen.lines()).toEqual([
    "before",
    "seer stopped: 80/128 requests, 9/16 groups, 34,120 tokens in 0:16",
    "after",
  ]);
});
