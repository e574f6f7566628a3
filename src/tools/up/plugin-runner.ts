// Asks the plugin in a vLLM's environment which of vLLM's model runners it is to draft under: the second where vLLM
// would use it and the plugin knows its signatures, else the first. The plugin decides (foretoken_vllm/runner_v2.py).

import { AppError } from "../../core/base/errors.ts";

export interface PluginRunner {
  readonly runner: 1 | 2;
  /** Why; for the log. */
  readonly reason: string;
}

/** Parses the last line of the output; vLLM may log on the lines before. */
export function parsePluginRunner(output: string): PluginRunner | null {
  const [, number, reason = ""] =
    /^runner ([12]): (.+)$/.exec(output.trim().split("\n").at(-1) ?? "") ?? [];
  return number === undefined ? null : { runner: number === "2" ? 2 : 1, reason };
}

/** @throws AppError invalid_config: the plugin does not answer. */
export async function pluginRunner(
  python: string,
  env: Readonly<Record<string, string | undefined>>,
): Promise<PluginRunner> {
  const child = Bun.spawn([python, "-m", "foretoken_vllm.runner_v2", "--choose"], {
    env: { ...env },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [output, stderr] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  const found = (await child.exited) === 0 ? parsePluginRunner(output) : null;
  if (found !== null) return found;
  const said = (stderr.trim() || output.trim()).slice(-800);
  throw new AppError(
    "invalid_config",
    `the plugin does not say which runner it drafts under: ${said}`,
  );
}
