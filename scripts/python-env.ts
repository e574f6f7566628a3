// Python environments in the project's ignored cache: `python3 -m venv`, and uv in it, which installs packages some ten
// times faster than pip. Where uv cannot be had, or fails, pip installs them.

import { existsSync, mkdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";

const UV_PACKAGE = "uv==0.13.9";
const MESSAGE_CHARS = 800;

export interface PythonEnv {
  readonly python: string;
  /** The folder of its commands. */
  readonly bin: string;
  /** `args`: those that `pip install` and `uv pip install` share. Returns null, or the last message. */
  readonly install: (args: readonly string[]) => string | null;
}

/** Makes the environment of `folder` anew, of the interpreter `from`. Returns why it cannot be made in place of it. */
export function createPythonEnv(folder: string, from = "python3"): PythonEnv | string {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(dirname(folder), { recursive: true });
  const problem = attempt([from, "-m", "venv", folder]);
  if (problem !== null) return problem;
  const env = pythonEnv(folder);
  attempt(pip(env.python, [UV_PACKAGE]));
  return env;
}

/** The environment that `createPythonEnv` made in `folder`. */
export function pythonEnv(folder: string): PythonEnv {
  const bin = join(folder, "bin");
  const python = join(bin, "python");
  return { python, bin, install: (args) => install(bin, python, args) };
}

/** null: success; else its last message. */
export function attempt(command: readonly string[], where?: string): string | null {
  // apt-get on a system without it, for one.
  if (Bun.which(command[0] ?? "") === null) return `there is no ${command[0]}`;
  const options = where === undefined ? {} : { cwd: where };
  const { exitCode, stderr } = Bun.spawnSync([...command], {
    ...options,
    stdout: "ignore",
    stderr: "pipe",
  });
  if (exitCode === 0) return null;
  const message = stderr.toString().trim().slice(-MESSAGE_CHARS);
  return `${command.join(" ").slice(0, 200)} ended with ${exitCode}: ${message}`;
}

function install(bin: string, python: string, args: readonly string[]): string | null {
  const uv = join(bin, "uv");
  // Its cache would keep a second copy of everything beside the environments. Compiled, because where Python may write no
  // bytecode (PYTHONDONTWRITEBYTECODE) a vLLM server would start in 100 s, not 45.
  const options = ["--quiet", "--no-cache", "--compile-bytecode", "--python", python];
  const command = [uv, "pip", "install", ...options, ...indexes(python), ...args];
  if (existsSync(uv) && attempt(command) === null) return null;
  return attempt(pip(python, args));
}

function pip(python: string, args: readonly string[]): string[] {
  const quiet = ["--quiet", "--disable-pip-version-check", "--no-input"];
  return [python, "-m", "pip", "install", ...quiet, ...args];
}

/** uv does not read pip's configuration: the indexes named there are handed on. */
function indexes(python: string): string[] {
  const { stdout } = Bun.spawnSync([python, "-m", "pip", "config", "list"], { stderr: "ignore" });
  const options: string[] = [];
  for (const line of stdout.toString().split("\n")) {
    const [, key = "", value = ""] =
      /\.(index-url|extra-index-url|find-links)='(.*)'$/.exec(line) ?? [];
    if (key === "") continue;
    for (const url of value.split(/\s+|\\n/).filter((part) => part !== ""))
      options.push(`--${key}`, url);
  }
  return options;
}
