// deploy/ against a real Prometheus: promtool reads its files, and every panel's query returns data while a sidecar
// runs. Prometheus is the one on PATH, else Debian's package, unpacked in .cache.

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { attempt } from "../../scripts/python-env.ts";
import { freePort } from "../../src/tools/up/ports.ts";
import { alertQueries, DEPLOY, panelQueries, vllmQueries } from "../deploy/queries.ts";
import { ROOT, start } from "../e2e/tool.ts";
import { until } from "../faults/http-client.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";

const TOKEN = "token-of-the-test";
const KEPT = join(ROOT, ".cache", "prometheus");

/** The folder of prometheus and promtool. */
function prometheusFolder(): string {
  const found = Bun.which("promtool");
  if (found !== null) return join(found, "..");
  const folder = join(KEPT, "usr", "bin");
  if (existsSync(folder)) return folder;
  mkdirSync(KEPT, { recursive: true });
  const downloaded = attempt(["apt-get", "download", "prometheus"], KEPT);
  if (downloaded !== null) throw new Error(downloaded);
  const archive = readdirSync(KEPT).find((name) => name.endsWith(".deb")) ?? "";
  const unpacked = attempt(["dpkg", "-x", join(KEPT, archive), KEPT]);
  if (unpacked !== null) throw new Error(unpacked);
  return folder;
}

describe("deploy", () => {
  const folder = temporaryFolder("deploy");
  const children: { kill(signal: NodeJS.Signals): void }[] = [];
  let bin = "";
  let url = "";

  const answerOf = async (expr: string): Promise<unknown[]> => {
    const answer = await fetch(`${url}/api/v1/query?query=${encodeURIComponent(expr)}`);
    const { status, error, data } = (await answer.json()) as {
      status: string;
      error?: string;
      data: { result: unknown[] };
    };
    if (status !== "success") throw new Error(`${expr}: ${error}`);
    return data.result;
  };

  beforeAll(async () => {
    bin = prometheusFolder();
    const [sidecar, prometheus] = [freePort("127.0.0.1"), freePort("127.0.0.1")];
    const sizes = ["--slots", "4", "--kv-tokens", "1024", "--chunk-tokens", "32"];
    children.push(
      start(["serve", "--llama", "2", ...sizes, "--api-token", TOKEN, "--port", String(sidecar)]),
    );
    const files = join(DEPLOY, "prometheus");
    cpSync(join(files, "rules.yml"), join(folder, "rules.yml"));
    const config = readFileSync(join(files, "prometheus.yml"), "utf8");
    const token = join(folder, "token");
    writeFileSync(token, TOKEN);
    const here = config
      .replace("sidecar:8000", `127.0.0.1:${sidecar}`)
      .replace("/run/secrets/api-token", token)
      .replace("5s", "1s");
    writeFileSync(join(folder, "prometheus.yml"), here);
    url = `http://127.0.0.1:${prometheus}`;
    const options = [
      `--config.file=${folder}/prometheus.yml`,
      `--storage.tsdb.path=${folder}/data`,
      `--web.listen-address=127.0.0.1:${prometheus}`,
    ];
    children.push(
      Bun.spawn([join(bin, "prometheus"), ...options], { stdout: "ignore", stderr: "ignore" }),
    );
    const rollout = async () => {
      const groups = ["a", "b"].map((id) => ({ id, prompt: "<|user|>total 6 2 6 4<|assistant|>" }));
      const answer = await fetch(`http://127.0.0.1:${sidecar}/v1/rollouts`, {
        method: "POST",
        headers: { "content-type": "application/json", authorization: `Bearer ${TOKEN}` },
        body: JSON.stringify({ groups, n: 4, sampling_params: { max_tokens: 64, temperature: 1 } }),
      });
      return answer.ok && (await answer.text()).includes('"finished"');
    };
    const isAnswered = (act: () => Promise<boolean>) => () => act().catch(() => false);
    await until(isAnswered(rollout), "a rollout");
    const scraped = async () =>
      (await answerOf("count_over_time(foretoken_weight_epoch[1m]) >= 3")).length > 0;
    await until(isAnswered(scraped), "three scrapes");
  }, 200_000);

  afterAll(() => {
    for (const child of children) child.kill("SIGKILL");
  });

  test("deploy: promtool accepts configuration and rules", () => {
    const folderOf = join(DEPLOY, "prometheus");
    expect(
      attempt([
        join(bin, "promtool"),
        "check",
        "config",
        "--syntax-only",
        join(folderOf, "prometheus.yml"),
      ]),
    ).toBeNull();
  });

  for (const query of [...panelQueries(), ...vllmQueries()]) {
    test(`deploy: data for ${query.of}: ${query.expr}`, async () => {
      expect(await answerOf(query.expr)).not.toEqual([]);
    });
  }

  for (const query of alertQueries()) {
    test(`deploy: ${query.of} can be evaluated, and is silent`, async () => {
      expect(await answerOf(query.expr)).toEqual([]);
    });
  }
});
