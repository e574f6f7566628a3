// The page in a real browser: what it shows of a rollout, by mouse and by keyboard, on a phone, and with an iteration
// of 16,384 requests.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { until } from "../faults/http-client.ts";
import { ToolProcess } from "../faults/process.ts";
import { CHROMIUM, NO_CHROMIUM, Page } from "./chromium.ts";
import { engineMissing } from "./tool.ts";

setDefaultTimeout(180_000);

const isMissing = CHROMIUM === null || engineMissing() !== null;
const LIVE = 'document.getElementById("state").textContent === "live" && live !== null';

const post = ({ http }: ToolProcess, path: string, body: object = {}) => http.post(path, body);

/** Generates until each of the first `count` requests has tokens; nothing runs afterwards. */
async function pulse({ http }: ToolProcess, count: number): Promise<void> {
  const hasTokens = async (request: number) => {
    const { status, text } = await http.get(`/foretoken/responses/${request}`);
    return status === 200 && (JSON.parse(text) as { length: number }).length > 0;
  };
  await http.post("/resume", {});
  for (let request = 0; request < count; request += 1) {
    await until(() => hasTokens(request), `tokens of request ${request}`);
  }
  await http.post("/pause?mode=keep", {});
}

function startRollout(victim: ToolProcess, groups: number): Promise<Response> {
  const prompts = Array.from({ length: groups }, (_, i) => ({
    id: `g${i}`,
    prompt: `<|user|>countdown 3 6 ${i} 3 to 18${i}<|assistant|>`,
  }));
  // So long that nothing ends by itself between two calls, however fast the engine is.
  const sampling = { max_tokens: 3_000, temperature: 1, ignore_eos: true };
  const body = { groups: prompts, n: 4, sampling_params: sampling, detached: true };
  return post(victim, "/v1/rollouts", body);
}

const text = (id: string) => `document.getElementById("${id}").textContent`;

/** The page's counts at one moment, from every place that shows them: requests and groups, all and those that have ended. */
const COUNTED = String.raw`(() => {
  const text = (id) => document.getElementById(id).textContent;
  const numbers = (text) => (text.match(/\d[\d,]*/g) ?? []).map((one) => Number(one.replaceAll(",", "")));
  const figures = [...document.querySelectorAll("#figures > div")].map(({ children: [name, value] }) => [
    name.textContent.replaceAll(" ", "_"),
    numbers(value.textContent)[0],
  ]);
  const counted = Object.fromEntries(figures);
  const [line = ""] = /waits for [\d,]+ of [\d,]+/.exec(text("lines")) ?? [];
  const [left, of] = line === "" ? [null, null] : numbers(line);
  const [groups, unfinished] = numbers(text("map-name"));
  return {
    requests: [counted.requests, ...numbers(text("total")), of ?? counted.requests],
    done: [counted.finished_requests, ...numbers(text("done")), left === null ? counted.finished_requests : of - left],
    groups: [counted.groups, groups],
    groupsDone: [counted.finished_groups, groups - unfinished],
  };
})()`;
/** Requests of the long rollout, and of the short ones beside it. */
const [LONG, SHORT] = [24, 18];

