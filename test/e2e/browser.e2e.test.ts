// The page, and a foreign page, in a real browser (headless Chromium, where there is one).

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { servedTool } from "../faults/served-tool.ts";
import { CHROMIUM, NO_CHROMIUM, Page } from "./chromium.ts";
import { engineMissing } from "./tool.ts";

setDefaultTimeout(180_000);

const isMissing = CHROMIUM === null || engineMissing() !== null;
const TOKEN = "a-token";

/** A foreign page that attacks the sidecar at `target` and writes the results. */
const foreignPage = (target: URL) => `<!doctype html><script>
  const result = [];
  const attempt = async (name, act) => {
    let told;
    try { told = await act(); } catch (error) { told = "blocked"; }
    result.push(name + ":" + told);
  };
  (async () => {
    const body = "{}", headers = { "content-type": "text/plain" };
    await attempt("simple", async () => {
      await fetch("${target.origin}/pause", { method: "POST", mode: "no-cors", headers, body });
      return "sent";
    });
    await attempt("read", async () => (await fetch("${target.origin}/v1/models")).status);
    await attempt("preflight", async () => {
      const json = { "content-type": "application/json" };
      return (await fetch("${target.origin}/pause", { method: "POST", headers: json, body })).status;
    });
    await attempt("socket", () => new Promise((resolve, reject) => {
      const socket = new WebSocket("ws://${target.host}/v1/stream");
      socket.onopen = () => resolve("open");
      socket.onerror = reject;
    }));
    await fetch("/report", { method: "POST", body: result.join(" ") });
  })();
</script>`;

describe.skipIf(isMissing)(`browser${NO_CHROMIUM}`, () => {
  const open = servedTool();
  const closed = servedTool("--api-token", TOKEN);

  test("the page follows the rollout, with a token too", async () => {
    const live = 'document.getElementById("state").textContent === "live"';
    const cases = [
      [open().url, live],
      [`${closed().url}?token=${TOKEN}`, live],
      [closed().url, 'document.body.textContent.includes("AuthenticationError")'],
    ] as const;
    for (const [url, shown] of cases) {
      const page = await Page.open(url);
      await page.until(shown);
      await page.close();
    }
  });

  test("a page of another site changes nothing and reads nothing", async () => {
    const report = Promise.withResolvers<string>();
    const site = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      fetch: async (request) => {
        if (request.method === "POST") report.resolve(await request.text());
        return new Response(foreignPage(open().http.url), {
          headers: { "content-type": "text/html" },
        });
      },
    });
    const page = await Page.open(site.url.href);
    expect(await report.promise).toBe("simple:sent read:blocked preflight:blocked socket:blocked");
    await page.close();
    await site.stop(true);
    expect(await open().http.json("/is_paused")).toMatchObject({ is_paused: false });
  });
});
