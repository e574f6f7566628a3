// A Python environment for the plugin's own tests, linters and types, in the project's ignored cache: created once, and
// again when its requirements change. It does not contain vLLM.

import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createPythonEnv, pythonEnv } from "./python-env.ts";

const ROOT = join(import.meta.dir, "..");
export const PLUGIN = join(ROOT, "native", "foretoken_vllm");
const FOLDER = join(ROOT, ".cache", "plugin");
const VENV = join(FOLDER, "venv");
const STAMP = join(FOLDER, "venv.sha256");
const VERSION_MIN = [3, 10] as const;
const ASK_VERSION = "import sys; print(*sys.version_info[:2])";

export type PluginVenv =
  | { readonly kind: "ready"; readonly bin: string }
  /** The environment cannot be made here. */
  | { readonly kind: "missing"; readonly reason: string };

/** Takes 20 s on a quiet machine the first time, and downloads 60 MB. */
export function pluginVenv(): PluginVenv {
  const project = readFileSync(join(PLUGIN, "pyproject.toml"), "utf8");
  const needs = [...project.matchAll(/^ {2}"([^"\n]+)",$/gm)].map(([, need]) => need ?? "");
  const wanted = createHash("sha256").update(needs.join("\n")).digest("hex");
  const { bin } = pythonEnv(VENV);
  if (existsSync(STAMP) && readFileSync(STAMP, "utf8") === wanted) return { kind: "ready", bin };
  const python = Bun.which("python3");
  if (python === null) return missing("there is no python3");
  const version = Bun.spawnSync([python, "-c", ASK_VERSION]).stdout.toString().trim();
  const [major = 0, minor = 0] = version.split(" ").map(Number);
  if (major !== VERSION_MIN[0] || minor < VERSION_MIN[1]) {
    return missing(`python3 is ${version || "broken"}; it takes ${VERSION_MIN.join(".")}`);
  }
  const env = createPythonEnv(VENV);
  if (typeof env === "string") return missing(env);
  const problem = env.install(needs);
  if (problem !== null) return missing(problem);
  writeFileSync(STAMP, wanted);
  return { kind: "ready", bin };
}

function missing(reason: string): PluginVenv {
  return { kind: "missing", reason };
}
