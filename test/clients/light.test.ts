// Trainers' own client classes, unmodified, against `foretoken serve --llama 2`: groups, second turns, weight updates,
// aborts. Their packages need no torch: `npm run clients:install`.

import { afterAll, beforeAll, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { engineMissing, ROOT, start } from "../e2e/tool.ts";
import { scaledModel } from "../vllm/other-weights.ts";
import { drive, LIGHT, type Served } from "./clients.ts";

const missing = LIGHT.missing ?? engineMissing();
const testIf = missing === null ? test : test.skip;
const because = missing === null ? "" : ` (skipped: ${missing})`;

/** Steps of each driver. */
const DRIVERS = {
  renderers: 3,
  verifiers: 4,
  agentlightning: 4,
  verl_server: 2,
  skyrl: 9,
} as const;
const TEST_MS_MAX = 300_000;

let server: ReturnType<typeof start>;
let served: Served;

beforeAll(async () => {
  if (missing !== null) return;
  const model = join(ROOT, "model", "foretoken-3m-f16.gguf");
  const options = ["--llama", "2", "--chunk-tokens", "32", "--model", model, "--port", "0"];
  server = start(["serve", ...options]);
  served = { url: await listening(server.stdout), engine: "llama", weights: scaledModel(0.9) };
});

afterAll(async () => {
  if (missing !== null) return;
  server.kill("SIGTERM");
  await server.exited;
  rmSync(served.weights, { recursive: true, force: true });
});

async function listening(stdout: ReadableStream<Uint8Array>): Promise<string> {
  let text = "";
  for await (const piece of stdout) {
    text += new TextDecoder().decode(piece);
    const url = /foretoken on (http:\S+)/.exec(text)?.[1];
    if (url !== undefined) return url;
  }
  throw new Error(`the sidecar did not start: ${text}`);
}

for (const [name, steps] of Object.entries(DRIVERS)) {
  testIf(
    `${name}: its own classes generate, take turns, abort and update weights${because}`,
    async () => {
      expect(await drive(name, LIGHT, served)).toBe(steps);
    },
    TEST_MS_MAX,
  );
}
