// Charts of iterations, real and simulated, as SVG text and small images: self-contained, nothing is loaded.

/** One engine over time. Parallel arrays, ascending in time; a value holds until the next one. */
export interface EngineSeries {
  readonly atS: readonly number[];
  /** KV in use, 0..1. */
  readonly kvShare: readonly number[];
  readonly running: readonly number[];
}

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
export const CHART_WIDTH = 520;
const LEFT = 44;
const PLOT = CHART_WIDTH - LEFT - 8;
const STRIP = 80;

/** The right end of the time axis, the end of the run, and its tail: seconds. */
export interface Times {
  readonly axisS: number;
  readonly wallS: number;
  readonly tailS: number;
}

const xOf = (s: number, axisS: number): number => LEFT + (s / axisS) * PLOT;

export interface TimelineChart extends Times {
  readonly engines: readonly EngineSeries[];
  readonly runningMax: number;
  /** Tokens of a response in a step, in even columns from 0 to `wallS`; null: nothing was drafted. */
  readonly tokensPerStep: { readonly values: readonly number[]; readonly most: number } | null;
}

/** KV use of every engine (rows of a heat map), running requests (band: least to most, line: mean), and drafts. */
export function timelineChart(chart: TimelineChart): string {
  const { engines, axisS, wallS, tailS, runningMax, tokensPerStep } = chart;
  const kvHeight = Math.max(64, Math.min(192, engines.length * 8));
  const runningTop = kvHeight + 16;
  const draftTop = runningTop + STRIP + 12;
  const bottom = tokensPerStep === null ? runningTop + STRIP : draftTop + STRIP;
  const image = heatImage(COLUMNS, engines.length, kvGrid(engines, axisS, wallS));
  const tailFrom = xOf(wallS - tailS, axisS).toFixed(1);
  const tail = (top: number): string =>
    `<rect x="${tailFrom}" y="${top}" width="${((tailS / axisS) * PLOT).toFixed(1)}" height="${STRIP}" class="tail"/>`;
  return [
    `<svg viewBox="0 0 ${CHART_WIDTH} ${bottom + 22}" role="img" aria-label="KV, running requests and tokens a step over time">`,
    `<image href="${image}" x="${LEFT}" y="4" width="${PLOT}" height="${kvHeight}" preserveAspectRatio="none" style="image-rendering:pixelated"/>`,
    `<path d="M${tailFrom} 4v${kvHeight}" class="edge"/>`,
    axisTexts(4, kvHeight, "KV", ["1", String(engines.length)]),
    tail(runningTop),
    runningPaths(engines, { axisS, wallS, top: runningTop, most: runningMax }),
    frame(runningTop, "running", String(Math.round(runningMax)), "0"),
    ...(tokensPerStep === null
      ? []
      : [
          tail(draftTop),
          draftPath(tokensPerStep, { axisS, wallS, top: draftTop }),
          frame(draftTop, "tokens a step", tokensPerStep.most.toFixed(1), "1"),
        ]),
    timeAxis(axisS, bottom + 14),
    "</svg>",
  ].join("");
}

function frame(top: number, name: string, high: string, low: string): string {
  const line = `<path d="M${LEFT} ${top}V${top + STRIP}H${LEFT + PLOT}" class="frame"/>`;
  return line + axisTexts(top, STRIP, name, [high, low]);
}

function axisTexts(top: number, height: number, name: string, ends: [string, string]): string {
  const middle = top + height / 2;
  const [high, low] = ends;
  return [
    `<text x="${LEFT - 6}" y="${top + 9}" class="axis end">${high}</text>`,
    `<text x="${LEFT - 6}" y="${top + height}" class="axis end">${low}</text>`,
    `<text x="12" y="${middle}" class="axis mid" transform="rotate(-90 12 ${middle})">${name}</text>`,
  ].join("");
}

