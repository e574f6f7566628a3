// Makes the priced model: the bundled model, widened and deepened so that a decode step costs what a real model's step
// costs, with the same output. As Hugging Face files for vLLM, by the plugin's widen.py under the Python of vLLM's
// environment, in the project's ignored cache; for embedded engines `foretoken rollout --model priced` makes one in memory
// (src/cli/priced-model.ts).
//
//   npm run model:priced -- [--hidden 1024] [--layers 4] [--out .cache/model-priced]

import { rmSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { findVllm } from "../src/tools/up/find-vllm.ts";

const root = join(import.meta.dir, "..");

export interface PricedOptions {
  /** 1, 4, 16 or 64 times the bundled model's. */
  readonly hidden: number;
  /** At least as many as the bundled model has. */
  readonly layers: number;
  /** An output folder, recreated: `hf/` in it. */
  readonly out: string;
}

/** Returns the model's folder. @throws Error naming the option and its bound; AppError: there is no vLLM. */
export function writePricedModel({ hidden, layers, out }: PricedOptions): string {
  const folder = join(out, "hf");
  const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, root);
  rmSync(out, { recursive: true, force: true });
  const sizes = ["--hidden", String(hidden), "--layers", String(layers)];
  const command = [python, "-m", "foretoken_vllm.widen", join(root, "model", "hf"), folder];
  const { exitCode, stderr } = Bun.spawnSync([...command, ...sizes], {
    env: { ...process.env, PYTHONPATH: join(root, "native", "foretoken_vllm", "src") },
    stderr: "pipe",
  });
  if (exitCode !== 0) throw new Error(stderr.toString().trim().split("\n").at(-1));
  return folder;
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      hidden: { type: "string", default: "1024" },
      layers: { type: "string", default: "4" },
      out: { type: "string", default: join(root, ".cache", "model-priced") },
    },
  });
  try {
    const { hidden, layers, out } = values;
    console.log(writePricedModel({ hidden: Number(hidden), layers: Number(layers), out }));
  } catch (error) {
    console.error(`model:priced: ${error instanceof Error ? error.message : String(error)}`);
    process.exit(2);
  }
}
