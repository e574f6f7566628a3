// Paths of the installation's files that other programs read: the bundled models and prompts. They are in the package's
// folder (checkout, npm package), or in the folder of a compiled executable.

import { dirname, join } from "node:path";
import { IS_COMPILED } from "../core/base/program.ts";

export const FOLDER = IS_COMPILED ? dirname(process.execPath) : join(import.meta.dir, "..", "..");

export const BUNDLED_MODEL = join(FOLDER, "model", "foretoken-3m-q8_0.gguf");
export const BUNDLED_PROMPTS = join(FOLDER, "model", "prompts.jsonl");
/** The bundled model in Hugging Face's format. */
export const BUNDLED_HF_MODEL = join(FOLDER, "model", "hf");