function kvGrid(engines: readonly EngineSeries[], axisS: number, wallS: number): Float64Array {
  const grid = new Float64Array(COLUMNS * engines.length).fill(Number.NaN);
  for (const [row, series] of engines.entries()) {
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
function indexAt(series: EngineSeries, atS: number, from: number): number {
  let i = from;
  while (i + 1 < series.atS.length && (series.atS[i + 1] ?? 0) <= atS) i += 1;
  return i;
}

function runningPaths(
  engines: readonly EngineSeries[],
  at: {
    readonly axisS: number;
    readonly wallS: number;
    readonly top: number;
    readonly most: number;
  },
): string {
  const { axisS, wallS, top, most: runningMax } = at;
  const y = (running: number): string => (top + STRIP * (1 - running / runningMax)).toFixed(1);
  const samples = engines.map(() => 0);
  const upper: string[] = [];
  const lower: string[] = [];
  const middle: string[] = [];
  for (let column = 0; column < COLUMNS / 2; column += 1) {
    const atS = ((column * 2) / COLUMNS) * axisS;
    if (atS > wallS) break;
    const running = engines.map((series, row) => {
      const i = indexAt(series, atS, samples[row] ?? 0);
      samples[row] = i;
      return series.running[i] ?? 0;
    });
    const left = xOf(atS, axisS).toFixed(1);
    upper.push(`${left} ${y(running.reduce((most, n) => Math.max(most, n), 0))}`);
    lower.unshift(`${left} ${y(running.reduce((least, n) => Math.min(least, n)))}`);
    middle.push(`${left} ${y(sumOf(running) / engines.length)}`);
  }
  if (middle.length === 0) return "";
  return `<path d="M${upper.join("L")}L${lower.join("L")}Z" class="band"/><path d="M${middle.join("L")}" class="line"/>`;
}

function draftPath(
  { values, most }: { readonly values: readonly number[]; readonly most: number },
  at: { readonly axisS: number; readonly wallS: number; readonly top: number },
): string {
  const { axisS, wallS, top } = at;
  const points = values.map((value, i) => {
    const high = (value - 1) / Math.max(1e-9, most - 1);
    const left = xOf(((i + 0.5) * wallS) / values.length, axisS).toFixed(1);
    return `${left} ${(top + STRIP * (1 - Math.max(0, high))).toFixed(1)}`;
  });
  return points.length === 0 ? "" : `<path d="M${points.join("L")}" class="line"/>`;
}

export interface ResponseBar {
  readonly name: string;
  /** Spans in which the response ran, in seconds, and the index of the engine. */
  readonly pieces: readonly {
    readonly engine: number;
    readonly from: number;
    readonly to: number;
  }[];
}

/** Engines' colours in bars, in turn: the palette of Okabe and Ito, distinct to colour-blind eyes. */
export const ENGINE_COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const BAR_ROW = 15;

/** One row for each response: where it ran when. A gap is time spent waiting. */
export function responseBars(bars: readonly ResponseBar[], { axisS, wallS, tailS }: Times): string {
  const bottom = 4 + bars.length * BAR_ROW;
  const tailFrom = xOf(wallS - tailS, axisS);
  const rows = bars.map(({ name, pieces }, i) => {
    const y = 4 + i * BAR_ROW;
    const parts = pieces.map(({ engine, from, to }) => {
      const [left, right] = [xOf(from, axisS), xOf(to, axisS)];
      const color = ENGINE_COLORS[engine % ENGINE_COLORS.length];
      return `<rect x="${left.toFixed(1)}" y="${y}" width="${Math.max(0.4, right - left).toFixed(1)}" height="10" fill="${color}"/>`;
    });
    const end = xOf(pieces.at(-1)?.to ?? 0, axisS);
    // The name stands where the bar leaves room.
    const [x, side] = end > LEFT + 0.6 * PLOT ? [LEFT + 4, "over"] : [end + 4, ""];
    return `${parts.join("")}<text x="${x.toFixed(1)}" y="${y + 9}" class="axis ${side}">${name}</text>`;
  });
  return [
    `<svg viewBox="0 0 ${CHART_WIDTH} ${bottom + 20}" role="img" aria-label="where the last responses ran">`,
    `<rect x="${tailFrom.toFixed(1)}" y="2" width="${((tailS / axisS) * PLOT).toFixed(1)}" height="${bottom - 2}" class="tail"/>`,
    ...rows,
    timeAxis(axisS, bottom + 12),
    "</svg>",
  ].join("");
}

function timeAxis(axisS: number, y: number): string {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800];
  const stepS = steps.find((s) => s * 6 >= axisS) ?? 86_400;
  const marks: string[] = [];
  for (let s = 0; s <= axisS * 1.001; s += stepS) {
    const label = s === 0 ? "0" : stepS < 60 ? `${s} s` : `${Math.round(s / 60)} min`;
    const side = s > 0.97 * axisS ? "end" : "mid";
    marks.push(
      `<text x="${xOf(s, axisS).toFixed(1)}" y="${y}" class="axis ${side}">${label}</text>`,
    );
  }
  return marks.join("");
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}
