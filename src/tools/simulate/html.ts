// The report of `foretoken simulate` as one self-contained page: every system's engines over time, on the first seed. Its
// head labels all figures as simulated.

import { figureOf } from "../../observe/picture/figure.ts";
import { type PagePart, savedPage } from "../../observe/picture/page.ts";
import { duration } from "../../observe/picture/svg.ts";
import type { Picture, SimulateReport, WorkloadReport } from "./experiment.ts";

const FLAG =
  "Simulated: the production scheduler against modelled engines in virtual time. No engine ran.";

export function htmlReport(report: SimulateReport, pictures: readonly Picture[]): string {
  const parts = Object.entries(report.workloads).map(([name, workload]) =>
    workloadPart(
      name,
      workload,
      pictures.filter((picture) => picture.workload === name),
    ),
  );
  return savedPage("foretoken simulate", parts, FLAG);
}

function workloadPart(
  name: string,
  report: WorkloadReport,
  pictures: readonly Picture[],
): PagePart {
  const { requests, tokens_mean: tokens, seeds, lower_bound_s: bound } = report;
  const runs = pictures.map(({ system, result, timeline }) => {
    const { speedup_over_verl: speedup = 1, published_speedup: paper } =
      report.systems[system] ?? {};
    const beside = paper == null ? "" : ` (paper ${paper.toFixed(2)})`;
    return figureOf({
      name: `${system}: ${speedup.toFixed(2)} x veRL${beside}`,
      wall_s: result.wallS,
      tail_s: result.tailS,
      preemptions: result.preemptions,
      timeline,
    });
  });
  const count = `${requests.toLocaleString("en-US")} requests`;
  const times = runs.map(({ wall_s }) => duration(wall_s)).join(", ");
  const fact = `${count} of ${Math.round(tokens).toLocaleString("en-US")} tokens on average, without drafts. Speed-ups are means over ${seeds} seeds, the pictures the first one. No schedule can take less than ${duration(bound)}.`;
  return { title: name, headline: `${count}: ${times}`, runs, facts: [fact] };
}
