// The picture of iterations, drawn as SVG text that loads nothing: all runs on one time axis, each with two lanes an engine
// (its time, its KV), and thin bars for the responses of the longest group. Colours follow the reader's colour scheme.

import { COLUMNS, type EngineLane, type ResponseBar, type RunFigure } from "./figure.ts";
import STYLE from "./picture.css" with { type: "text" };

const WIDTH = 840;
const LEFT = 130;
/** Width for an engine's shares, right of its lane. */
const RIGHT = 192;
const PLOT = WIDTH - LEFT - RIGHT;
const CAPTION = 22;
const LANES_HEIGHT_MAX = 170;
/** Lanes lower than this have no text of their own. */
const TEXT_HEIGHT = 12;
const BAR = 6;
const RATES_HEIGHT = 22;
/** Minimum height of the bars: room for the text beside them. */
const BARS_HEIGHT_MIN = 42;
/** Maximum width of a character of the small text. */
const CHARACTER = 6.6;
/** Number of levels that shares are rounded to, so that even stretches are drawn as one piece. */
const LEVELS = 12;
/** Shades of work, from few running requests to many. */
const SHADES = 4;
const ENGINE_COLORS = 6;
const NAME_MAX = 15;

/** The picture as SVG text. `headline`: the sentence above it. */
export function picture(headline: string, runs: readonly RunFigure[]): string {
  const axisS = runs.reduce((most, { wall_s }) => Math.max(most, wall_s), 1e-3);
  const marks = timeMarks(axisS);
  const rateMax = runs.reduce(
    (most, { tokens_per_s }) => tokens_per_s.reduce((higher, n) => Math.max(higher, n), most),
    1,
  );
  const scale = (s: number) => LEFT + (Math.min(s, axisS) / axisS) * PLOT;
  let top = 38;
  const panels = runs.map((run) => {
    const panel = panelOf(run, { top, scale, marks, rateMax });
    top = panel.bottom + 14;
    return panel.svg;
  });
  const height = top + 62;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${escaped(headline)}">`,
    `<style>${STYLE}</style><rect class="back" width="${WIDTH}" height="${height}" rx="8"/>`,
    `<text x="14" y="24" class="headline">${escaped(headline)}</text>`,
    ...panels,
    ...marks.map(
      (s) => `<text x="${px(scale(s))}" y="${px(top + 6)}" class="mid">${markOf(s, marks)}</text>`,
    ),
    legend(top + 30),
    "</svg>",
  ].join("\n");
}

type Scale = (s: number) => number;

function panelOf(
  run: RunFigure,
  about: { top: number; scale: Scale; marks: readonly number[]; rateMax: number },
): { svg: string; bottom: number } {
  const { top, scale, marks, rateMax } = about;
  const { engines, longest, wall_s, tail_s } = run;
  const end = scale(wall_s);
  const row = Math.min(34, LANES_HEIGHT_MAX / Math.max(1, engines.length));
  const lanesTop = top + CAPTION;
  const lanes = engines.map((lane, i) => {
    const isNamed = row >= TEXT_HEIGHT || i === 0 || i === engines.length - 1;
    return laneOf(lane, { index: i, top: lanesTop + i * row, row, end, isNamed });
  });
  const ratesTop = lanesTop + engines.length * row + 4;
  const barsTop = ratesTop + RATES_HEIGHT + 8;
  const bars = longest?.responses ?? [];
  const bottom = barsTop + Math.max(longest === null ? 0 : BARS_HEIGHT_MIN, bars.length * BAR);
  const tail = scale(wall_s - tail_s);
  return {
    bottom,
    svg: [
      `<rect x="${px(tail)}" y="${px(lanesTop - 3)}" width="${px(end - tail)}" height="${px(bottom - lanesTop + 4)}" class="tail"/>`,
      `<path d="${marks.map((s) => `M${px(scale(s))} ${px(lanesTop)}V${px(bottom)}`).join("")}" class="grid"/>`,
      `<text x="${LEFT}" y="${px(top + 14)}"><tspan class="name">${escaped(run.name)}</tspan> ${captionOf(run)}</text>`,
      ...lanes,
      ratesOf(run, { top: ratesTop, end, rateMax }),
      ...(longest === null ? [] : [longestText(longest, barsTop)]),
      ...bars.map((bar, i) => barOf(bar, barsTop + i * BAR, scale)),
    ].join("\n"),
  };
}

