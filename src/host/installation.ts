// Where the files of this installation are that other programs read by path: the bundled models and prompts. In a
// checkout and in the npm package that is the package's folder, for a compiled executable the folder that it is in.

import { dirname, join } from "node:path";
import { IS_COMPILED } from "../core/base/program.ts";

export const FOLDER = IS_COMPILED ? dirname(process.execPath) : join(import.meta.dir, "..", "..");

export const BUNDLED_MODEL = join(FOLDER, "model", "foretoken-3m-q8_0.gguf");
export const BUNDLED_PROMPTS = join(FOLDER, "model", "prompts.jsonl");
/** The same model as Hugging Face's files. */
export const BUNDLED_HF_MODEL = join(FOLDER, "model", "hf");

/** Command line that starts this program again. */
export const PROGRAM = IS_COMPILED
  ? [process.execPath]
  : [process.execPath, join(import.meta.dir, "..", "main.ts")];
