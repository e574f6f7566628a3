// deploy/: every metric that the dashboard and the alert rules name is one that a sidecar serves, and the files are what
// their programs read. npm run test:packages runs them against a real Prometheus.

import { expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Glob } from "bun";
import { engineMissing, start } from "../e2e/tool.ts";
import { until } from "../faults/http-client.ts";
import { alertQueries, DEPLOY, metricsIn, panelQueries } from "./queries.ts";

setDefaultTimeout(180_000);

const missing = engineMissing();

test.skipIf(missing !== null)("deploy: the sidecar serves every metric in use", async () => {
  const tool = start(["serve", "--llama", "1", "--slots", "2", "--kv-tokens", "1024", "--port=0"]);
  try {
    let said = "";
    for await (const piece of tool.stdout.pipeThrough(new TextDecoderStream())) {
      said += piece;
      if (said.includes("\n")) break;
    }
    const [, url = ""] = /foretoken on (\S+)/.exec(said) ?? [];
    await until(async () => (await fetch(`${url}/health`)).ok, "the engine");
    const scrape = await (await fetch(`${url}/metrics`)).text();
    const served = new Set<string>();
    for (const [, name = "", type] of scrape.matchAll(/^# TYPE (\S+) (\w+)$/gm)) {
      const parts = type === "histogram" ? ["_bucket", "_sum", "_count"] : [""];
      for (const part of parts) served.add(`${name}${part}`);
    }
    const queries = [...panelQueries(), ...alertQueries()];
    expect(queries.length).toBeGreaterThan(40);
    const unknown = queries.flatMap((query) =>
      metricsIn(query)
        .filter((name) => !served.has(name))
        .map((name) => `${query.of}: ${name}`),
    );
    expect(unknown).toEqual([]);
  } finally {
    tool.kill("SIGKILL");
  }
});

test("deploy: every YAML file is YAML, and every document has its kind", () => {
  for (const file of new Glob("**/*.{yaml,yml}").scanSync(DEPLOY)) {
    const parsed = Bun.YAML.parse(readFileSync(join(DEPLOY, file), "utf8"));
    expect(parsed, file).toBeObject();
    if (!file.startsWith("kubernetes/")) continue;
    for (const document of Array.isArray(parsed) ? parsed : [parsed]) {
      expect(document, file).toMatchObject({
        apiVersion: expect.any(String),
        kind: expect.any(String),
      });
    }
  }
});
