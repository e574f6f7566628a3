// Finds the `vllm` command and asks its Python which build it is: importing vLLM to read its version takes ten seconds.

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { AppError } from "../../core/base/errors.ts";
import type { VllmBuild } from "./launch.ts";

export interface FoundVllm {
  readonly command: string;
  /** The Python interpreter of vLLM's environment. */
  readonly python: string;
  readonly build: VllmBuild;
}

const INSTALL_HINT = "npm run vllm:install prepares one";
const ASK_VERSION = "import importlib.metadata as m; print(m.version('vllm'))";

/**
 * Finds `given` (a path), else the project's own (`npm run vllm:install`), else the one on PATH.
 * @throws AppError invalid_config: there is none, or it does not print its version.
 */
export function findVllm(given: string | null, root: string): FoundVllm {
  const own = join(root, ".cache", "vllm", "bin", "vllm");
  const isOwnReady = existsSync(join(root, ".cache", "vllm", "installed"));
  const command = given ?? (isOwnReady ? own : Bun.which("vllm"));
  if (command === null || !existsSync(command)) {
    const what = given === null ? "there is no vLLM here" : `there is no ${given}`;
    throw new AppError("invalid_config", `${what}: ${INSTALL_HINT}`);
  }
  const python = interpreterIn(readFileSync(command, "utf8").slice(0, HEAD_CHARACTERS));
  const hasPython = python !== undefined && existsSync(python);
  const version = hasPython ? ran([python, "-c", ASK_VERSION]).output : "";
  if (version === "" || python === undefined) {
    throw new AppError("invalid_config", `${command} does not print its version: ${INSTALL_HINT}`);
  }
  return {
    command,
    python,
    build: { version: version.split("+")[0] ?? version, isCpu: /\+cpu/.test(version) },
  };
}

const PROBLEM_CHARACTERS = 800;

/** Runs a command to its end. `output` is empty and `problem` its last message if it failed; null: it succeeded. */
export function ran(command: string[]): {
  readonly output: string;
  readonly problem: string | null;
} {
  const child = Bun.spawnSync(command, { stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const output = child.stdout.toString().trim();
  if (child.exitCode === 0) return { output, problem: null };
  const said = (child.stderr.toString().trim() || output).slice(-PROBLEM_CHARACTERS);
  return {
    output: "",
    problem: `${command.slice(0, 4).join(" ")} ended with ${child.exitCode}: ${said}`,
  };
}

const HEAD_CHARACTERS = 4096;

/** The interpreter of a script that pip wrote: in its first line, or in the second if it is too long for the first. */
function interpreterIn(script: string): string | undefined {
  const long = /^#!\/bin\/sh\n'''exec' "?([^"\n]+?)"? "\$0"/.exec(script);
  return long?.[1] ?? /^#!(\S+)/.exec(script)?.[1];
}
