// The page in a real browser: what it shows of a rollout, by mouse and by keyboard, on a phone, and with an iteration
// of 16,384 requests.

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { measure } from "../../bench/macro/page.ts";
import { Victim } from "../adversary/edge-bed.ts";
import { CHROMIUM, Page } from "./chromium.ts";
import { engineMissing } from "./tool.ts";

const isMissing = CHROMIUM === null || engineMissing() !== null;
const SECONDS_MAX = 90;
const LIVE = 'document.getElementById("state").textContent === "live" && progress !== null';

async function post(victim: Victim, path: string, body: object = {}): Promise<Response> {
  const headers = { "content-type": "application/json" };
  return await fetch(new URL(path, victim.url), {
    method: "POST",
    headers,
    body: JSON.stringify(body),
  });
}

function startRollout(victim: Victim, groups: number): Promise<Response> {
  const prompts = Array.from({ length: groups }, (_, i) => ({
    id: `g${i}`,
    prompt: `<|user|>countdown 3 6 ${i} 3 to 18${i}<|assistant|>`,
  }));
  const sampling = { max_tokens: 400, temperature: 1, ignore_eos: true };
  return post(victim, "/v1/rollouts", { groups: prompts, n: 4, sampling, detached: true });
}

describe.skipIf(isMissing)("page", () => {
  let victim: Victim;
  let page: Page;

  beforeAll(async () => {
    victim = await Victim.start("--chunk-tokens", "16");
    page = await Page.open(victim.url.href, { width: 360, height: 800 });
    await page.until(LIVE);
  }, SECONDS_MAX * 1000);

  afterAll(async () => {
    await page?.close();
    await victim?.stop();
  });

  test(
    "shows a rollout, a pause, a response by keyboard, and all of it again after a reload",
    async () => {
      void startRollout(victim, 6)
        .then((answer) => answer.text())
        .catch(() => "the server ends before the rollout");
      await page.until("progress.running > 0 && responses.size === 24");
      // Nothing is wider than a phone, and nothing is loaded from elsewhere.
      expect(
        await page.evaluate<number>("document.documentElement.scrollWidth"),
      ).toBeLessThanOrEqual(360);
      const loaded =
        "performance.getEntriesByType('resource').every(({ name }) => name.startsWith(location.origin))";
      expect(await page.evaluate<boolean>(loaded)).toBe(true);
      await page.until("samples.length >= 3 && live.stragglers.length > 0");
      await page.evaluate('document.getElementById("map").focus()');
      for (const key of ["ArrowRight", "ArrowDown", "Enter"]) await page.press(key);
      await page.evaluate('document.querySelector("#strips .plot").focus()');
      await page.press("ArrowLeft");
      const values = 'document.querySelector("#strips .plot").getAttribute("aria-description")';
      expect(await page.evaluate<string>(values)).toMatch(/KV \d+ %, running \d+ of \d+/);
      await page.until('document.getElementById("who").textContent.startsWith("Response")');
      await page.until('document.getElementById("chunks").children.length > 0');
      await page.until('document.getElementById("tokens").textContent.length > 0');
      await post(victim, "/pause?mode=keep");
      await page.until('!document.getElementById("banner").hidden');
      const banner = await page.evaluate<string>('document.getElementById("banner").textContent');
      expect(banner).toContain("POST /resume");
      const before = await page.evaluate<number>("samples.length");
      await page.call("Page.reload");
      await page.until(LIVE);
      await page.until(`samples.length >= ${before}`);
      expect(await page.evaluate<number>("responses.size")).toBe(24);
      await post(victim, "/resume");
      await page.until('document.getElementById("banner").hidden');
    },
    SECONDS_MAX * 1000,
  );
});

test.skipIf(CHROMIUM === null)(
  "16,384 requests: a message and the frame it leads to take less than a tenth of a second",
  async () => {
    const figures = await measure(2048, 3);
    expect(figures.requests).toBe(16_384);
    // CPU time: on a busy machine the other work is in the times.
    expect(figures.thread_ms).toBeLessThan(100);
    console.log(`page: ${JSON.stringify(figures)}`);
  },
  SECONDS_MAX * 1000,
);
