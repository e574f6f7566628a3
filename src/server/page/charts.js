// @ts-check
// The charts over time, drawn by uPlot: throughput and expected end of the iteration, the last iterations.
// The charts of one iteration share their cursor and their zoom.

/** As the server keeps of one iteration. */
const SAMPLES_MAX = 1200;
const AXIS_HEIGHT = 24;
/** @typedef {(number | null)[]} Column */
/** All charts of the iteration, in the order of the page. @type {{ chart: uPlot, columns: () => Column[] }[]} */
let iterationCharts = [];
/** @type {uPlot | null} */
let historyChart = null;
let isZoomed = false;

/** @typedef {"tail" | "kv" | "run" | "line" | "edge" | "ink" | "soft"} Color */
/** @param {Color} name */
const stroke = (name) => () => colorsOf()[name];
/** @param {Color} name */
const faint = (name) => () => `${colorsOf()[name]}38`;
/**
 * Minutes and seconds: what is a minute apart differs.
 * @param {number} s
 */
const clock = (s) =>
  s < 90
    ? `${Math.round(s)} s`
    : s < 5400
      ? `${Math.floor(Math.round(s) / 60)}:${String(Math.round(s) % 60).padStart(2, "0")}`
      : `${(s / 3600).toFixed(1)} h`;
/** @type {(part: number, whole: number) => string} */
const share = (part, whole) => `${Math.round((100 * part) / Math.max(1e-9, whole))} %`;
/** @type {uPlot.Series.Value} */
const inSeconds = (_, value) => (value == null ? "–" : clock(value));
const compact = new Intl.NumberFormat("en", { notation: "compact" });
const short = (/** @type {number} */ value) => compact.format(value);

/**
 * @param {uPlot.Axis} options
 * @returns {uPlot.Axis}
 */
function axis(options) {
  return {
    stroke: stroke("soft"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: stroke("line"), width: 1 },
    ticks: { show: false },
    ...options,
  };
}

/**
 * `host`: an empty element whose width the chart takes. Its keys move the cursor and end a zoom.
 * @param {HTMLElement} host
 * @param {Omit<uPlot.Options, "width">} options
 */
function newChart(host, options) {
  const width = () => Math.max(80, host.clientWidth);
  const chart = new uPlot(
    { width: width(), ...options },
    [[], ...options.series.slice(1).map(() => [])],
    host,
  );
  new ResizeObserver(() => chart.setSize({ width: width(), height: options.height })).observe(host);
  host.tabIndex = 0;
  host.onkeydown = (event) => {
    const step = stepOf(event);
    if (event.key === "Escape") endZoom();
    if (step === 0 || chart.data[0].length === 0) return;
    event.preventDefault();
    const last = chart.data[0].length - 1;
    const at = Math.max(0, Math.min(last, (chart.cursor.idx ?? last + 1) + step));
    chart.setCursor({ left: chart.valToPos(chart.data[0][at] ?? 0, "x"), top: 1 });
    const values = [...chart.root.querySelectorAll(".u-legend tr:not(.quiet)")].map((row) =>
      [...row.children].map((cell) => cell.textContent).join(" "),
    );
    host.setAttribute("aria-description", values.join(", "));
  };
  host.onblur = () => chart.setCursor({ left: -10, top: -10 });
  return chart;
}

/**
 * The legend shows the values under the cursor; without one, the last values.
 * @param {uPlot} chart
 */
function showLast(chart) {
  if ((chart.cursor.left ?? -1) < 0)
    chart.setLegend({ idx: Math.max(0, chart.data[0].length - 1) }, false);
}

function endZoom() {
  isZoomed = false;
  areChartsDirty = true;
  dueDraw();
}

/**
 * The options of a chart over the time of the iteration.
 * @param {Omit<uPlot.Options, "width">} options
 * @returns {Omit<uPlot.Options, "width">}
 */
