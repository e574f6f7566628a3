// The frame of every picture of iterations: one self-contained page, and how a run of engines is shown on it.

import type { ResponseTimeline, Timeline } from "../../core/rollout/timeline.ts";
import {
  CHART_WIDTH,
  colorOf,
  ENGINE_COLORS,
  type EngineSeries,
  type ResponseBar,
  responseBars,
  type Times,
  timelineChart,
} from "./charts.ts";

/** One iteration, as `foretoken rollout --report` and `bench:vllm` measure it. */
export interface MeasuredRun {
  readonly name: string;
  readonly wall_s: number;
  readonly tail_s: number;
  readonly preemptions: number;
  /** In even parts of the wall time; null: no drafts. Absent: made from the timeline's chunks. */
  readonly tokens_per_step_over_time?: readonly number[] | null;
  readonly timeline: Pick<Timeline, "responses" | "workers">;
}

/** The page of measured runs. `facts`: sentences about all of them, as plain text. */
export function iterationsPage(runs: readonly MeasuredRun[], facts: readonly string[]): string {
  return pageOf("foretoken rollout", [
    "<h1>Rollout iterations</h1>",
    ...facts.map((fact) => `<p>${escaped(fact)}</p>`),
    runsPart(runs),
  ]);
}

/** A legend, and a card for each run. */
export function runsPart(runs: readonly MeasuredRun[]): string {
  const cards = chartsOf(runs).map(({ run, times, chart }) => {
    const bars = responseBars(lastResponses(run.timeline), times);
    return `<figure><figcaption>${captionOf(run)}</figcaption>${chart}<p class="legend">The last ${LAST} responses to end: where each ran</p>${bars}</figure>`;
  });
  const engines = Math.max(...runs.map(({ timeline }) => timeline.workers.length));
  const swatches = ENGINE_COLORS.slice(0, engines).map(
    (color, i) => `<i class="swatch" style="background:${color}"></i> engine ${i + 1}`,
  );
  return `<p class="legend">From the top: KV use of each engine, ${kvScale()}; running requests an engine, least to most and mean; where drafts were verified, tokens of a response in a step; bars: ${swatches.join("")}${engines > ENGINE_COLORS.length ? " and so on in turn" : ""}, gaps are time spent waiting. ${TAIL_LEGEND} All on one time axis.</p>
<div class="cards">${cards.join("\n")}</div>`;
}

