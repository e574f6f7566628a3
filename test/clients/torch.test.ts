// As light.test.ts, for trainers whose classes need torch: `npm run clients:install -- --torch`.

import { afterAll, beforeAll, expect, test } from "bun:test";
import { engineMissing } from "../e2e/tool.ts";
import { drive, type EmbeddedServer, startEmbedded, TORCH, TORCH_DRIVERS } from "./clients.ts";

const missing = TORCH.missing ?? engineMissing();
const testIf = missing === null ? test : test.skip;
const because = missing === null ? "" : ` (skipped: ${missing})`;
const TEST_MS_MAX = 300_000;

let served: EmbeddedServer;
beforeAll(async () => {
  if (missing === null) served = await startEmbedded();
}, TEST_MS_MAX);
afterAll(async () => {
  if (missing === null) await served.stop();
});

for (const [name, steps] of Object.entries(TORCH_DRIVERS)) {
  testIf(
    `${name}: its own classes generate, take turns, abort and update weights${because}`,
    async () => {
      expect(await drive(name, TORCH, served)).toBe(steps);
    },
    TEST_MS_MAX,
  );
}