function overTime(options) {
  return {
    cursor: {
      sync: { key: "iteration", scales: ["x", null] },
      y: false,
      points: { size: 5 },
      drag: { x: true, y: false },
    },
    hooks: {
      ready: [({ over }) => over.addEventListener("dblclick", endZoom)],
      setSelect: [
        ({ select }) => {
          isZoomed ||= select.width > 0;
        },
      ],
      setLegend: [showLast],
    },
    ...options,
    scales: { x: { time: false, range: rangeOfTime }, ...options.scales },
    series: [
      { label: "at", value: inSeconds },
      // Behind the others.
      {
        label: "tail",
        class: "quiet",
        scale: "tail",
        ...pathsOf(uPlot.paths.stepped?.({ align: -1 })),
        width: 0,
        fill: stroke("tail"),
        points: { show: false },
      },
      ...options.series,
    ],
  };
}

/** @param {uPlot.Series.PathBuilder | undefined} paths */
function pathsOf(paths) {
  return paths === undefined ? {} : { paths };
}

/** @type {(chart: uPlot, low: number | null, high: number | null) => uPlot.Range.MinMax} */
function rangeOfTime(_, low, high) {
  if (isZoomed && low !== null) return [low, high];
  const end = samples.at(-1)?.at ?? 0;
  return [Math.min(samples[0]?.at ?? 0, Math.max(0, end - 20)), Math.max(20, end)];
}

/** @type {uPlot.Scales} */
const tailScale = { tail: { range: [0, 1] } };
/** @type {uPlot.Axis.DynamicValues} */
const wholeSeconds = (_, splits) => splits.map((at) => (at % 1 === 0 ? clock(at) : ""));
/** @type {uPlot.Axis.DynamicValues} */
const inShort = (_, splits) => splits.map(short);
/** @type {uPlot.Series.Value} */
const rounded = (_, value) => (value == null ? "–" : number(value));
const timeAxis = () => axis({ size: AXIS_HEIGHT, values: wholeSeconds });
/** @type {(chart: uPlot, low: number | null, high: number | null) => uPlot.Range.MinMax} */
const fromZero = (_, __, high) => [0, Math.max(1, (high ?? 0) * 1.08)];

/** @param {HTMLElement} host */
function rateChart(host) {
  return newChart(
    host,
    overTime({
      height: 150,
      scales: { y: { range: fromZero }, ...tailScale },
      axes: [timeAxis(), axis({ size: 48, values: inShort })],
      series: [
        {
          label: "tokens/s",
          stroke: stroke("run"),
          width: 1.5,
          points: { show: false },
          value: rounded,
        },
      ],
    }),
  );
}

/**
 * When the iteration was expected to end, as it went: the band closes on the end.
 * @param {HTMLElement} host
 */
function etaChart(host) {
  const edge = { stroke: stroke("kv"), width: 1, points: { show: false }, value: inSeconds };
  return newChart(
    host,
    overTime({
      height: 150,
      scales: { y: { range: fromZero }, ...tailScale },
      axes: [timeAxis(), axis({ size: 48, values: wholeSeconds })],
      series: [
        { ...edge, label: "end expected from" },
        { ...edge, label: "to" },
        {
          label: "now",
          class: "quiet",
          stroke: stroke("soft"),
          dash: [3, 3],
          width: 1,
          points: { show: false },
        },
      ],
      bands: [{ series: [3, 2], fill: faint("kv") }],
    }),
  );
}

function buildCharts() {
  if (iterationCharts.length > 0) return;
  iterationCharts = [
    { chart: rateChart($("rates")), columns: () => [samples.map((one) => one.rate)] },
    { chart: etaChart($("ends")), columns: endColumns },
  ];
}

function endColumns() {
  const end = (/** @type {number} */ at, /** @type {number | null} */ left) =>
    left === null ? null : at + left;
  return [
    samples.map(({ at, low }) => end(at, low)),
    samples.map(({ at, high }) => end(at, high)),
    samples.map(({ at }) => at),
  ];
}

