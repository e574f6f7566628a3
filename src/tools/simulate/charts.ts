// The charts of a simulation report, as SVG text and small images: self-contained, nothing is loaded. They draw what they
// are given; what it means is html.ts's.

import type { InstanceSeries } from "./recorder.ts";

/** Stops of the viridis colour map (van der Walt and Smith, CC0), dark to bright. */
const VIRIDIS: readonly (readonly [number, number, number])[] = [
  [68, 1, 84],
  [72, 40, 120],
  [62, 74, 137],
  [49, 104, 142],
  [38, 130, 142],
  [31, 158, 137],
  [53, 183, 121],
  [110, 206, 88],
  [181, 222, 43],
  [253, 231, 37],
];
const SHADES = 255;
/** The palette's last entry: nothing there. */
const BLANK = 255;

/** `share` 0..1 as a colour of the map. */
export function colorOf(share: number): readonly [number, number, number] {
  const at = Math.max(0, Math.min(1, share)) * (VIRIDIS.length - 1);
  const i = Math.min(VIRIDIS.length - 2, Math.floor(at));
  const low = VIRIDIS[i] ?? [0, 0, 0];
  const high = VIRIDIS[i + 1] ?? low;
  const mix = (k: 0 | 1 | 2) => Math.round(low[k] + (high[k] - low[k]) * (at - i));
  return [mix(0), mix(1), mix(2)];
}

/** An image of shares 0..1, row by row from the top; NaN is blank. As a data URI of a BMP with a palette. */
function heatImage(width: number, height: number, shares: Float64Array): string {
  const stride = (width + 3) & ~3;
  const header = 54 + 256 * 4;
  const bytes = new Uint8Array(header + stride * height);
  const view = new DataView(bytes.buffer);
  view.setUint16(0, 0x4d42, true);
  view.setUint32(2, bytes.length, true);
  view.setUint32(10, header, true);
  view.setUint32(14, 40, true);
  view.setInt32(18, width, true);
  // Negative: the first row is the top one.
  view.setInt32(22, -height, true);
  view.setUint16(26, 1, true);
  view.setUint16(28, 8, true);
  view.setUint32(46, 256, true);
  for (let i = 0; i < 256; i += 1) {
    const [red, green, blue] = i === BLANK ? [244, 244, 242] : colorOf(i / (SHADES - 1));
    bytes.set([blue, green, red, 0], 54 + i * 4);
  }
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const share = shares[y * width + x] ?? Number.NaN;
      const shade = Math.round(Math.max(0, Math.min(1, share)) * (SHADES - 1));
      bytes[header + y * stride + x] = Number.isNaN(share) ? BLANK : shade;
    }
  }
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return `data:image/bmp;base64,${btoa(text)}`;
}

const COLUMNS = 320;
const WIDTH = 520;
const LEFT = 44;
const PLOT = WIDTH - LEFT - 8;

export interface TimelineChart {
  readonly instances: readonly InstanceSeries[];
  /** The right end of the time axis, the end of the run, and where its tail begins: seconds. */
  readonly axisS: number;
  readonly wallS: number;
  readonly tailS: number;
  readonly runningMax: number;
}

/** KV use of every instance (rows of a heat map) over the running requests (band: least to most, line: mean). */
export function timelineChart(chart: TimelineChart): string {
  const { instances, axisS, wallS, tailS, runningMax } = chart;
  const kvHeight = Math.max(96, Math.min(192, instances.length * 8));
  const lineTop = kvHeight + 16;
  const lineHeight = 80;
  const height = lineTop + lineHeight + 22;
  const image = heatImage(COLUMNS, instances.length, kvGrid(instances, axisS, wallS));
  const x = (s: number) => LEFT + (s / axisS) * PLOT;
  const y = (running: number) => lineTop + lineHeight - (running / runningMax) * lineHeight;
  const tailFrom = x(wallS - tailS);
  const shade = (top: number, tall: number) =>
    `<rect x="${tailFrom.toFixed(1)}" y="${top}" width="${(x(wallS) - tailFrom).toFixed(1)}" height="${tall}" class="tail"/>`;
  return [
    `<svg viewBox="0 0 ${WIDTH} ${height}" role="img">`,
    `<image href="${image}" x="${LEFT}" y="4" width="${PLOT}" height="${kvHeight}" preserveAspectRatio="none" style="image-rendering:pixelated"/>`,
    `<path d="M${tailFrom.toFixed(1)} 4v${kvHeight}" class="edge"/>`,
    `<text x="${LEFT - 6}" y="14" class="axis end">1</text>`,
    `<text x="${LEFT - 6}" y="${kvHeight + 2}" class="axis end">${instances.length}</text>`,
    `<text x="12" y="${kvHeight / 2 + 4}" class="axis up" transform="rotate(-90 12 ${kvHeight / 2 + 4})">instance</text>`,
    shade(lineTop, lineHeight),
    runningPaths(instances, { axisS, wallS, x, y }),
    `<path d="M${LEFT} ${lineTop}V${lineTop + lineHeight}H${LEFT + PLOT}" class="frame"/>`,
    `<text x="${LEFT - 6}" y="${lineTop + 9}" class="axis end">${Math.round(runningMax)}</text>`,
    `<text x="${LEFT - 6}" y="${lineTop + lineHeight}" class="axis end">0</text>`,
    `<text x="12" y="${lineTop + lineHeight / 2}" class="axis up" transform="rotate(-90 12 ${lineTop + lineHeight / 2})">running</text>`,
    timeAxis({ axisS, x, y: lineTop + lineHeight + 14 }),
    "</svg>",
  ].join("");
}

