// `foretoken trace`: a finished iteration as a trace that Perfetto opens.

import { mkdirSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { Command } from "commander";
import { AppError, errorText } from "../core/base/errors.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { type TraceFile, traceOf } from "./trace-events.ts";
import { readTracedRuns } from "./trace-report.ts";

const FIELD_NAMES = ["traceOut", "quiet"] as const;

const EXAMPLES = `
REPORT is what \`foretoken rollout --report REPORT\` writes. Open the trace at
https://ui.perfetto.dev: a process for each worker, a thread for each slot.

Examples:
  $ foretoken rollout --demo --report out/report.json
  $ foretoken trace out/report.json --out out/trace.json`;

export function traceCommand(setStatus: (status: number) => void): Command {
  const command = new Command("trace")
    .description("Write an iteration as a trace for Perfetto: which chunk ran where, and when.")
    .argument("<report>", "report of a rollout, as JSON")
    .addHelpText("after", EXAMPLES);
  addFields(command, FIELD_NAMES);
  return command.action((report: string) => {
    const { traceOut, quiet } = readFields(command, FIELD_NAMES);
    const trace = traceOf(readTracedRuns(report));
    if (traceOut === null) console.log(JSON.stringify(trace));
    else {
      write(traceOut, trace);
      const events = trace.traceEvents.length.toLocaleString("en-US");
      if (!quiet) console.log(`${traceOut}: ${events} events; open it at https://ui.perfetto.dev`);
    }
    setStatus(0);
  });
}

function write(path: string, trace: TraceFile): void {
  try {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, `${JSON.stringify(trace)}\n`);
  } catch (cause) {
    throw new AppError("output_failed", `--out ${path}: ${errorText(cause)}`, { cause });
  }
}
