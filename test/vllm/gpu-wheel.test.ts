// vLLM 0.33, of which there is no build for CPUs: that its sources are what the plugin relies on. They are read out of
// the GPU's wheel on pip's index.

import { expect, test } from "bun:test";
import { join } from "node:path";
import { ROOT, scripted, vllmMissing } from "./fleet.ts";

const VERSION = "0.33.0";

const missing = vllmMissing();
test.skipIf(missing !== null)(
  `vLLM ${VERSION}: the GPU wheel's sources are known`,
  () => {
    const env = { PYTHONPATH: join(ROOT, "native", "foretoken_vllm", "src") };
    const said = scripted(["wheel_sources.py", VERSION], env);
    expect(said).toBe(`vLLM ${VERSION}: all is known`);
  },
  200_000,
);
