// The checks that need no run: types, format and lint.

import { join } from "node:path";

const root = join(import.meta.dir, "..");
const checks = [
  ["tsc", "--noEmit", "-p", "."],
  // The page's scripts, in a browser's types and those of the routes that they read.
  ["tsc", "--noEmit", "-p", "scripts/page.tsconfig.json"],
  ["biome", "check", "."],
];

let failed = 0;
for (const [tool, ...args] of checks) {
  const path = join(root, "node_modules", ".bin", tool ?? "");
  const { exitCode } = Bun.spawnSync([path, ...args], {
    cwd: root,
    stdout: "inherit",
    stderr: "inherit",
  });
  if (exitCode !== 0) failed += 1;
}
process.exit(failed === 0 ? 0 : 1);
