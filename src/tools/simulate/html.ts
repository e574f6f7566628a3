// The report of `foretoken simulate` as one self-contained page: every system's engines over time, on the first seed. Its
// head labels all figures as simulated.

import { escaped, minutes, pageOf, runsPart } from "../picture/page.ts";
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
  return pageOf("foretoken simulate", [
    `<p class="flag">${FLAG}</p>`,
    "<h1>Rollout iterations, simulated</h1>",
    ...parts,
  ]);
}

function workloadPart(name: string, report: WorkloadReport, pictures: readonly Picture[]): string {
  const { requests, tokens_mean: tokens, seeds, lower_bound_s: bound } = report;
  const runs = pictures.map(({ system, result, timeline }) => {
    const { speedup_over_verl: speedup = 1, published_speedup: paper } =
      report.systems[system] ?? {};
    const beside = paper == null ? "" : ` (paper ${paper.toFixed(2)})`;
    return {
      name: `${system}: ${speedup.toFixed(2)} x veRL without drafts${beside};`,
      wall_s: result.wallS,
      tail_s: result.tailS,
      preemptions: result.preemptions,
      timeline,
    };
  });
  return `<section><h2>${escaped(name)}</h2>
<p>${requests.toLocaleString("en-US")} requests of ${Math.round(tokens).toLocaleString("en-US")} tokens on average. Speed-ups are means over ${seeds} seeds, the pictures the first one. No schedule can take less than ${minutes(bound)}.</p>
${runsPart(runs)}
</section>`;
}
