// Makes sure that a vLLM's environment has the plugin of this checkout: builds it from native/foretoken_vllm and
// build/core.wasm by that environment's own pip, and does nothing where that has been done; and asks it which of vLLM's
// model runners it is to draft under there (foretoken_vllm/runner_v2.py decides). It starts no vLLM.

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { Glob } from "bun";
import { AppError } from "../../core/base/errors.ts";
import { ran } from "./find-vllm.ts";

const PACKAGE = join("native", "foretoken_vllm");
const CORE = join("build", "core.wasm");
/** Inputs of the wheel, beside its sources and the core. */
const BUILD_FILES = ["pyproject.toml", "hatch_build.py"];
/** Not one pattern with the files above: Bun 1.4 finds nothing for braces around a path with `**`. */
const SOURCES = new Glob("src/**/*.py");
/** Python program that finds the package, and checks that its dependencies are installed. */
const ASK_PLACE =
  "import foretoken_vllm.proposer, os; print(os.path.dirname(foretoken_vllm.__file__))";

/**
 * Installs the plugin if its sources have changed; returns whether it did.
 * @throws AppError invalid_config: the installation failed; the message contains pip's.
 */
export async function ensurePlugin(parts: { python: string; root: string }): Promise<boolean> {
  const { root } = parts;
  // A virtual environment is named by the link itself, not by the interpreter that it leads to.
  const python = resolve(parts.python);
  if (!existsSync(join(root, CORE))) {
    throw new AppError("invalid_config", `${join(root, CORE)} is missing: npm run build`);
  }
  const wanted = await pluginHash(root);
  const name = createHash("sha256").update(python).digest("hex").slice(0, 16);
  const stamp = join(root, ".cache", "plugin", `installed-${name}`);
  const isThere = existsSync(stamp) && readFileSync(stamp, "utf8") === wanted;
  const ask = () => ran([python, "-c", ASK_PLACE]).problem;
  if (isThere && ask() === null) return false;
  // Packages of vLLM are left as they are; of the plugin's needs only wasmtime is missing.
  const pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
  const { problem } = ran([...pip, "--no-input", join(root, PACKAGE)]);
  const reason = problem ?? ask();
  if (reason !== null) {
    throw new AppError("invalid_config", `the plugin cannot be installed: ${reason}`);
  }
  mkdirSync(dirname(stamp), { recursive: true });
  writeFileSync(stamp, wanted);
  return true;
}

/** Hash of all inputs of the wheel: if it differs, the wheel must be installed again. */
export async function pluginHash(root: string): Promise<string> {
  const folder = join(root, PACKAGE);
  const files = [...BUILD_FILES, ...SOURCES.scanSync(folder)].sort();
  const hash = createHash("sha256");
  for (const file of [...files.map((name) => join(folder, name)), join(root, CORE)]) {
    hash.update(file).update(await Bun.file(file).bytes());
  }
  return hash.digest("hex");
}

export interface PluginRunner {
  /** Number of vLLM's model runner; 0: the plugin drafts under none. */
  readonly runner: 0 | 1 | 2;
  /** The reason of the choice, for the log. */
  readonly reason: string;
}

/** Parses the last line of the output; vLLM may log on the lines before. */
export function parsePluginRunner(output: string): PluginRunner | null {
  const [, number, reason = ""] =
    /^runner (\d): (.+)$/.exec(output.trim().split("\n").at(-1) ?? "") ?? [];
  const runner = ([0, 1, 2] as const).find((one) => String(one) === number);
  return runner === undefined ? null : { runner, reason };
}

/** Asks the plugin which model runner it drafts under. @throws AppError invalid_config: it does not answer. */
export function pluginRunner(python: string): PluginRunner {
  const { output, problem } = ran([python, "-m", "foretoken_vllm.runner_v2", "--choose"]);
  const found = problem === null ? parsePluginRunner(output) : null;
  if (found !== null) return found;
  const answer = `the plugin does not say which runner it drafts under: ${problem ?? output}`;
  throw new AppError("invalid_config", answer);
}
