// `foretoken trace`: a finished iteration as a trace that Perfetto opens.

import { Command } from "commander";
import { traceOf } from "../tools/trace/events.ts";
import { readTracedRuns } from "../tools/trace/report.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { outputsOf } from "./output.ts";

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
    const out = outputsOf([report])("--out", traceOut);
    const trace = traceOf(readTracedRuns(report));
    if (out === null) console.log(JSON.stringify(trace));
    else {
      out.write(JSON.stringify(trace));
      const events = trace.traceEvents.length.toLocaleString("en-US");
      if (!quiet) console.log(`${traceOut}: ${events} events; open it at https://ui.perfetto.dev`);
    }
    setStatus(0);
  });
}
