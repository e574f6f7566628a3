// Frame times of the page in headless Chromium, by the number of requests: the time between two frames, and what one
// message costs the page's thread. `bun bench/macro/page.ts [--seconds 20] [--out FILE]` prints JSON; 64 requests are the
// baseline of the same run.

import { parseArgs } from "node:util";
import { assert } from "../../src/core/base/assert.ts";
import { CHROMIUM, Page } from "../../test/e2e/chromium.ts";
import { conditions, SEED } from "../harness.ts";
import { PageFeed } from "./page-feed.ts";

export interface FrameTimes {
  readonly requests: number;
  readonly frames: number;
  /** Between frames, ms; 16.7 at 60 a second. */
  readonly frame_ms: Quantiles;
  /** Share of the frames that came a frame late or more. */
  readonly late_share: number;
  /** A message and the drawing that follows, ms. */
  readonly message_ms: Quantiles;
  /** CPU time of the page's thread for each drawing, ms: other load on the machine is not in it. */
  readonly thread_ms: number;
}

interface Quantiles {
  readonly p50: number;
  readonly p95: number;
  readonly p99: number;
  readonly max: number;
}

const LATE_MS = 33;

function quantiles(values: readonly number[]): Quantiles {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (share: number) => {
    const value = sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
    return Math.round(value * 10) / 10;
  };
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1) };
}

/** In the page: frames for a while, with the time that messages and drawings take. */
const watch = (seconds: number) => `new Promise((resolve) => {
  const [frames, messages] = [[], []];
  const [plainTake, plainDraw] = [take, draw];
  let taken = 0;
  take = (frame) => { const start = performance.now(); plainTake(frame); taken += performance.now() - start; };
  draw = () => { const start = performance.now(); plainDraw(); messages.push(taken + performance.now() - start); taken = 0; };
  const end = performance.now() + ${seconds * 1000};
  let last = null;
  const next = (now) => {
    if (last !== null) frames.push(now - last);
    last = now;
    if (now < end) requestAnimationFrame(next);
    else resolve({ frames, messages });
  };
  requestAnimationFrame(next);
})`;

async function threadMs(page: Page): Promise<number> {
  const { metrics } = (await page.call("Performance.getMetrics")) as {
    metrics: { name: string; value: number }[];
  };
  return 1000 * (metrics.find(({ name }) => name === "TaskDuration")?.value ?? Number.NaN);
}

/** `groups` of 8 responses, of which all begin in the middle of an iteration. */
export async function measure(groups: number, seconds: number): Promise<FrameTimes> {
  const feed = new PageFeed({ groups, size: 8, workers: 16, seed: SEED });
  const page = await Page.open(feed.url.href, { width: 1240, height: 1400 });
  try {
    await page.until(`responses.size === ${groups * 8} && samples.length > 1`);
    await page.call("Performance.enable", { timeDomain: "threadTicks" });
    const before = await threadMs(page);
    const { frames, messages } = await page.evaluate<{ frames: number[]; messages: number[] }>(
      watch(seconds),
    );
    assert(frames.length > 0 && messages.length > 0, "frames were drawn");
    const threadTotal = (await threadMs(page)) - before;
    const late = frames.filter((ms) => ms > LATE_MS).length / frames.length;
    return {
      requests: groups * 8,
      frames: frames.length,
      frame_ms: quantiles(frames),
      late_share: Math.round(late * 1000) / 1000,
      message_ms: quantiles(messages),
      thread_ms: Math.round((threadTotal / messages.length) * 10) / 10,
    };
  } finally {
    await page.close();
    await feed.stop();
  }
}

if (import.meta.main) {
  assert(CHROMIUM !== null, "Chromium is installed");
  const { values } = parseArgs({
    options: { seconds: { type: "string", default: "20" }, out: { type: "string" } },
  });
  const seconds = Number(values.seconds);
  const baseline = await measure(8, seconds);
  const large = await measure(2048, seconds);
  const text = `${JSON.stringify({ conditions: conditions(), baseline, large }, null, 2)}\n`;
  if (values.out !== undefined) await Bun.write(values.out, text);
  process.stdout.write(text);
}
