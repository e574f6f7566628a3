// Output of commands: files that an option names, JSON, and tables of text.

import { mkdirSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { stripVTControlCharacters } from "node:util";
import Table from "cli-table3";
import { AppError, errorText } from "../core/base/errors.ts";
import { paint } from "./terminal.ts";

/** Writes the file that `flag` names, and its folders. @throws AppError output_failed. */
export function writeOutput(flag: string, path: string, text: string): void {
  try {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text.endsWith("\n") ? text : `${text}\n`);
  } catch (cause) {
    throw new AppError("output_failed", `${flag} ${path}: ${errorText(cause)}`, { cause });
  }
}

export function jsonOf(value: unknown): string {
  return JSON.stringify(value, null, 2);
}

/** Rules between head, rows and end; the first `left` columns hold words, the others numbers. No line end at the end. */
export function textTable(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  left = 1,
): string {
  const sides = ["top", "mid", "bottom", "left", "right"];
  const joints = ["top", "mid", "bottom"].flatMap((at) => [
    `${at}-mid`,
    `${at}-left`,
    `${at}-right`,
  ]);
  const rules = [...sides, ...joints, "left-mid", "right-mid"].map((name) => [name, "─"]);
  const table = new Table({
    head: head.map((name) => paint(name, "bold")),
    colAligns: head.map((_, i) => (i < left ? "left" : "right")),
    chars: { ...Object.fromEntries(rules), left: "", middle: " ", right: "" },
    style: { head: [], border: [], compact: true, "padding-left": 0, "padding-right": 1 },
  });
  table.push(...rows.map((row) => [...row]));
  const lines = table.toString().split("\n");
  const isRule = (line: string) => /^─+$/.test(line);
  const shown = lines.filter((line) => !isRule(line)).map((line) => line.trimEnd());
  const width = Math.max(...shown.map((line) => stripVTControlCharacters(line).length));
  return lines.map((line) => (isRule(line) ? line.slice(0, width) : line.trimEnd())).join("\n");
}

export const EXIT_FAILED = 1;
export const EXIT_USAGE = 2;
/** 128 + SIGINT, as shells report it. */
export const EXIT_INTERRUPTED = 130;
