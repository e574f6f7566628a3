// Compiles the client of /v1/stream (`foretoken/stream`) to build/stream: JavaScript and types that Node programs import, since
// Node reads no TypeScript below node_modules.

import { join } from "node:path";

const root = join(import.meta.dir, "..");
const command = [
  join(root, "node_modules", ".bin", "tsc"),
  "--ignoreConfig",
  "--outDir build/stream --rootDir src/stream-client --declaration --strict --skipLibCheck",
  "--target es2022 --module nodenext --rewriteRelativeImportExtensions --types node",
  "src/stream-client/follow-tokens.ts",
].flatMap((part) => part.split(" "));
const { exitCode, stdout } = Bun.spawnSync(command, { cwd: root, stderr: "inherit" });
process.stdout.write(stdout);
process.exit(exitCode);
