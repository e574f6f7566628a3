// Prepares what `npm run test:clients` needs, in the project's ignored cache: an environment with trainers' own client
// packages, without torch (400 MB); with --torch a second one with AReaL and verl, over that of `npm run grpo:install`,
// which has torch and TRL; with --agents a third one with agents' packages, without those that only their benchmarks need. Does nothing where that has been done. Ends with 0 and the path of its Python, or with 1 and
// the reason.

import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statfsSync,
  writeFileSync,
} from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { createPythonEnv, pythonEnv } from "./python-env.ts";

const root = join(import.meta.dir, "..");
const withTorch = process.argv.includes("--torch");
const name = withTorch ? "clients-torch" : process.argv.includes("--agents") ? "agents" : "clients";
const grpo = join(root, ".cache", "grpo");
const folder = join(root, ".cache", name);
const stamp = join(folder, "installed");
/** All that the clients import, and nothing else: nothing is resolved. */
const pinsFile = join(import.meta.dir, `${name}.pins.txt`);
const DISK_GB = 1;
/** Least minor version of Python 3 for skyrl and agentlightning. */
const MINOR_MIN = 12;

function fail(reason: string): never {
  console.error(`clients:install: ${reason}`);
  process.exit(1);
}

/** The default python3 may be older, and pyenv keeps the others off the path. */
function newPython(): string {
  const versions = join(process.env.PYENV_ROOT ?? join(homedir(), ".pyenv"), "versions");
  const kept = existsSync(versions) ? readdirSync(versions).sort() : [];
  const candidates = [
    ...["python3.12", "python3.13", "python3"].map((name) => Bun.which(name)),
    ...kept.map((version) => join(versions, version, "bin", "python3")),
  ];
  for (const path of candidates) {
    if (path !== null && existsSync(path) && minorOf(path) >= MINOR_MIN) return path;
  }
  return fail(`there is no Python of version 3.${MINOR_MIN} or later`);
}

function minorOf(path: string): number {
  const ask = "import sys, venv; print(sys.version_info[1])";
  return Number(Bun.spawnSync([path, "-c", ask], { stderr: "ignore" }).stdout.toString().trim());
}

/** The Python of the environment for TRL, whose packages are not installed twice. */
function pythonOfGrpo(): string {
  const { python } = pythonEnv(grpo);
  if (!existsSync(join(grpo, "installed"))) fail("`npm run grpo:install` comes first: torch");
  return python;
}

function addPackagesOfGrpo(): void {
  const [library = ""] = readdirSync(join(folder, "lib")).filter((entry) =>
    entry.startsWith("python3."),
  );
  const packages = join(grpo, "lib", library, "site-packages");
  writeFileSync(join(folder, "lib", library, "site-packages", "grpo.pth"), `${packages}\n`);
}

const wanted = createHash("sha256").update(readFileSync(pinsFile)).digest("hex");
if (!existsSync(stamp) || readFileSync(stamp, "utf8") !== wanted) {
  mkdirSync(join(root, ".cache"), { recursive: true });
  const { bavail, bsize } = statfsSync(join(root, ".cache"));
  const free = (bavail * bsize) / 1e9;
  if (free < DISK_GB) fail(`it needs ${DISK_GB} GB of disk; ${free.toFixed(1)} are free`);
  const from = withTorch ? pythonOfGrpo() : newPython();
  console.error(`installing trainers' client packages (${DISK_GB} GB, half a minute)`);
  const env = createPythonEnv(folder, from);
  if (typeof env === "string") fail(env);
  const problem = env.install(["--no-deps", "-r", pinsFile]);
  if (problem !== null) fail(problem);
  if (withTorch) addPackagesOfGrpo();
  writeFileSync(stamp, wanted);
}
console.log(pythonEnv(folder).python);
