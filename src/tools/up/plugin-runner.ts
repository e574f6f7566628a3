// Asks the plugin in a vLLM's environment which of vLLM's model runners it is to draft under: the second where vLLM
// would use it and the plugin knows its signatures; on a CPU else the first. The plugin decides (foretoken_vllm/runner_v2.py).

import { AppError } from "../../core/base/errors.ts";
import { ran } from "./install-plugin.ts";

export interface PluginRunner {
  /** 0: under none. */
  readonly runner: 0 | 1 | 2;
  /** Why; for the log. */
  readonly reason: string;
}

/** Parses the last line of the output; vLLM may log on the lines before. */
export function parsePluginRunner(output: string): PluginRunner | null {
  const [, number, reason = ""] =
    /^runner (\d): (.+)$/.exec(output.trim().split("\n").at(-1) ?? "") ?? [];
  const runner = ([0, 1, 2] as const).find((one) => String(one) === number);
  return runner === undefined ? null : { runner, reason };
}

/** @throws AppError invalid_config: the plugin does not answer. */
export async function pluginRunner(python: string): Promise<PluginRunner> {
  const { output, problem } = await ran([python, "-m", "foretoken_vllm.runner_v2", "--choose"]);
  const found = problem === null ? parsePluginRunner(output) : null;
  if (found !== null) return found;
  const answer = `the plugin does not say which runner it drafts under: ${problem ?? output}`;
  throw new AppError("invalid_config", answer);
}