function kvGrid(instances: readonly InstanceSeries[], axisS: number, wallS: number): Float64Array {
  const grid = new Float64Array(COLUMNS * instances.length).fill(Number.NaN);
  for (const [row, series] of instances.entries()) {
    let i = 0;
    for (let column = 0; column < COLUMNS; column += 1) {
      const atS = ((column + 0.5) / COLUMNS) * axisS;
      if (atS > wallS) break;
      i = indexAt(series, atS, i);
      grid[row * COLUMNS + column] = series.kvShare[i] ?? 0;
    }
  }
  return grid;
}

/** The last sample at or before a time, searched from sample `from` on. */
function indexAt(series: InstanceSeries, atS: number, from: number): number {
  let i = from;
  while (i + 1 < series.atS.length && (series.atS[i + 1] ?? 0) <= atS) i += 1;
  return i;
}

function runningPaths(
  instances: readonly InstanceSeries[],
  axes: {
    axisS: number;
    wallS: number;
    x: (s: number) => number;
    y: (running: number) => number;
  },
): string {
  const { axisS, wallS, x, y } = axes;
  const at = instances.map(() => 0);
  const upper: string[] = [];
  const lower: string[] = [];
  const middle: string[] = [];
  for (let column = 0; column < COLUMNS / 2; column += 1) {
    const atS = ((column * 2) / COLUMNS) * axisS;
    if (atS > wallS) break;
    let least = Number.POSITIVE_INFINITY;
    let most = 0;
    let sum = 0;
    for (const [row, series] of instances.entries()) {
      const i = indexAt(series, atS, at[row] ?? 0);
      at[row] = i;
      const running = series.running[i] ?? 0;
      least = Math.min(least, running);
      most = Math.max(most, running);
      sum += running;
    }
    const left = x(atS).toFixed(1);
    upper.push(`${left} ${y(most).toFixed(1)}`);
    lower.unshift(`${left} ${y(least).toFixed(1)}`);
    middle.push(`${left} ${y(sum / instances.length).toFixed(1)}`);
  }
  if (middle.length === 0) return "";
  return `<path d="M${upper.join("L")}L${lower.join("L")}Z" class="band"/><path d="M${middle.join("L")}" class="line"/>`;
}

function timeAxis(options: { axisS: number; x: (s: number) => number; y: number }): string {
  const { axisS, x, y } = options;
  const stepS = niceStep(axisS / 6);
  const marks: string[] = [];
  for (let s = 0; s <= axisS * 1.001; s += stepS) {
    const label = s === 0 ? "0" : `${Math.round(s / 60)} min`;
    marks.push(`<text x="${x(s).toFixed(1)}" y="${y}" class="axis mid">${label}</text>`);
  }
  return marks.join("");
}

/** Whole minutes: 1, 2, 5, 10, 20, 30, 60 ... */
function niceStep(leastS: number): number {
  const minutes = [1, 2, 5, 10, 20, 30, 60, 120, 240, 480, 960];
  return (minutes.find((m) => m * 60 >= leastS) ?? 1440) * 60;
}

export interface Bar {
  readonly name: string;
  readonly value: number;
  readonly ci95: readonly [number, number] | null;
  readonly published: number | null;
}

/** Horizontal bars with their values before them, intervals, and the published value as a diamond. */
export function barChart(bars: readonly Bar[]): string {
  const rowHeight = 30;
  const width = 760;
  const left = 190;
  const highest = bars.reduce(
    (most, bar) => Math.max(most, bar.value, bar.ci95?.[1] ?? 0, bar.published ?? 0),
    1,
  );
  const scale = (width - left - 20) / highest;
  const x = (value: number) => left + Math.max(0, value) * scale;
  const height = bars.length * rowHeight + 6;
  const rows = bars.map((bar, i) => {
    const top = i * rowHeight + 6;
    const middle = top + 10;
    const parts = [
      `<text x="${left - 56}" y="${middle + 5}" class="name end">${bar.name}</text>`,
      `<text x="${left - 10}" y="${middle + 5}" class="name strong end">${bar.value.toFixed(2)}</text>`,
      `<rect x="${left}" y="${top}" width="${(x(bar.value) - left).toFixed(1)}" height="20" rx="3" class="bar"/>`,
    ];
    if (bar.ci95 !== null && bar.ci95[1] > bar.ci95[0]) {
      const [low, high] = bar.ci95;
      parts.push(
        `<path d="M${x(low).toFixed(1)} ${middle}H${x(high).toFixed(1)}" class="whisker"/>`,
      );
    }
    if (bar.published !== null) {
      const at = x(bar.published);
      parts.push(`<path d="M${at.toFixed(1)} ${middle - 7}l7 7l-7 7l-7 -7z" class="paper"/>`);
    }
    return parts.join("");
  });
  return `<svg viewBox="0 0 ${width} ${height}" class="bars" role="img">${rows.join("")}</svg>`;
}

/** Groups left to right by mean length, their responses bottom to top by length; colour: the length. */
export function lengthHeatMap(lengths: readonly (readonly number[])[], tokensMax: number): string {
  const groups = lengths
    .map((group) => [...group].sort((a, b) => b - a))
    .sort((a, b) => sumOf(a) / a.length - sumOf(b) / b.length);
  const rows = groups.reduce((most, group) => Math.max(most, group.length), 1);
  const grid = new Float64Array(groups.length * rows).fill(Number.NaN);
  for (const [column, group] of groups.entries()) {
    for (const [i, length] of group.entries()) {
      const row = rows - group.length + i;
      grid[row * groups.length + column] = length / tokensMax;
    }
  }
  const image = heatImage(groups.length, rows, grid);
  return `<img class="lengths" alt="lengths of all responses" src="${image}"/>`;
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}
