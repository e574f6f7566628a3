// `foretoken trace`: a finished iteration as a trace that Perfetto opens.

import { traceOf } from "../tools/trace/events.ts";
import { readTracedRuns } from "../tools/trace/report.ts";
import { commandOf } from "./command.ts";
import { outputsOf } from "./output.ts";

const EXAMPLES = `
REPORT is what \`foretoken rollout --report REPORT\` writes. Open the trace at
https://ui.perfetto.dev: a process for each worker, a thread for each slot.

Examples:
  $ foretoken rollout --demo --report out/report.json
  $ foretoken trace out/report.json --out out/trace.json`;

export const traceCommand = commandOf({
  name: "trace",
  description: "Write an iteration as a trace for Perfetto: which chunk ran where, and when.",
  takes: ["<report>", "report of a rollout, as JSON"],
  help: EXAMPLES,
  fields: ["traceOut", "quiet"],
  run: async ({ traceOut, quiet }, [report = ""]) => {
    const out = outputsOf([report])("--out", traceOut);
    const trace = traceOf(readTracedRuns(report));
    const events = trace.traceEvents.length.toLocaleString("en-US");
    if (out === null) console.log(JSON.stringify(trace));
    else out.write(JSON.stringify(trace));
    if (out !== null && !quiet)
      console.log(`${traceOut}: ${events} events; open it at https://ui.perfetto.dev`);
    return 0;
  },
});
