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

const API_TOKEN = "a-token";

/** Calls `act` with the address of a sidecar that asks for API_TOKEN, once its engine serves. */
async function served(act: (url: string) => Promise<void>): Promise<void> {
  const engine = ["--llama", "1", "--slots", "2", "--kv-tokens", "1024"];
  const tool = start(["serve", ...engine, "--port=0", "--api-token", API_TOKEN]);
  try {
    let said = "";
    for await (const piece of tool.stdout.pipeThrough(new TextDecoderStream())) {
      said += piece;
      if (said.includes("\n")) break;
    }
    const [, url = ""] = /foretoken on (\S+)/.exec(said) ?? [];
    await until(async () => (await fetch(`${url}/health`)).ok, "the engine");
    await act(url);
  } finally {
    tool.kill("SIGKILL");
  }
}

test.skipIf(missing !== null)("deploy: the pod's annotations scrape, and open nothing else", () =>
  served(async (url) => {
    const file = join(DEPLOY, "kubernetes", "sidecar.yaml");
    const text = readFileSync(file, "utf8");
    // As its head says, with the token of this sidecar.
    const [, recipe = ""] = /^# {3}(METRICS=.*)$/m.exec(text) ?? [];
    const script = `TOKEN=${API_TOKEN}; ${recipe}; sed "s/METRICS_TOKEN/$METRICS/" "$1"`;
    const { stdout } = Bun.spawnSync(["bash", "-euc", script, "-", file]);
    const [deployment] = Bun.YAML.parse(stdout.toString()) as {
      spec: { template: { metadata: { annotations: Record<string, string> } } };
    }[];
    const { annotations } = deployment?.spec.template.metadata ?? { annotations: {} };
    const status = async (path: string, token?: string) =>
      (await fetch(`${url}${path}${token === undefined ? "" : `?token=${token}`}`)).status;
    expect(await status("/metrics")).toBe(401);
    const token = annotations["prometheus.io/param_token"];
    expect(await status("/metrics", token)).toBe(200);
    expect(await status("/v1/models", token)).toBe(401);
  }),
);

test.skipIf(missing !== null)("deploy: the sidecar serves every metric in use", () =>
  served(async (url) => {
    const scrape = await (await fetch(`${url}/metrics?token=${API_TOKEN}`)).text();
    const names = new Set<string>();
    for (const [, name = "", type] of scrape.matchAll(/^# TYPE (\S+) (\w+)$/gm)) {
      const parts = type === "histogram" ? ["_bucket", "_sum", "_count"] : [""];
      for (const part of parts) names.add(`${name}${part}`);
    }
    const queries = [...panelQueries(), ...alertQueries()];
    expect(queries.length).toBeGreaterThan(40);
    const unknown = queries.flatMap((query) =>
      metricsIn(query)
        .filter((name) => !names.has(name))
        .map((name) => `${query.of}: ${name}`),
    );
    expect(unknown).toEqual([]);
  }),
);

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
