// The chart of a run, as SVG: requests running and KV in use on both servers over time, one system above the other on
// one time axis, the tail shaded (Figures 3 and 9 of the Seer paper, measured).

import type { RoundFigures, Timeline } from "./figures.ts";

export interface Panel {
  readonly title: string;
  readonly round: RoundFigures;
}

const WIDTH = 860;
const LEFT = 52;
const RIGHT = 52;
const PLOT = WIDTH - LEFT - RIGHT;
const PANEL_TOP = 30;
const STRIP = 74;
const STRIP_GAP = 12;
const PANEL_HEIGHT = PANEL_TOP + 2 * STRIP + STRIP_GAP + 14;
/** Server by server: of the Okabe-Ito palette, distinct to colour-blind eyes. */
const COLORS = ["#0072b2", "#d55e00"] as const;

const STYLE = `<style>
text{font:12px system-ui,sans-serif;fill:#333}
.title{font-weight:600;font-size:13px}.end{text-anchor:end}.mid{text-anchor:middle}
.frame{fill:none;stroke:#999}.grid{stroke:#e4e4e4}.tail{fill:#f3e3b3;opacity:.7}
.line{fill:none;stroke-width:1.3;stroke-linejoin:round}.area{opacity:.16}
@media (prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#3a3a3a}.frame{stroke:#777}.tail{fill:#6b5a1e}}
</style>`;

export function chartOf(panels: readonly Panel[]): string {
  const axisS = Math.max(1, ...panels.map(({ round }) => round.wall_s));
  const most = Math.max(1, ...panels.flatMap(({ round }) => runningOf(round.timeline)));
  const top = 26;
  const height = top + panels.length * PANEL_HEIGHT + 26;
  const body = panels.map((panel, i) =>
    panelOf(panel, { top: top + i * PANEL_HEIGHT, axisS, runningMax: most }),
  );
  const alt = panels.map(({ title }) => title).join(" and ");
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${alt}">`,
    STYLE,
    legend(),
    ...body,
    timeAxis(axisS, height - 10),
    "</svg>\n",
  ].join("\n");
}

function runningOf({ servers }: Timeline): number[] {
  return servers.flatMap(({ running }) => running);
}

const xOf = (s: number, axisS: number): number => LEFT + Math.min(1, s / axisS) * PLOT;

function legend(): string {
  const names = COLORS.map((color, i) => {
    const x = LEFT + i * 90;
    return `<rect x="${x}" y="8" width="12" height="12" fill="${color}"/><text x="${x + 17}" y="18">server ${i}</text>`;
  });
  const x = LEFT + COLORS.length * 90;
  return `${names.join("")}<rect x="${x}" y="8" width="12" height="12" class="tail"/><text x="${x + 17}" y="18">tail: from when nine tenths of the responses are there</text>`;
}

function panelOf(
  { title, round }: Panel,
  at: { readonly top: number; readonly axisS: number; readonly runningMax: number },
): string {
  const { top, axisS, runningMax } = at;
  const { wall_s: wallS, tail_s: tailS, timeline } = round;
  const runningTop = top + PANEL_TOP;
  const kvTop = runningTop + STRIP + STRIP_GAP;
  const tailX = xOf(wallS - tailS, axisS);
  const tail = (y: number): string =>
    `<rect x="${tailX.toFixed(1)}" y="${y}" width="${(xOf(wallS, axisS) - tailX).toFixed(1)}" height="${STRIP}" class="tail"/>`;
  const strip = (y: number, pick: (server: Timeline["servers"][number]) => number[], max: number) =>
    timeline.servers.map((server, i) =>
      pathsOf(pick(server), {
        y,
        max,
        axisS,
        intervalS: timeline.interval_s,
        color: COLORS[i % COLORS.length] ?? "#000",
      }),
    );
  const label = `${title}: ${wallS.toFixed(1)} s, of it ${tailS.toFixed(1)} s tail`;
  return [
    `<text x="${LEFT}" y="${top + 20}" class="title">${label}</text>`,
    tail(runningTop),
    ...strip(runningTop, ({ running }) => running, runningMax),
    frame(runningTop, "running", ["0", String(runningMax)]),
    tail(kvTop),
    ...strip(kvTop, ({ kv_share }) => kv_share, 1),
    frame(kvTop, "KV", ["0", "100 %"]),
  ].join("\n");
}

function frame(y: number, name: string, [low, high]: readonly [string, string]): string {
  const bottom = y + STRIP;
  return [
    `<path d="M${LEFT} ${y}H${LEFT + PLOT}" class="grid"/>`,
    `<path d="M${LEFT} ${y}V${bottom}H${LEFT + PLOT}" class="frame"/>`,
    `<text x="${LEFT - 6}" y="${y + 9}" class="end">${high}</text>`,
    `<text x="${LEFT - 6}" y="${bottom}" class="end">${low}</text>`,
    `<text x="${LEFT + PLOT + 6}" y="${y + STRIP / 2 + 4}">${name}</text>`,
  ].join("");
}

function pathsOf(
  values: readonly number[],
  axes: { y: number; max: number; axisS: number; intervalS: number; color: string },
): string {
  const { y, max, axisS, intervalS, color } = axes;
  const bottom = y + STRIP;
  const points = values.flatMap((value, i) => {
    const high = (bottom - (Math.min(value, max) / max) * STRIP).toFixed(1);
    // A value holds for its interval: a stair.
    return [i, i + 1].map((at) => `${xOf(at * intervalS, axisS).toFixed(1)} ${high}`);
  });
  if (points.length === 0) return "";
  const right = xOf(values.length * intervalS, axisS).toFixed(1);
  const line = `M${points.join("L")}`;
  return `<path d="${line}L${right} ${bottom}L${LEFT} ${bottom}Z" fill="${color}" class="area"/><path d="${line}" stroke="${color}" class="line"/>`;
}

function timeAxis(axisS: number, y: number): string {
  const stepS = [1, 2, 5, 10, 20, 30, 60, 120, 300].find((s) => s * 8 >= axisS) ?? 600;
  const marks: string[] = [];
  for (let s = 0; s <= axisS; s += stepS) {
    marks.push(`<text x="${xOf(s, axisS).toFixed(1)}" y="${y}" class="mid">${s} s</text>`);
  }
  return marks.join("");
}

/** The round whose ratio of wall times is the median: the one that the chart shows. */
export function middleRound(base: readonly RoundFigures[], of: readonly RoundFigures[]): number {
  const ratios = of.map((round, i) => ({ i, ratio: (base[i]?.wall_s ?? 0) / round.wall_s }));
  const sorted = ratios.toSorted((a, b) => a.ratio - b.ratio);
  return sorted[Math.floor((sorted.length - 1) / 2)]?.i ?? 0;
}
