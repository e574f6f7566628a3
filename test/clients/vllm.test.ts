// The drivers of both environments against two real vLLM servers behind the sidecar.

import { afterAll, beforeAll, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { Fleet, vllmMissing } from "../vllm/fleet.ts";
import { scaledModel } from "../vllm/other-weights.ts";
import { drive, LIGHT, LIGHT_DRIVERS, type Served, TORCH, TORCH_DRIVERS } from "./clients.ts";

const TEST_MS_MAX = 600_000;
const missing = vllmMissing();

let fleet: Fleet;
let served: Served;
beforeAll(async () => {
  if (missing !== null) return;
  fleet = await Fleet.up(["--chunk-tokens", "32", "--max-model-len", "2100"]);
  served = { url: fleet.url, engine: "vllm", weights: scaledModel(0.9) };
}, TEST_MS_MAX);
afterAll(async () => {
  if (missing !== null) return;
  await fleet.stop();
  rmSync(served.weights, { recursive: true, force: true });
}, TEST_MS_MAX);

/** vLLM on CPU does not sleep. */
const STEPS: Readonly<Record<string, number>> = { ...LIGHT_DRIVERS, ...TORCH_DRIVERS, skyrl: 8 };

for (const [name, steps] of Object.entries(STEPS)) {
  const environment = name in TORCH_DRIVERS ? TORCH : LIGHT;
  const reason = missing ?? environment.missing;
  const testIf = reason === null ? test : test.skip;
  testIf(
    `${name}: its own classes on two vLLM servers${reason === null ? "" : ` (skipped: ${reason})`}`,
    async () => {
      expect(await drive(name, environment, served)).toBe(steps);
    },
    TEST_MS_MAX,
  );
}