function captionOf({ wall_s, tail_s, preemptions, engines }: RunFigure): string {
  const mean = (of: (lane: EngineLane) => number) =>
    percent(engines.reduce((sum, lane) => sum + of(lane), 0) / Math.max(1, engines.length));
  const lost = `engines ${mean(({ idle }) => idle)} idle, ${mean((lane) => lane.recomputing)} recomputing`;
  const count = `${preemptions.toLocaleString("en-US")} preemption${preemptions === 1 ? "" : "s"}`;
  const tail = tail_s === 0 ? "" : `tail ${duration(tail_s)} · `;
  return `${duration(wall_s)} · ${lost} · ${tail}${count}`;
}

interface Place {
  readonly index: number;
  readonly top: number;
  /** Height of both lanes and the gap below them. */
  readonly row: number;
  /** Right end of the time axis. */
  readonly end: number;
  readonly isNamed: boolean;
}

function laneOf(lane: EngineLane, { index, top, row, end, isNamed }: Place): string {
  const height = row * 0.6;
  const kvHeight = row * 0.2;
  const { idle, recomputing, running, kv } = lane.over_time;
  const bottom = top + height;
  const unit = height / LEVELS;
  const columns = new Columns();
  for (const [i, share] of idle.entries()) {
    const free = level(share);
    const again = Math.min(LEVELS - free, level(recomputing[i]));
    const work = LEVELS - free - again;
    const shade = Math.min(SHADES - 1, Math.floor(Math.sqrt(running[i] ?? 0) * SHADES));
    columns.add(`w${shade}`, i, { y: bottom - work * unit, height: work * unit });
    columns.add("again", i, { y: top + free * unit, height: again * unit });
    columns.add("idle", i, { y: top, height: free * unit });
    const use = kvHeight * Math.min(1, kv[i] ?? 0);
    columns.add("kv", i, { y: bottom + 1 + kvHeight - use, height: use });
  }
  return [
    `<g><title>${escaped(`${lane.name}: ${sharesOf(lane).join(", ")}`)}</title>`,
    columns.paths(end),
    ...(isNamed ? [nameOf(lane.name, index, top + height / 2)] : []),
    ...(height < TEXT_HEIGHT ? [] : [shareText(lane, end + 8, top + height / 2 + 4)]),
    "</g>",
  ].join("");
}

function nameOf(name: string, index: number, middle: number): string {
  const plain = name.replace(/^(embedded |modelled |https?:\/\/)/, "");
  const shown = plain.length > NAME_MAX ? `…${plain.slice(1 - NAME_MAX)}` : plain;
  const color = `<rect x="14" y="${px(middle - 4)}" width="7" height="7" class="e${index % ENGINE_COLORS}"/>`;
  return `${color}<text x="25" y="${px(middle + 4)}">${escaped(shown)}</text>`;
}

const sharesOf = ({ idle, recomputing }: EngineLane): string[] => [
  `${percent(idle)} idle`,
  `${percent(recomputing)} recomputing`,
];

/** The shares that are not zero, beside the lane. */
function shareText(lane: EngineLane, x: number, y: number): string {
  const shown = sharesOf(lane).filter((text) => !text.startsWith("0 "));
  return `<text x="${px(x)}" y="${px(y)}" class="lost">${shown.join(", ")}</text>`;
}

/** Collects rectangles by class, and joins neighbours of one height. */
class Columns {
  readonly #pieces = new Map<string, { from: number; to: number; y: string; height: string }[]>();

  add(kind: string, column: number, at: { y: number; height: number }): void {
    if (at.height < 0.05) return;
    const y = px(at.y);
    const height = px(at.height);
    const pieces = this.#pieces.getOrInsertComputed(kind, () => []);
    const last = pieces.at(-1);
    if (last?.to === column && last.y === y && last.height === height) last.to += 1;
    else pieces.push({ from: column, to: column + 1, y, height });
  }

  /** `end`: right end of the last column. */
  paths(end: number): string {
    const width = (end - LEFT) / COLUMNS;
    const paths = [...this.#pieces].map(([kind, pieces]) => {
      const parts = pieces.map(({ from, to, y, height }) => {
        const x = px(LEFT + from * width);
        return `M${x} ${y}h${px((to - from) * width)}v${height}H${x}z`;
      });
      return `<path class="${kind}" d="${parts.join("")}"/>`;
    });
    return paths.join("");
  }
}