/** The charts of the page without bars, one below the other, as one picture for a document. */
export function iterationsSvg(runs: readonly MeasuredRun[]): string {
  let top = 0;
  const parts = chartsOf(runs).map(({ run, chart }) => {
    const height = Number(/viewBox="0 0 \d+ (\d+)"/.exec(chart)?.[1]);
    const at = top;
    top += height + 28;
    const sized = chart.replace("<svg ", `<svg y="${at + 24}" height="${height}" `);
    return `<text x="44" y="${at + 18}" class="name">${captionOf(run).replace(/<.?b>/g, "")}</text>${sized}`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${CHART_WIDTH} ${top}" role="img" aria-label="${runs.map(({ name }) => escaped(name)).join(", ")}"><style>text{font-family:system-ui,sans-serif}${STYLE.replace(/var\(--(\w+)\)/g, (_, name) => COLORS[name] ?? "#000")}</style>${parts.join("\n")}</svg>\n`;
}

function captionOf({ name, wall_s, tail_s, preemptions }: MeasuredRun): string {
  return `<b>${escaped(name)}</b> ${minutes(wall_s)}, tail ${minutes(tail_s)}, ${preemptions.toLocaleString("en-US")} preemption${preemptions === 1 ? "" : "s"}`;
}

/** On one time axis and one scale. */
function chartsOf(
  runs: readonly MeasuredRun[],
): readonly { readonly run: MeasuredRun; readonly times: Times; readonly chart: string }[] {
  const all = runs.map((run) => {
    const engines = enginesOf(run.timeline.workers);
    const given = run.tokens_per_step_over_time;
    const steps = given === undefined ? tokensPerStep(run) : given;
    return { run, wallS: run.wall_s, engines, steps };
  });
  const { axisS, runningMax } = axesOf(all);
  const most = all.reduce((value, { steps }) => Math.max(value, ...(steps ?? [])), 1);
  return all.map(({ run, engines, steps }) => {
    const times: Times = { axisS, wallS: run.wall_s, tailS: run.tail_s };
    const tokensPerStep = steps === null ? null : { values: steps, most };
    return { run, times, chart: timelineChart({ engines, runningMax, ...times, tokensPerStep }) };
  });
}

function enginesOf(workers: Timeline["workers"]): EngineSeries[] {
  return workers.map(({ at_ms, running, kv_tokens_used, kv_tokens }) => ({
    atS: at_ms.map((ms) => ms / 1000),
    kvShare: kv_tokens_used.map((tokens) => tokens / Math.max(1, kv_tokens)),
    running,
  }));
}

const STEP_COLUMNS = 120;

/**
 * Tokens of a response in a step over time: a chunk's tokens and steps (a token that is no accepted draft token is a
 * step) are spread evenly over its time. null: no draft token was accepted.
 */
function tokensPerStep({ wall_s, timeline }: MeasuredRun): number[] | null {
  // Differences of two rates from column to column: tokens, and steps.
  const tokens = new Float64Array(STEP_COLUMNS + 1);
  const steps = new Float64Array(STEP_COLUMNS + 1);
  const columnOf = (ms: number) =>
    Math.max(0, Math.min(STEP_COLUMNS - 1, Math.floor((ms / 1000 / wall_s) * STEP_COLUMNS)));
  let isDrafted = false;
  for (const { chunks } of timeline.responses) {
    for (const [, startMs, endMs, , made, , , accepted] of chunks) {
      const from = columnOf(startMs);
      const to = columnOf(endMs ?? wall_s * 1000) + 1;
      isDrafted ||= (accepted ?? 0) > 0;
      for (const [rates, amount] of [
        [tokens, made],
        [steps, made - (accepted ?? 0)],
      ] as const) {
        rates[from] = (rates[from] ?? 0) + amount / (to - from);
        rates[to] = (rates[to] ?? 0) - amount / (to - from);
      }
    }
  }
  if (!isDrafted) return null;
  let [tokenRate, stepRate] = [0, 0];
  return Array.from({ length: STEP_COLUMNS }, (_, i) => {
    tokenRate += tokens[i] ?? 0;
    stepRate += steps[i] ?? 0;
    return stepRate > 1e-6 ? Math.max(1, tokenRate / stepRate) : 1;
  });
}

const LAST = 12;

function lastResponses({ responses, workers }: MeasuredRun["timeline"]): ResponseBar[] {
  const engines = new Map(workers.map(({ worker }, i) => [worker, i]));
  const ended = responses.filter(({ end_ms }) => end_ms !== null);
  const last = ended.toSorted((a, b) => (b.end_ms ?? 0) - (a.end_ms ?? 0)).slice(0, LAST);
  return last.map((response) => barOf(response, engines));
}

function barOf(response: ResponseTimeline, engines: ReadonlyMap<number, number>): ResponseBar {
  const { group, index, tokens, chunks, end_ms } = response;
  return {
    name: escaped(`${group} / ${index}, ${tokens.toLocaleString("en-US")} tokens`),
    // Before its first token a chunk waits in the engine's own queue, or is prefilled.
    pieces: chunks.map(([worker, startMs, endMs, firstTokenMs]) => ({
      engine: engines.get(worker) ?? 0,
      from: (firstTokenMs ?? startMs) / 1000,
      to: (endMs ?? end_ms ?? startMs) / 1000,
    })),
  };
}

/** One time axis and one scale of running requests for all runs. */
function axesOf(
  runs: readonly { readonly wallS: number; readonly engines: readonly EngineSeries[] }[],
): { readonly axisS: number; readonly runningMax: number } {
  const largest = (values: readonly number[]) => values.reduce((most, n) => Math.max(most, n), 1);
  return {
    axisS: largest(runs.map(({ wallS }) => wallS)),
    runningMax: largest(runs.flatMap(({ engines }) => engines.map((of) => largest(of.running)))),
  };
}

/** Where the page of a report stands: beside it. */
export const pagePath = (report: string): string => `${report.replace(/\.json$/, "")}.html`;

export function pageOf(title: string, parts: readonly string[]): string {
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>${title}</title><style>${STYLE}</style></head><body>
${parts.join("\n")}
</body></html>
`;
}

const TAIL_LEGEND =
  '<i class="swatch tail"></i> and right of the dashes: the tail, when only the last 10 % of the requests are left.';

export function minutes(seconds: number): string {
  if (seconds < 20) return `${seconds.toFixed(1)} s`;
  return seconds < 120 ? `${Math.round(seconds)} s` : `${(seconds / 60).toFixed(1)} min`;
}

function kvScale(): string {
  const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => `rgb(${colorOf(share).join(",")})`);
  return `0 <i class="scale" style="background:linear-gradient(90deg,${stops.join(",")})"></i> 100 %`;
}

export function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
}

const COLORS: Readonly<Record<string, string>> = {
  ink: "#1c1e21",
  soft: "#6b7075",
  line: "#d9dadb",
  bar: "#31688e",
  tail: "rgba(209,73,91,.16)",
};

const STYLE = `
:root{${Object.entries(COLORS)
  .map(([name, color]) => `--${name}:${color}`)
  .join(";")}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:#fbfbf9;max-width:1120px;margin:0 auto;padding:0 24px 64px}
.flag{background:#fff4d6;border-left:4px solid #e0a800;padding:8px 14px;margin:20px 0}
h1{font-size:28px;margin:20px 0 8px}h2{font-size:22px;margin:44px 0 4px;border-top:1px solid var(--line);padding-top:24px}
.legend{font-size:13px;color:var(--soft);margin:4px 0 10px}
svg{display:block;width:100%;height:auto}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(480px,100%),1fr));gap:18px}
figure{margin:0;background:#fff;border:1px solid var(--line);border-radius:8px;padding:12px}figcaption{font-size:14px;margin-bottom:6px}
.axis{font-size:10px;fill:var(--soft)}.axis.over{fill:var(--ink);paint-order:stroke;stroke:#fff;stroke-width:8;stroke-linejoin:round}.end{text-anchor:end}.mid{text-anchor:middle}
.name{font-size:14px;fill:var(--ink)}
.tail{fill:var(--tail)}.band{fill:#31688e33}.line{fill:none;stroke:var(--bar);stroke-width:1.6}.edge{stroke:#fff;stroke-width:1.6;stroke-dasharray:5 4}.frame{fill:none;stroke:var(--line)}
.swatch{display:inline-block;width:14px;height:10px;margin:0 4px 0 12px}.swatch.tail{background:rgba(209,73,91,.3)}
.scale{display:inline-block;width:90px;height:9px;border-radius:2px}
`;
