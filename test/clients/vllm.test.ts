// All drivers against two real vLLM servers behind the sidecar.

import { rmSync } from "node:fs";
import { Fleet, scaledModel, vllmMissing } from "../vllm/fleet.ts";
import {
  LIGHT_DRIVERS,
  type Served,
  SOURCE_DRIVERS,
  TORCH_DRIVERS,
  testDrivers,
} from "./clients.ts";

async function start(): Promise<Served> {
  const fleet = await Fleet.up(["--chunk-tokens", "32", "--max-model-len", "2100"]);
  const weights = scaledModel(0.9);
  const stop = async () => {
    await fleet.stop();
    rmSync(weights, { recursive: true, force: true });
  };
  return { url: fleet.url, engine: "vllm", weights, stop };
}

/** vLLM on CPU does not sleep. */
const WITHOUT_SLEEP: Readonly<Record<string, number>> = { skyrl: 8 };

const drivers = [...LIGHT_DRIVERS, ...TORCH_DRIVERS, ...SOURCE_DRIVERS].map((driver) => ({
  ...driver,
  steps: WITHOUT_SLEEP[driver.name] ?? driver.steps,
}));
testDrivers(drivers, { missing: vllmMissing(), start });