/** The curves of tokens per second, on one scale for all runs. */
function ratesOf(
  { tokens_per_s: rates }: RunFigure,
  { top, end, rateMax }: { top: number; end: number; rateMax: number },
): string {
  const columns = new Columns();
  for (const [i, rate] of rates.entries()) {
    const height = (RATES_HEIGHT * rate) / rateMax;
    columns.add("rate", i, { y: top + RATES_HEIGHT - height, height });
  }
  const most = Math.max(0, ...rates);
  const texts = linesOf(["tokens/s", `up to ${most.toLocaleString("en-US")}`], top);
  return `${columns.paths(end)}${texts}`;
}

function longestText(longest: NonNullable<RunFigure["longest"]>, top: number): string {
  const { group, size, responses } = longest;
  const moves = responses.reduce((sum, one) => sum + one.moves, 0);
  const shown = responses.length < size ? `${responses.length} of ${size}` : String(size);
  const lines = [
    "longest group",
    `${shown} response${size === 1 ? "" : "s"}`,
    `${moves} move${moves === 1 ? "" : "s"}`,
  ];
  return `<g class="longest"><title>${escaped(group)}</title>${linesOf(lines, top)}</g>`;
}

/** Lines of text left of a lane. */
function linesOf(lines: readonly string[], top: number): string {
  return lines.map((line, i) => `<text x="25" y="${px(top + 9 + i * 13)}">${line}</text>`).join("");
}

function barOf(bar: ResponseBar, top: number, scale: Scale): string {
  const { index, tokens, joined_s, end_s, pieces } = bar;
  const from = scale(joined_s);
  const parts = pieces.map(([engine, fromS, toS], i) => {
    const left = scale(fromS);
    const right = scale(toS);
    const before = pieces[i - 1];
    // A move is seen where the colours are alike too.
    const moved =
      before === undefined || before[0] === engine
        ? ""
        : `<path d="M${px(left)} ${px(top)}v5" class="move"/>`;
    return `<rect x="${px(left)}" y="${px(top + 0.5)}" width="${px(Math.max(0.6, right - left))}" height="4" class="e${engine % ENGINE_COLORS}"/>${moved}`;
  });
  const waits = `<path d="M${px(from)} ${px(top + 2.5)}H${px(scale(end_s))}" class="waits"/>`;
  return `<g><title>response ${index}: ${tokens.toLocaleString("en-US")} tokens</title>${waits}${parts.join("")}</g>`;
}

const STEPS_S = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800];

function timeMarks(axisS: number): number[] {
  const stepS = STEPS_S.find((s) => s * 8 >= axisS) ?? 86_400;
  return Array.from({ length: Math.floor(axisS / stepS) + 1 }, (_, i) => i * stepS);
}

function markOf(s: number, [, stepS = 1]: readonly number[]): string {
  if (s === 0) return "0";
  return stepS < 60 ? `${s} s` : `${Math.round(s / 60)} min`;
}

const SHADE_NAMES = Array.from({ length: SHADES }, (_, i) => `w${i}`);
/** Rows of the legend: classes, and what they mean. */
const LEGEND: readonly (readonly (readonly [classes: readonly string[], text: string])[])[] = [
  [
    [SHADE_NAMES, "work, few to many requests running"],
    [["idle"], "idle: no request"],
    [["again"], "recomputing KV that was dropped"],
    [["kv"], "KV in use"],
  ],
  [
    [["tail"], "tail: the last 10 % of the responses"],
    [["e0", "e1"], "responses of the longest group, by engine; a line: it waits"],
  ],
];

function legend(top: number): string {
  let svg = "";
  for (const [i, row] of LEGEND.entries()) {
    const y = top + i * 18;
    let x = 14;
    for (const [classes, text] of row) {
      for (const kind of classes) {
        svg += `<rect x="${px(x)}" y="${px(y - 8)}" width="10" height="9" class="${kind}"/>`;
        x += 10;
      }
      svg += `<text x="${px(x + 5)}" y="${px(y)}">${text}</text>`;
      x += text.length * CHARACTER + 19;
    }
  }
  return svg;
}

const level = (share = 0): number => Math.round(Math.max(0, Math.min(1, share)) * LEVELS);
const percent = (share: number): string => `${Math.round(100 * share)} %`;
/** A coordinate with at most one decimal: a file has thousands of these. */
const px = (value: number): string => String(Math.round(value * 10) / 10);

export function duration(seconds: number): string {
  if (seconds < 20) return `${seconds.toFixed(1)} s`;
  return seconds < 300 ? `${Math.round(seconds)} s` : `${(seconds / 60).toFixed(1)} min`;
}

export function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
}