describe.skipIf(isMissing)(`page${NO_CHROMIUM}`, () => {
  let victim: ToolProcess;
  let page: Page;

  beforeAll(async () => {
    victim = await ToolProcess.serving("--chunk-tokens", "16", "--slots", "24");
    page = await Page.open(victim.http.url.href, { width: 360, height: 800 });
    await page.until(LIVE);
  });

  afterAll(async () => {
    await page?.close();
    await victim?.kill();
  });

  test("shows a rollout, a pause, a response by keyboard, and all of it again after a reload", async () => {
    await post(victim, "/pause?mode=keep");
    void startRollout(victim, 6)
      .then((answer) => answer.text())
      .catch(() => "the server ends before the rollout");
    await page.until("responses.size === 24");
    await pulse(victim, 24);
    // Nothing is wider than a phone, and nothing is loaded from elsewhere.
    expect(await page.evaluate<number>("document.documentElement.scrollWidth")).toBeLessThanOrEqual(
      360,
    );
    const loaded =
      "performance.getEntriesByType('resource').every(({ name }) => name.startsWith(location.origin))";
    expect(await page.evaluate<boolean>(loaded)).toBe(true);
    await page.until("live?.longest.length > 0");
    expect(await page.evaluate('document.getElementById("back").checkVisibility()')).toBe(false);
    await page.click("map", { x: 12, y: 16 });
    await page.until(`${text("facts")}.startsWith("request 0 ")`);
    const { texts } = (await victim.http.json("/foretoken/responses/0")) as { texts: string[] };
    await page.until(`${text("text")} === ${JSON.stringify(texts.join(""))}`);
    await page.evaluate('document.getElementById("map").focus()');
    for (const key of ["ArrowRight", "ArrowDown", "Enter"]) await page.press(key);
    await page.until('document.querySelector("#picture svg .longest")');
    const save = 'document.getElementById("save").href';
    const saved = await fetch(await page.evaluate<string>(save));
    expect(await saved.text()).toContain('<script type="application/json" id="data">');
    await page.until('document.getElementById("who").textContent.startsWith("Response")');
    await page.until('document.getElementById("chunks").children.length > 0');
    await page.until('document.getElementById("tokens").textContent.length > 0');
    await page.until('!document.getElementById("banner").hidden');
    const banner = await page.evaluate<string>('document.getElementById("banner").textContent');
    expect(banner).toContain("POST /resume");
    await page.call("Page.reload");
    await page.until('document.getElementById("state").textContent === "paused"');
    await page.until('document.querySelector("#picture svg .longest")');
    expect(await page.evaluate<number>("responses.size")).toBe(24);
    await post(victim, "/resume");
    await page.until('document.getElementById("banner").hidden');
  });

  test("shows one count in all its places, whenever one looks, and nothing that is not defined", async () => {
    const sampling = { max_tokens: 40, temperature: 1, ignore_eos: true };
    const prompt = "<|user|>countdown 3 6 2 to 18<|assistant|>";
    const short = Array.from({ length: 6 }, (_, i) =>
      post(victim, "/v1/completions", { prompt: `${prompt}${i}`, n: 3, ...sampling }),
    );
    let isOver = false;
    const all = Promise.all(short).then(() => {
      isOver = true;
    });
    let seen = 0;
    const look = async () => {
      const shown = await page.evaluate<Record<string, number[]>>(COUNTED);
      for (const [what, counts] of Object.entries(shown)) {
        expect({ what, different: [...new Set(counts)] }).toEqual({
          what,
          different: [counts[0] ?? -1],
        });
      }
      seen = Math.max(seen, shown.requests?.[0] ?? 0);
    };
    while (!isOver) await look();
    await all;
    await until(async () => {
      await look();
      return seen === LONG + SHORT;
    }, "all requests on the page");
    const body = await page.evaluate<string>("document.body.innerText");
    expect(body).not.toMatch(/undefined|NaN|null|\[object/);
  });

  test("shows what an iteration that is over waited for, with the responses of its complete groups", async () => {
    const known = await fetch(new URL("/v1/rollouts", victim.url));
    const { rollouts } = (await known.json()) as { rollouts: { id: string }[] };
    for (const { id } of rollouts) {
      await fetch(new URL(`/v1/rollouts/${id}`, victim.url), { method: "DELETE" });
    }
    await page.until("live.waited_for.length > 0");
    // It has ended with its rollout, its groups are complete: a page that is opened later knows them too.
    await page.call("Page.reload");
    await page.until('live?.iterations.length === 1 && document.querySelector("#numbers a")');
    expect(await page.evaluate<number>("responses.size")).toBe(LONG + SHORT);
    await page.evaluate('document.querySelector("#numbers a").click()');
    await page.until(`EARLIER === "1" && live !== null && responses.size === ${LONG + SHORT}`);
    expect(await page.evaluate<string>(text("waits"))).toBe("The iteration waited for");
    const named = 'document.querySelector("#picture svg .name")?.textContent === "iteration 1"';
    await page.until(named);
    await page.evaluate('document.querySelector("#stragglers button").click()');
    await page.until(`${text("who")}.startsWith("Response")`);
    // Of those that were given up, not every one had begun.
    await page.evaluate("follow([...responses.values()].find(({ length }) => length > 0).id)");
    await page.until(`${text("tokens")}.length > 0 && ${text("text")}.length > 0`);
    expect(await page.evaluate<string>(text("chunk-list"))).toContain("on embedded engine 0");
    expect(await page.evaluate<number>("document.documentElement.scrollWidth")).toBeLessThanOrEqual(
      360,
    );
    await page.evaluate('document.getElementById("back").click()');
    await page.until(`EARLIER === null && ${LIVE}`);
  });
});
