// The charts over time, drawn by uPlot: throughput and expected end of the iteration, its workers, the last iterations.
// The charts of one iteration share their cursor and their zoom.

/** As the server keeps of one iteration. */
const SAMPLES_MAX = 1200;
const STRIP_HEIGHT = 64;
const AXIS_HEIGHT = 24;
/** All charts of the iteration, in the order of the page. */
let iterationCharts = [];
let historyChart = null;
let chartedWorkers = "";
let isZoomed = false;

const stroke = (name) => () => colorsOf()[name];
const faint = (name) => () => `${colorsOf()[name]}38`;
/** Minutes and seconds: what is a minute apart differs. */
const clock = (s) =>
  s < 90
    ? `${Math.round(s)} s`
    : s < 5400
      ? `${Math.floor(Math.round(s) / 60)}:${String(Math.round(s) % 60).padStart(2, "0")}`
      : `${(s / 3600).toFixed(1)} h`;
const inSeconds = (_, value) => (value == null ? "–" : clock(value));
const compact = new Intl.NumberFormat("en", { notation: "compact" });
const short = (value) => compact.format(value);

function axis(options) {
  return {
    stroke: stroke("soft"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: stroke("line"), width: 1 },
    ticks: { show: false },
    ...options,
  };
}

/** `host`: an empty element whose width the chart takes. Its keys move the cursor and end a zoom. */
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
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") endZoom();
    if (step === undefined || chart.data[0].length === 0) return;
    event.preventDefault();
    const last = chart.data[0].length - 1;
    const at = Math.max(0, Math.min(last, (chart.cursor.idx ?? last + 1) + step));
    chart.setCursor({ left: chart.valToPos(chart.data[0][at], "x"), top: 1 });
    const legend =
      chart.root.querySelector(".u-legend") ?? host.parentElement.querySelector(".u-legend");
    const values = [...legend.rows].filter(({ classList }) => !classList.contains("quiet"));
    host.setAttribute(
      "aria-description",
      values.map(({ cells }) => [...cells].map((cell) => cell.textContent).join(" ")).join(", "),
    );
  };
  host.onblur = () => chart.setCursor({ left: -10, top: -10 });
  return chart;
}

/** The legend shows the values under the cursor; without one, the last values. */
function showLast(chart) {
  if ((chart.cursor.left ?? -1) < 0)
    chart.setLegend({ idx: Math.max(0, chart.data[0].length - 1) }, false);
}

function endZoom() {
  isZoomed = false;
  areChartsDirty = true;
  dueDraw();
}

/** Of a chart over the time of the iteration. */
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
      { label: "at", value: inSeconds, class: options.isTimeHidden ? "quiet" : undefined },
      // Behind the others.
      {
        label: "tail",
        class: "quiet",
        scale: "tail",
        paths: uPlot.paths.stepped({ align: -1 }),
        width: 0,
        fill: stroke("tail"),
        points: { show: false },
      },
      ...options.series,
    ],
  };
}

function rangeOfTime(_, low, high) {
  if (isZoomed && low !== null) return [low, high];
  const end = samples.at(-1)?.at ?? 0;
  return [Math.min(samples[0]?.at ?? 0, Math.max(0, end - 20)), Math.max(20, end)];
}

const tailScale = { tail: { range: [0, 1] } };
const wholeSeconds = (_, splits) => splits.map((at) => (at % 1 === 0 ? clock(at) : ""));
const timeAxis = (show = true) => axis({ show, size: AXIS_HEIGHT, values: wholeSeconds });
const fromZero = (_, __, high) => [0, Math.max(1, (high ?? 0) * 1.08)];

function rateChart(host) {
  return newChart(
    host,
    overTime({
      height: 150,
      scales: { y: { range: fromZero }, ...tailScale },
      axes: [timeAxis(), axis({ size: 48, values: (_, splits) => splits.map(short) })],
      series: [
        {
          label: "tokens/s",
          stroke: stroke("run"),
          width: 1.5,
          points: { show: false },
          value: (_, value) => (value == null ? "–" : number(value)),
        },
      ],
    }),
  );
}

/** When the iteration was expected to end, as it went: the band closes on the end. */
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

/** KV and running requests of one worker. */
function stripChart(host, { values, slots, isLast }) {
  return newChart(
    host,
    overTime({
      isTimeHidden: true,
      height: STRIP_HEIGHT + (isLast ? AXIS_HEIGHT : 0),
      padding: [4, 4, 2, 0],
      legend: { mount: (_, legend) => values.append(legend) },
      scales: {
        kv: { range: [0, 1.02] },
        run: { range: [0, Math.max(1, slots) * 1.02] },
        ...tailScale,
      },
      axes: [
        timeAxis(isLast),
        axis({ scale: "kv", size: 44, splits: [0, 0.5, 1], values: ["", "", "100 %"] }),
      ],
      series: [
        {
          label: "KV",
          scale: "kv",
          stroke: stroke("kv"),
          fill: faint("kv"),
          width: 1.5,
          points: { show: false },
          value: (_, value) => (value == null ? "–" : `${Math.round(100 * value)} %`),
        },
        {
          label: "running",
          scale: "run",
          stroke: stroke("run"),
          width: 1.5,
          points: { show: false },
          value: (_, value) => (value == null ? "–" : `${value} of ${slots}`),
        },
      ],
    }),
  );
}