/** Drawn anew once for each sample, and not for each message. */
function drawCharts() {
  buildCharts();
  const at = samples.map((one) => one.at);
  const tail = samples.map(({ isTail }) => (isTail ? 1 : null));
  for (const { chart, columns } of iterationCharts) {
    chart.setData([at, tail, ...columns()], !isZoomed);
    if (isZoomed) chart.redraw();
    showLast(chart);
  }
}

/** @param {HTMLElement} host */
function newHistory(host) {
  const bars = pathsOf(uPlot.paths.bars?.({ size: [0.7, 36] }));
  /** @type {uPlot.Axis.DynamicValues} */
  const whole = (_, splits) => splits.map((at) => (at % 1 === 0 ? at : ""));
  return newChart(host, {
    height: 170,
    cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
    hooks: { setLegend: [showLast] },
    scales: {
      x: {
        time: false,
        range: (_, low, high) => [(low ?? 1) - 0.6, Math.max((low ?? 1) + 9, high ?? 1) + 0.6],
      },
      y: { range: fromZero },
      rate: { range: fromZero },
    },
    axes: [
      axis({ size: AXIS_HEIGHT, values: whole }),
      axis({ size: 48, values: (_, splits) => splits.map(clock) }),
      axis({
        scale: "rate",
        side: 1,
        size: 48,
        grid: { show: false },
        values: inShort,
      }),
    ],
    series: [
      { label: "iteration" },
      {
        label: "wall time",
        stroke: stroke("kv"),
        fill: stroke("kv"),
        ...bars,
        points: { show: false },
        value: inSeconds,
      },
      {
        label: "tail",
        stroke: stroke("edge"),
        fill: stroke("edge"),
        ...bars,
        points: { show: false },
        value: (chart, value, _, at) =>
          value == null ? "–" : `${clock(value)}, ${share(value, chart.data[1]?.[at ?? 0] ?? 0)}`,
      },
      {
        label: "tokens/s",
        scale: "rate",
        stroke: stroke("ink"),
        width: 1.5,
        points: { show: true, size: 5 },
        value: rounded,
      },
    ],
  });
}

/** @param {Live} live */
function drawHistory({ iterations }) {
  const isEmpty = iterations.length === 0;
  $("history").hidden = isEmpty;
  $("links").hidden = isEmpty;
  $("no-history").hidden = !isEmpty;
  if (isEmpty) return;
  const chart = historyChart ?? newHistory($("history"));
  historyChart = chart;
  $("history").onclick = () => {
    const chosen = chart.data[0][chart.cursor.idx ?? -1];
    if (chosen !== undefined) location.href = addressOf(chosen);
  };
  const numbers = iterations.map((one) => one.number);
  if (chart.data[0].at(-1) === numbers.at(-1)) return;
  chart.setData([
    numbers,
    iterations.map((one) => one.wall_s),
    iterations.map((one) => one.tail_s),
    iterations.map((one) => one.tokens_per_s),
  ]);
  showLast(chart);
  drawHistoryLinks(numbers);
}

/**
 * The address of the page with an iteration; null: the current one.
 * @param {number | null} iteration
 */
function addressOf(iteration) {
  return urlOf("", iteration === null ? {} : { iteration }).href;
}

/** @param {readonly number[]} numbers */
function drawHistoryLinks(numbers) {
  $("numbers").replaceChildren(
    ...numbers.toReversed().map((one) => {
      const link = document.createElement("a");
      link.href = addressOf(one);
      link.textContent = String(one);
      if (String(one) === EARLIER) link.setAttribute("aria-current", "page");
      return link;
    }),
  );
}

/** After the colours have changed: legends do not follow them. */
function renewCharts() {
  for (const { chart } of iterationCharts) chart.destroy();
  iterationCharts = [];
  historyChart?.destroy();
  historyChart = null;
  areChartsDirty = true;
  if (live !== null) drawHistory(live);
}
