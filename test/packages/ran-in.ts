// Commands as a user of a package runs them.

import { expect } from "bun:test";

/** The whole demo takes minutes. */
const SMALL = ["--limit", "2", "--group-size", "2", "--max-tokens", "64"];
export const SMALL_DEMO = ["foretoken", "rollout", "--demo", ...SMALL];
export const GOOD = expect.objectContaining({ status: 0 });

export function ranIn(cwd: string, command: readonly string[], env: NodeJS.ProcessEnv) {
  const { exitCode, stdout, stderr } = Bun.spawnSync([...command], { cwd, env });
  return { status: exitCode, said: `${stdout}${stderr}` };
}