/** Another set of workers needs other charts. */
function buildCharts() {
  const names = progress.workers.map(({ worker, slots }) => `${worker}:${slots}`).join();
  if (names === chartedWorkers) return;
  chartedWorkers = names;
  for (const { chart } of iterationCharts) chart.destroy();
  iterationCharts = [
    { chart: rateChart($("rates")), columns: () => [samples.map((one) => one.rate)] },
    { chart: etaChart($("ends")), columns: endColumns },
  ];
  $("strips").replaceChildren();
  for (const [i, { worker, slots }] of progress.workers.entries()) {
    const strip = document.createElement("div");
    strip.className = "strip";
    strip.id = `worker-${worker}`;
    strip.innerHTML =
      '<div class="name"><span></span><b class="bad"></b></div><div class="plot" role="img"></div><div class="values"></div>';
    $("strips").append(strip);
    const [, host, values] = strip.children;
    const isLast = i === progress.workers.length - 1;
    const of = (name) => samples.map((sample) => sample.workers.get(worker)?.[name] ?? null);
    iterationCharts.push({
      chart: stripChart(host, { values, slots, isLast }),
      columns: () => [of("kv"), of("running")],
    });
  }
}

function endColumns() {
  const of = (name) => samples.map((one) => (one[name] === null ? null : one.at + one[name]));
  return [of("low"), of("high"), samples.map(({ at }) => at)];
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

/** Names and states, which change between samples. */
function drawStripNames() {
  for (const { worker, kv_tokens_used, kv_tokens, running, slots } of progress.workers) {
    const [label, host] = $(`worker-${worker}`).children;
    const { state = "ready", reason = null } = workers.get(worker) ?? {};
    write(label.firstChild, workerName(worker));
    label.title = `${workerName(worker)}${reason === null ? "" : `: ${reason}`}`;
    write(label.lastChild, state === "ready" ? "" : state);
    const share = Math.round((100 * kv_tokens_used) / Math.max(1, kv_tokens));
    const use = EARLIER === null ? `: ${share} % of KV in use, ${running} of ${slots} slots` : "";
    host.setAttribute("aria-label", `${workerName(worker)}${use}`);
  }
}

function newHistory(host) {
  const bars = uPlot.paths.bars({ size: [0.7, 36] });
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
      axis({ size: 48, values: (_, splits) => splits.map((at) => clock(at)) }),
      axis({
        scale: "rate",
        side: 1,
        size: 48,
        grid: { show: false },
        values: (_, splits) => splits.map(short),
      }),
    ],
    series: [
      { label: "iteration" },
      {
        label: "wall time",
        stroke: stroke("kv"),
        fill: stroke("kv"),
        paths: bars,
        points: { show: false },
        value: inSeconds,
      },
      {
        label: "tail",
        stroke: stroke("edge"),
        fill: stroke("edge"),
        paths: bars,
        points: { show: false },
        value: (chart, value, _, at) =>
          value == null
            ? "–"
            : `${clock(value)}, ${Math.round((100 * value) / Math.max(1e-9, chart.data[1][at]))} %`,
      },
      {
        label: "tokens/s",
        scale: "rate",
        stroke: stroke("ink"),
        width: 1.5,
        points: { show: true, size: 5 },
        value: (_, value) => (value == null ? "–" : number(value)),
      },
      {
        label: "time estimates that held",
        show: true,
        scale: "share",
        paths: () => null,
        points: { show: false },
        value: (_, value) => (value == null ? "–" : `${Math.round(100 * value)} %`),
      },
    ],
  });
}

/** How good the estimates of the last iteration were. */
function heldText({ iterations }) {
  const share = iterations.at(-1)?.eta_inside ?? null;
  return share === null ? "" : `${Math.round(100 * share)} % held in the last iteration`;
}

function drawHistory() {
  const { iterations } = live;
  const isEmpty = iterations.length === 0;
  $("history").hidden = isEmpty;
  $("links").hidden = isEmpty;
  $("no-history").hidden = !isEmpty;
  if (isEmpty) return;
  historyChart ??= newHistory($("history"));
  $("history").onclick = () => {
    const chosen = historyChart.data[0][historyChart.cursor.idx];
    if (chosen !== undefined) location.href = addressOf(chosen);
  };
  const of = (name) => iterations.map((one) => one[name]);
  if (historyChart.data[0].at(-1) === iterations.at(-1).number) return;
  historyChart.setData([
    of("number"),
    of("wall_s"),
    of("tail_s"),
    of("tokens_per_s"),
    of("eta_inside"),
  ]);
  showLast(historyChart);
  drawHistoryLinks(of("number"));
}

/** The address of the page with an iteration; null: the current one. */
function addressOf(iteration) {
  const url = urlOf("");
  if (iteration !== null) url.searchParams.set("iteration", iteration);
  return url.href;
}

function drawHistoryLinks(numbers) {
  $("numbers").replaceChildren(
    ...numbers.toReversed().map((one) => {
      const link = document.createElement("a");
      link.href = addressOf(one);
      link.textContent = one;
      if (String(one) === EARLIER) link.setAttribute("aria-current", "page");
      return link;
    }),
  );
}

/** After the colours have changed: legends do not follow them. */
function renewCharts() {
  chartedWorkers = "";
  historyChart?.destroy();
  historyChart = null;
  areChartsDirty = true;
  if (live !== null) drawHistory();
}
