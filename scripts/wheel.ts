// `npm run wheel`: builds out/wheel/foretoken-VERSION-py3-none-PLATFORM.whl, one for each architecture or for those that
// are named: the compiled program with its files, the Python package and the vLLM plugin. Publishes nothing. Needs
// Python with pip; the runtime and libllama of the other architecture come from their npm packages.

import { mkdirSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { type Arch, compile } from "./compile.ts";

const root = join(import.meta.dir, "..");
const OUT = join(root, "out", "wheel");

/** libllama needs glibc 2.34 and libstdc++ of gcc 11; the program itself glibc 2.17. */
const PLATFORMS: Record<Arch, string> = {
  x64: "manylinux_2_34_x86_64",
  arm64: "manylinux_2_34_aarch64",
};

/** Returns the wheel's path. */
export function buildWheel(arch: Arch): string {
  const program = join(root, "build", `program-${arch}`);
  compile(arch, program);
  mkdirSync(OUT, { recursive: true });
  const command = ["python3", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", OUT];
  const { exitCode } = Bun.spawnSync([...command, join(root, "python")], {
    env: {
      ...process.env,
      FORETOKEN_PROGRAM_DIR: program,
      FORETOKEN_WHEEL_PLATFORM: PLATFORMS[arch],
    },
    stdout: "inherit",
    stderr: "inherit",
  });
  if (exitCode !== 0) throw new Error(`pip wheel ended with status ${exitCode}`);
  const name = readdirSync(OUT).find((file) => file.endsWith(`-${PLATFORMS[arch]}.whl`));
  if (name === undefined) throw new Error(`pip wrote no wheel for ${PLATFORMS[arch]}`);
  return join(OUT, name);
}

function archesOf(names: readonly string[]): Arch[] {
  for (const name of names) {
    if (name !== "x64" && name !== "arm64") throw new Error(`no wheel for ${name}: x64 or arm64`);
  }
  return names.length === 0 ? ["x64", "arm64"] : (names as Arch[]);
}

if (import.meta.main) {
  for (const arch of archesOf(process.argv.slice(2))) {
    const path = buildWheel(arch);
    console.log(`${path}: ${(statSync(path).size / 2 ** 20).toFixed(1)} MiB`);
  }
}
