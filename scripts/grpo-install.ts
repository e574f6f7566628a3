// Prepares what examples/grpo needs, in the project's ignored cache: a virtual environment with the packages
// of its requirements.txt. Does nothing where that has been done. Ends with 0 and the path of its Python, or
// with 1 and the reason.

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, statfsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createPythonEnv, pythonEnv } from "./python-env.ts";

const root = join(import.meta.dir, "..");
const requirements = join(root, "examples", "grpo", "requirements.txt");
const cache = join(root, ".cache");
const folder = join(cache, "grpo");
const stamp = join(folder, "installed");
/** PyTorch brings CUDA's libraries along, whether or not there is a GPU. */
const DISK_GIB = 6;

function fail(reason: string): never {
  console.error(`grpo:install: ${reason}`);
  process.exit(1);
}

const pins = readFileSync(requirements, "utf8").replace(/^#.*\n/gm, "");
const wanted = createHash("sha256").update(pins).digest("hex");
if (!existsSync(stamp) || readFileSync(stamp, "utf8") !== wanted) {
  if (Bun.which("python3") === null) fail("there is no python3");
  mkdirSync(cache, { recursive: true });
  const { bavail, bsize } = statfsSync(cache);
  const freeGib = (bavail * bsize) / 2 ** 30;
  if (freeGib < DISK_GIB) fail(`it needs ${DISK_GIB} GiB of disk; ${freeGib.toFixed(1)} are free`);
  console.error(`installing the trainer's packages (${DISK_GIB} GiB, a minute)`);
  const env = createPythonEnv(folder);
  if (typeof env === "string") fail(env);
  const problem = env.install(["-r", requirements]);
  if (problem !== null) fail(problem);
  writeFileSync(stamp, wanted);
}
console.log(pythonEnv(folder).python);
