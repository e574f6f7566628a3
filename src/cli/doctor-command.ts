// `foretoken doctor`: examines engines before a rollout is trusted to them, and prints what was found, why it
// matters and what to do about it. Ends with 1 if a rollout over one of them would be wrong.

import { stripVTControlCharacters } from "node:util";
import Table from "cli-table3";
import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { serverOf } from "../engines/kinds.ts";
import { Engine } from "../tools/doctor/engine.ts";
import { examine } from "../tools/doctor/examine.ts";
import type { Diagnosis, Severity } from "../tools/doctor/finding.ts";
import { checkPool, checkWeights } from "../tools/doctor/shared-checks.ts";
import { commandOf } from "./command.ts";
import { EXIT_FAILED } from "./output.ts";

const EXAMPLES = `
It generates about 13,000 tokens, and pauses, updates and resets nothing. It
compares the weights of several servers. If they share a KV pool, it also tests
that each finds the KV of the one before, and not under another salt.

Examples:
  $ foretoken doctor http://127.0.0.1:8000
  $ foretoken doctor http://gpu-0:8000 http://gpu-1:8000 --json`;

export const doctorCommand = commandOf({
  name: "doctor",
  description:
    "Check engines for rollouts: is their sampling correct, and which settings cost speed?",
  takes: ["<URL...>", "vLLM servers, http://HOST:PORT"],
  help: EXAMPLES,
  fields: ["samples", "workerToken", "json", "quiet"],
  run: doctor,
});

async function doctor(
  settings: Settings<"samples" | "workerToken" | "json" | "quiet">,
  given: readonly string[],
): Promise<number> {
  const engines = given.map((url) => new Engine(httpUrlOf(url), settings.workerToken));
  const diagnoses: Diagnosis[] = [];
  // One after the other: on one machine they would share its cores.
  for (const [i, engine] of engines.entries()) {
    const began = (check: string) => {
      if (!settings.quiet) console.warn(`${engine.url}: ${check}`);
    };
    const salt = `doctor-${crypto.randomUUID()}`;
    const alone = await examine(engine, { samplesMax: settings.samples, salt, began });
    const before = engines[i - 1];
    const isBoth = before !== undefined && alone.model !== null;
    if (isBoth) began("KV pool");
    const pool = isBoth ? await checkPool(before, engine, salt) : null;
    const weights = isBoth ? await checkWeights(before, engine) : null;
    const together = [pool, weights].filter((finding) => finding !== null);
    const diagnosis = { ...alone, findings: [...alone.findings, ...together] };
    diagnoses.push(diagnosis);
    if (!settings.json) console.log(tableOf(diagnosis));
  }
  if (settings.json) console.log(JSON.stringify({ engines: diagnoses }, null, 2));
  return diagnoses.every(isSound) ? 0 : EXIT_FAILED;
}

function httpUrlOf(url: string): string {
  const server = serverOf(url);
  if (server !== null) return server.httpUrl(url);
  throw new AppError("usage", `doctor checks servers at http://HOST:PORT; "${url}" is none`);
}

function isSound({ findings }: Diagnosis): boolean {
  return findings.every(({ verdict }) => verdict !== "fail");
}

const WORDS: Readonly<Record<Severity, string>> = {
  ok: "ok",
  info: "-",
  warn: "WARN",
  fail: "FAIL",
};
/** Widths of the columns; with the borders the table has 100 columns. */
const WIDTHS = [23, 6, 68];

function tableOf(diagnosis: Diagnosis): string {
  const table = new Table({
    head: ["check", "", "what was found → what to do"],
    colWidths: WIDTHS,
    wordWrap: true,
    style: { head: [], border: [] },
  });
  for (const { check, verdict, reason, fix } of diagnosis.findings) {
    table.push([check, WORDS[verdict], fix === null ? reason : `${reason}\n→ ${fix}`]);
  }
  const counted = (verdict: Severity, noun: string) => {
    const count = diagnosis.findings.filter((finding) => finding.verdict === verdict).length;
    return `${count} ${noun}${count === 1 ? "" : "s"}`;
  };
  const closing = isSound(diagnosis)
    ? `fit for rollouts; ${counted("warn", "warning")}`
    : `NOT fit for rollouts: ${counted("fail", "failure")}, ${counted("warn", "warning")}`;
  return `${diagnosis.url}\n${stripVTControlCharacters(table.toString())}\n${diagnosis.url}: ${closing}`;
}
