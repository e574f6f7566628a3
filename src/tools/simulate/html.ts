// The report of `foretoken simulate` as one self-contained page: speed-ups beside the paper's, every system's instances over
// time, and the distribution of lengths. Its head labels all figures as simulated.

import { barChart, lengthHeatMap, timelineChart } from "../picture/charts.ts";
import {
  axesOf,
  enginesOf,
  escaped,
  KV_SCALE,
  minutes,
  pageOf,
  scaleOf,
  TAIL_LEGEND,
} from "../picture/page.ts";
import type { Picture, SimulateReport, SystemReport, WorkloadReport } from "./experiment.ts";

export function htmlReport(report: SimulateReport, pictures: readonly Picture[]): string {
  const parts = Object.entries(report.workloads).map(([name, workload]) =>
    workloadPart(
      name,
      workload,
      pictures.filter((picture) => picture.workload.name === name),
    ),
  );
  const flag =
    "Simulated: the production scheduler against modelled engines in virtual time. No engine ran.";
  return pageOf("foretoken simulate", [
    `<p class="flag">${flag}</p>`,
    "<h1>Rollout iterations, simulated</h1>",
    ...parts,
  ]);
}

function workloadPart(name: string, report: WorkloadReport, pictures: readonly Picture[]): string {
  const bars = Object.entries(report.systems).map(([system, row]) => ({
    name: system,
    value: row.speedup_over_verl,
    ci95: row.ci95,
    published: row.published_speedup,
  }));
  const axes = axesOf(
    pictures.map(({ result, engines }) => ({
      wallS: result.wallS,
      engines: enginesOf(engines),
    })),
  );
  const cards = pictures.map((picture) => card(picture, axes));
  const seeds = report.seeds === 1 ? "1 seed" : `${report.seeds} seeds`;
  const lengths = pictures[0];
  return `<section><h2>${escaped(name)}</h2>
<p class="facts">${report.requests.toLocaleString("en-US")} requests of ${Math.round(report.tokens_mean).toLocaleString("en-US")} tokens on average, ${seeds}. No schedule can take less than ${minutes(report.lower_bound_s)}.</p>
<h3>Throughput over veRL without drafting</h3>
${barChart(bars)}
<p class="legend"><i class="swatch bar"></i> simulated, mean <i class="swatch whisker"></i> 95 % over seeds <i class="swatch paper"></i> the Seer paper</p>
${table(report)}
<h3>Instances over time, first seed</h3>
<p class="legend">Above: KV use of each instance, ${KV_SCALE}. Below: running requests an instance, least to most and mean. ${TAIL_LEGEND} All on one time axis.</p>
<div class="cards">${cards.join("\n")}</div>
${lengths === undefined ? "" : lengthPart(lengths)}
</section>`;
}

function card(picture: Picture, axes: ReturnType<typeof axesOf>): string {
  const { system, result } = picture;
  const { wallS, tailS } = result;
  const engines = enginesOf(picture.engines);
  const chart = timelineChart({ engines, ...axes, wallS, tailS, tokensPerStep: null });
  return `<figure><figcaption><b>${system}</b> ${minutes(wallS)}, tail ${minutes(tailS)}, ${result.preemptions.toLocaleString("en-US")} preemptions</figcaption>${chart}</figure>`;
}

function lengthPart({ lengths, workload }: Picture): string {
  const { tokensMax } = workload.shape;
  return `<h3>What was asked for</h3>
<p class="legend">One column for each group, by mean length; one cell for each response, ${scaleOf("0", `${tokensMax.toLocaleString("en-US")} tokens`)}. Even columns: a group's lengths are alike.</p>
${lengthHeatMap(lengths, tokensMax)}`;
}

function table(report: WorkloadReport): string {
  const rows = Object.entries(report.systems).map(([system, row]) => rowOf(system, row));
  const head = [
    "system",
    "drafts",
    "wall",
    "tail",
    "tail cut",
    "idle",
    "preemptions",
    "KV moved",
    "tokens a step",
    "over the bound",
  ];
  return `<div class="wide"><table><thead><tr>${head.map((text) => `<th>${text}</th>`).join("")}</tr></thead><tbody>${rows.join("")}</tbody></table></div>`;
}

function rowOf(system: string, row: SystemReport): string {
  const cells = [
    system,
    row.draft,
    minutes(row.wall_s),
    minutes(row.tail_s),
    `${Math.round(row.tail_cut * 100)} %`,
    `${Math.round(row.idle_share * 100)} %`,
    Math.round(row.preemptions).toLocaleString("en-US"),
    `${(row.migrated_bytes / 1e12).toFixed(1)} TB`,
    row.tokens_per_step.toFixed(2),
    row.over_lower_bound === null ? "-" : `${row.over_lower_bound.toFixed(2)} x`,
  ];
  return `<tr>${cells.map((text) => `<td>${text}</td>`).join("")}</tr>`;
}
