// Which tokens end a text, by a Hugging Face model's own files.

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { AppError } from "../core/base/errors.ts";

/** The end-of-text tokens of `generation_config.json`, else of `config.json`. @throws AppError model_unreadable. */
export function eosTokensOf(folder: string): readonly number[] {
  for (const name of ["generation_config.json", "config.json"]) {
    const path = join(folder, name);
    if (!existsSync(path)) continue;
    const eos = fieldOf(path, "eos_token_id");
    const tokens = Array.isArray(eos) ? eos : [eos];
    if (tokens.every((token) => Number.isSafeInteger(token) && token >= 0)) return tokens;
  }
  throw new AppError(
    "model_unreadable",
    `${folder}: no file there defines the token that ends a text`,
  );
}

function fieldOf(path: string, field: string): unknown {
  try {
    return Reflect.get(JSON.parse(readFileSync(path, "utf8")), field);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new AppError("model_unreadable", `${path}: ${reason}`, { cause });
  }
}
