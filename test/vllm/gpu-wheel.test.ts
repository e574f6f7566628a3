// vLLM 0.33, of which there is no build for CPUs: that its sources are what the plugin relies on. They are read out of
// the GPU's wheel on pip's index.

import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { ROOT, vllmMissing } from "./fleet.ts";

const VERSION = "0.33.0";
/** pip itself tries again some times; a download that hangs ends here. */
const READ_MS_MAX = 120_000;
setDefaultTimeout(2 * READ_MS_MAX);

test.skipIf(vllmMissing() !== null)(`vLLM ${VERSION}: the GPU wheel's sources are known`, () => {
  const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
  const read = Bun.spawnSync(
    [python, join(import.meta.dir, "python", "wheel_sources.py"), VERSION],
    {
      env: { ...process.env, PYTHONPATH: join(ROOT, "native", "foretoken_vllm", "src") },
      timeout: READ_MS_MAX,
    },
  );
  const said = `${read.stdout}${read.stderr}`.trim();
  if (read.exitedDueToTimeout)
    throw new Error(`no answer from pip's index in ${READ_MS_MAX / 1000} s`);
  expect(said).toBe(`vLLM ${VERSION}: all is known`);
});
