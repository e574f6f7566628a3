// The report of `foretoken simulate` as one self-contained page: speed-ups beside the paper's, every system's instances over
// time, and the distribution of lengths. Its head labels all figures as simulated.

import { barChart, colorOf, lengthHeatMap, timelineChart } from "./charts.ts";
import type { Picture, SimulateReport, SystemReport, WorkloadReport } from "./experiment.ts";

export function htmlReport(report: SimulateReport, pictures: readonly Picture[]): string {
  const parts = Object.entries(report.workloads).map(([name, workload]) =>
    workloadPart(
      name,
      workload,
      pictures.filter((picture) => picture.workload.name === name),
    ),
  );
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>foretoken simulate</title><style>${STYLE}</style></head><body>
<p class="flag">Simulated: the production scheduler against modelled engines in virtual time. No engine ran.</p>
<h1>Rollout iterations, simulated</h1>
${parts.join("\n")}
</body></html>
`;
}

function workloadPart(name: string, report: WorkloadReport, pictures: readonly Picture[]): string {
  const bars = Object.entries(report.systems).map(([system, row]) => ({
    name: system,
    value: row.speedup_over_verl,
    ci95: row.ci95,
    published: row.published_speedup,
  }));
  const axisS = Math.max(1, ...pictures.map((picture) => picture.result.wallS));
  const runningMax = Math.max(
    1,
    ...pictures.flatMap(({ series }) =>
      series.instances.map(({ running }) => running.reduce((most, n) => Math.max(most, n), 0)),
    ),
  );
  const cards = pictures.map((picture) => card(picture, axisS, runningMax));
  const seeds = report.seeds === 1 ? "1 seed" : `${report.seeds} seeds`;
  const lengths = pictures[0];
  return `<section><h2>${escaped(name)}</h2>
<p class="facts">${report.requests.toLocaleString("en-US")} requests of ${Math.round(report.tokens_mean).toLocaleString("en-US")} tokens on average, ${seeds}. No schedule can take less than ${minutes(report.lower_bound_s)}.</p>
<h3>Throughput over veRL without drafting</h3>
${barChart(bars)}
<p class="legend"><i class="swatch bar"></i> simulated, mean <i class="swatch whisker"></i> 95 % over seeds <i class="swatch paper"></i> the Seer paper</p>
${table(report)}
<h3>Instances over time, first seed</h3>
<p class="legend">Above: KV use of each instance, ${scaleOf("0", "100 %")}. Below: running requests an instance, least to most and mean. <i class="swatch tail"></i> and right of the dashes: the tail, when only the last 10 % of requests are left. All on one time axis.</p>
<div class="cards">${cards.join("\n")}</div>
${lengths === undefined ? "" : lengthPart(lengths)}
</section>`;
}

function card(picture: Picture, axisS: number, runningMax: number): string {
  const { system, result, series } = picture;
  const { wallS, tailS } = result;
  const chart = timelineChart({ instances: series.instances, axisS, wallS, tailS, runningMax });
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

function minutes(seconds: number): string {
  return seconds < 120 ? `${Math.round(seconds)} s` : `${(seconds / 60).toFixed(1)} min`;
}

function scaleOf(from: string, to: string): string {
  const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => `rgb(${colorOf(share).join(",")})`);
  return `${from} <i class="scale" style="background:linear-gradient(90deg,${stops.join(",")})"></i> ${to}`;
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
}

const STYLE = `
:root{--ink:#1c1e21;--soft:#6b7075;--line:#d9dadb;--bar:#31688e;--paper:#d1495b;--tail:rgba(209,73,91,.16)}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:#fbfbf9;max-width:1120px;margin:0 auto;padding:0 24px 64px}
.flag{background:#fff4d6;border-left:4px solid #e0a800;padding:8px 14px;margin:20px 0}
h1{font-size:28px;margin:20px 0 8px}h2{font-size:22px;margin:44px 0 4px;border-top:1px solid var(--line);padding-top:24px}h3{font-size:16px;margin:26px 0 6px}
.facts{margin:0 0 6px;color:var(--soft)}.legend{font-size:13px;color:var(--soft);margin:4px 0 10px}
svg{display:block;width:100%;height:auto}svg.bars{max-width:760px}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(480px,100%),1fr));gap:18px}
figure{margin:0;background:#fff;border:1px solid var(--line);border-radius:8px;padding:12px}figcaption{font-size:14px;margin-bottom:6px}
.axis{font-size:10px;fill:var(--soft)}.end{text-anchor:end}.mid{text-anchor:middle}.up{text-anchor:middle}
.name{font-size:14px;fill:var(--ink)}.strong{font-weight:600}
.bar{fill:var(--bar)}.paper{fill:var(--paper);stroke:#fff;stroke-width:1.5}.whisker{stroke:#111;stroke-width:1.5}
.tail{fill:var(--tail)}.band{fill:#31688e33}.line{fill:none;stroke:var(--bar);stroke-width:1.6}.edge{stroke:#fff;stroke-width:1.6;stroke-dasharray:5 4}.frame{fill:none;stroke:var(--line)}
.swatch{display:inline-block;width:14px;height:10px;margin:0 4px 0 12px}.swatch.bar{background:var(--bar);margin-left:0}.swatch.whisker{height:2px;background:#111;vertical-align:middle}.swatch.paper{width:9px;height:9px;background:var(--paper);transform:rotate(45deg)}.swatch.tail{background:rgba(209,73,91,.3)}
.scale{display:inline-block;width:90px;height:9px;border-radius:2px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;margin:14px 0}th,td{text-align:right;white-space:nowrap;padding:4px 10px;border-bottom:1px solid var(--line)}th{color:var(--soft);font-weight:500}th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
img.lengths{width:100%;height:190px;image-rendering:pixelated;border-radius:4px}
`;
