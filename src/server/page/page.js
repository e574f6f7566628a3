// What the page knows of the rollout, from /v1/stream and from /foretoken/live, and when it is drawn. An iteration that
// is over is read once, and nothing of it changes.

const GROUPS_MAX = 4096;
let socket = null;
let retryMs = 500;
let isDrawDue = false;
let areChartsDirty = false;

function connect() {
  const url = urlOf("v1/stream");
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(url);
  socket.onopen = () => {
    retryMs = 500;
    groups.clear();
    responses.clear();
    drawState();
    send({ subscribe: { progress: true, snapshot: true } });
    if (followed !== null) follow(followed);
    void look(true);
  };
  socket.onmessage = ({ data }) => take(JSON.parse(data));
  socket.onclose = ({ reason }) => {
    $("state").textContent = reason || "not connected; trying again";
    $("state").classList.remove("on");
    setTimeout(connect, retryMs);
    retryMs = Math.min(10_000, retryMs * 2);
  };
}

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function take(frame) {
  if (frame.subscription === "progress") takeProgress(frame);
  dueDraw();
}

function takeProgress(frame) {
  for (const one of frame.joined ?? []) {
    const group = groups.get(one.group) ?? {
      name: one.group,
      responses: [],
      open: 0,
      estimate: null,
    };
    groups.set(one.group, group);
    const known = responses.get(one.request);
    const response = known ?? { id: one.request, group, finish: null };
    Object.assign(response, { index: one.index, length: one.offset });
    if (known === undefined) {
      group.responses.push(response);
      group.open += 1;
    }
    responses.set(one.request, response);
  }
  for (const { request } of frame.restarted ?? []) set(request, { length: 0 });
  for (const { request, length } of frame.lengths ?? []) set(request, { length });
  for (const one of frame.finished ?? []) {
    const response = responses.get(one.request);
    if (response !== undefined && response.finish === null) response.group.open -= 1;
    set(one.request, { length: one.length, finish: one.finish_reason });
  }
  if (frame.joined || frame.lengths || frame.finished || frame.restarted) isMapDirty = true;
  if (frame.progress === undefined) return;
  const isNext = progress !== null && frame.progress.iteration !== progress.iteration;
  progress = frame.progress;
  if (isNext) {
    samples = [];
    isZoomed = false;
    areChartsDirty = true;
    forget(0);
  }
  if (groups.size > GROUPS_MAX) forget(GROUPS_MAX);
  const at = progress.elapsed_s;
  const last = samples.at(-1);
  if (progress.running + progress.waiting > 0 && (last === undefined || at - last.at >= 1)) {
    samples.push({
      at,
      isTail: progress.is_tail,
      rate: progress.tokens_per_s,
      low: progress.eta_low_s,
      high: progress.eta_high_s,
      workers: new Map(
        progress.workers.map((one) => [
          one.worker,
          {
            running: one.running,
            kv: one.kv_tokens === 0 ? 0 : one.kv_tokens_used / one.kv_tokens,
          },
        ]),
      ),
    });
    if (samples.length > SAMPLES_MAX) samples = samples.filter((_, i) => i % 2 === 0);
    areChartsDirty = true;
  }
}

/** Finished groups, the oldest first, until no more than `max` groups are left. Those that run stay. */
function forget(max) {
  for (const [name, group] of groups) {
    if (groups.size <= max) return;
    if (group.open > 0) continue;
    for (const { id } of group.responses) responses.delete(id);
    groups.delete(name);
  }
  isMapDirty = true;
}

function set(request, fields) {
  const response = responses.get(request);
  if (response !== undefined) Object.assign(response, fields);
}

/** `all`: also the iteration so far, which a page that comes later has not seen. */
async function look(all) {
  try {
    const [report, latest] = await Promise.all([
      json("foretoken/workers"),
      json("foretoken/live", all ? {} : { samples: "false" }),
    ]);
    for (const one of report.workers) workers.set(one.worker, one);
    live = latest;
    if (all) {
      samples = samplesOf(latest.samples);
      areChartsDirty = true;
      addComplete(
        await json(`foretoken/iterations/${latest.iteration}`).catch(() => ({ groups: [] })),
      );
    }
    takeEstimates(latest.estimates);
    drawState();
    drawLive();
    if (followed !== null) await drawDetail(followed);
  } catch {
    // The socket's state shows that there is no connection.
  }
  dueDraw();
}

function samplesOf(columns) {
  const ids = Object.keys(columns.workers).map(Number);
  return columns.at_s.map((at, i) => ({
    at,
    isTail: columns.tail[i],
    rate: columns.tokens_per_s[i],
    low: columns.eta_low_s[i],
    high: columns.eta_high_s[i],
    workers: new Map(
      ids.flatMap((id) => {
        const { running, kv } = columns.workers[id];
        return running[i] === null ? [] : [[id, { running: running[i], kv: kv[i] }]];
      }),
    ),
  }));
}

/** Groups that the stream no longer has. */
function addComplete({ groups: complete }) {
  for (const { group: name, requests, lengths, finish_reasons } of complete) {
    if (groups.has(name)) continue;
    const group = { name, responses: [], open: 0, estimate: null };
    groups.set(name, group);
    for (const [index, id] of requests.entries()) {
      const response = { id, group, index, length: lengths[index], finish: finish_reasons[index] };
      group.responses.push(response);
      responses.set(id, response);
    }
  }
  isMapDirty = true;
}

/** By what the scheduler has learned of each group: its longest response. */
function takeEstimates({ groups: names, tokens }) {
  for (const [i, name] of names.entries()) {
    const group = groups.get(name);
    if (group === undefined || group.estimate === tokens[i]) continue;
    group.estimate = tokens[i];
    isMapDirty = true;
  }
}

/** Whether what is shown is current, and whether every worker serves. */
function drawState() {
  if (socket.readyState !== WebSocket.OPEN) return;
  const away = [...workers.values()].filter(({ state }) => state !== "ready");
  const names = away.map(({ name, state }) => `${name} ${state}`);
  const states = live === null || live.state === "serving" ? names : [stateText(live), ...names];
  $("state").textContent = states.length === 0 ? "live" : states.join(", ");
  $("state").classList.toggle("on", states.length === 0);
}

function drawTiles() {
  if (EARLIER !== null) return;
  write($("rate"), number(progress.tokens_per_s));
  write($("running"), number(progress.running));
  write($("waiting"), `${number(progress.waiting)} waiting`);
  write($("done"), number(progress.requests_done));
  write($("total"), `of ${number(progress.requests)} requests`);
  write($("acceptance"), progress.mean_acceptance_length.toFixed(2));
  write($("moves"), number(progress.migrations));
  const { eta_low_s: low, eta_high_s: high } = progress;
  write($("eta"), low === null || high === null ? "–" : `${seconds(low)} – ${seconds(high)}`);
  // No response of this iteration has ended: there are no lengths to draw from.
  if (low === null && progress.running + progress.waiting > 0) {
    write($("judged"), "unknown until responses finish");
  } else if (live !== null) write($("judged"), heldText(live));
  const current = live?.iteration ?? 0;
  const iteration = current > 0 ? `iteration ${current}, ` : "";
  write($("epoch"), `${iteration}weight epoch ${progress.weight_epoch}`);
}

function draw() {
  isDrawDue = false;
  if (progress === null || document.hidden) return;
  if (areChartsDirty) drawCharts();
  areChartsDirty = false;
  if (isMapDirty) drawMap(colorsOf());
  isMapDirty = false;
  drawStripNames();
  drawTiles();
  const response = responses.get(followed);
  if (response !== undefined) {
    $("who").textContent = `Response ${response.index} of ${nameOf(response.group)}`;
    const state = response.finish ?? (response.length > 0 ? "not finished" : "not begun");
    $("facts").textContent =
      `request ${response.id} · ${number(response.length)} tokens · ${state}`;
  }
}

/** At most one drawing for each frame of the screen, however many messages come. */
function dueDraw() {
  if (isDrawDue) return;
  isDrawDue = true;
  requestAnimationFrame(draw);
}

const stateText = ({ state }) => state.replace("_", " ");

function drawLive() {
  const isServing = live.state === "serving";
  $("banner").hidden = isServing;
  $("banner").firstElementChild.textContent = stateText(live);
  $("banner").lastElementChild.textContent = `for ${seconds(live.state_s)}: ${live.reason ?? ""}`;
  drawLines();
  drawStragglers();
  drawTable();
  drawFigures(live.figures);
  drawHistory();
}

/** What the server waits for; the banner says why nothing is generated. */
function drawLines() {
  const lines = live.waiting.filter(({ kind }) => kind !== "generation");
  const list = $("lines");
  list.hidden = lines.length === 0;
  while (list.children.length > lines.length) list.lastChild.remove();
  for (const [i, { verdict, line }] of lines.entries()) {
    const item = list.children[i] ?? list.appendChild(document.createElement("li"));
    item.className = verdict;
    write(item, verdict === "ok" ? line : `${verdict}: ${line}`);
  }
}

/** Every figure of the server's table, under its name in reports. */
function drawFigures(figures) {
  const list = $("figures");
  while (list.children.length > figures.length) list.lastChild.remove();
  for (const [i, { key, help, unit, value }] of figures.entries()) {
    const item = list.children[i] ?? list.appendChild(document.createElement("div"));
    if (item.children.length === 0) {
      item.append(document.createElement("dt"), document.createElement("dd"));
    }
    item.title = help;
    write(item.firstChild, key.replaceAll("_", " "));
    write(item.lastChild, unit === "s" ? seconds(value) : number(value));
  }
}

/** Responses that the iteration waits for; of one in which nothing runs, those that it waited for. */
function drawStragglers() {
  const isOver = live.stragglers.length === 0 && live.waited_for.length > 0;
  const shown = isOver ? live.waited_for : live.stragglers;
  write($("waits"), isOver ? "The iteration waited for" : "The iteration waits for");
  $("no-stragglers").hidden = shown.length > 0;
  const list = $("stragglers");
  while (list.children.length > shown.length) list.lastChild.remove();
  for (const [i, one] of shown.entries()) {
    // A button that stays keeps the focus of the keyboard.
    const item = list.children[i] ?? list.appendChild(document.createElement("li"));
    const button = item.firstChild ?? item.appendChild(document.createElement("button"));
    write(
      button,
      `request ${one.request} of group ${nameOf({ name: one.group })}: ${number(one.length)} tokens, ${isOver ? endText(one) : speedText(one)}${one.reason}`,
    );
    // Numbers of requests begin again with every process.
    button.disabled = EARLIER !== null && !responses.has(one.request);
    button.onclick = () => follow(one.request);
  }
}

function speedText({ tokens_per_s }) {
  return tokens_per_s === null ? "" : `${number(tokens_per_s)} tokens/s, `;
}

function endText({ before_last_s }) {
  if (before_last_s === 0) return "ended last, ";
  return before_last_s < 0.05
    ? "ended with the last one, "
    : `ended ${before_last_s.toFixed(1)} s before the last, `;
}

function row(cells) {
  const line = document.createElement("tr");
  for (const [i, value] of cells.entries()) {
    const cell = document.createElement("td");
    cell.textContent = value;
    if (i > 2) cell.className = "n";
    if (i === 1 && value !== "ready") cell.className = "bad";
    line.append(cell);
  }
  return line;
}

/** An engine that does not know its step times gives a bound. */
function savedText({ drafted_tokens, saved_s, saved_s_max }) {
  if (drafted_tokens === 0) return "–";
  if (saved_s === null) return `at most ${saved_s_max.toFixed(1)} s`;
  return `${saved_s.toFixed(1)} s ${saved_s < 0 ? "lost" : "saved"}`.replace("-", "");
}

function drawTable() {
  const drafts = new Map(live.drafts.map((one) => [one.worker, one]));
  $("table").replaceChildren(
    ...[...workers.values()].map((one) => {
      const of = drafts.get(one.worker);
      const weights = [one.weight_version, one.weights, one.stale ? "stale" : null].filter(
        (part) => part !== null,
      );
      return row([
        one.name,
        one.reason === null ? one.state : `${one.state}: ${one.reason}`,
        weights.join(", ") || `epoch ${live.weight_epoch}`,
        ...(of === undefined
          ? ["–", "–", "–", "–", "–"]
          : [
              number(of.drafted_tokens),
              number(of.accepted_tokens),
              of.mean_acceptance_length.toFixed(2),
              `${of.drafting_s.toFixed(1)} s`,
              savedText(of),
            ]),
      ]);
    }),
  );
}

window.onresize = () => {
  isMapDirty = true;
  dueDraw();
};
matchMedia("(prefers-color-scheme: dark)").onchange = () => {
  colors = null;
  renewCharts();
  window.onresize();
};

/** Reads the iteration that the address names. */
async function showEarlier() {
  document.body.classList.add("earlier");
  $("back").href = addressOf(null);
  try {
    const [one, latest] = await Promise.all([
      json(`foretoken/iterations/${EARLIER}`),
      json("foretoken/live", { samples: "false" }),
    ]);
    // It still runs.
    if (one.samples === undefined) location.replace(addressOf(null));
    for (const { worker, name } of one.workers) {
      workers.set(worker, { name, state: "ready", reason: null });
    }
    const of = { kv_tokens_used: 0, kv_tokens: 0, running: 0 };
    progress = { ...one, workers: one.workers.map((worker) => ({ ...worker, ...of })) };
    samples = samplesOf(one.samples);
    areChartsDirty = true;
    addComplete(one);
    live = { ...latest, stragglers: [], waited_for: one.waited_for };
    drawFigures(one.figures);
    drawEarlier(one);
  } catch ({ message }) {
    $("state").textContent = message;
  }
}

function drawEarlier(one) {
  write($("epoch"), `iteration ${EARLIER}, weight epoch ${one.weight_epoch}`);
  write($("state"), `ended ${new Date(1000 * one.ended_at_s).toLocaleString()}`);
  write($("rate"), number(one.tokens_per_s));
  write($("done"), number(one.requests));
  write($("total"), "requests");
  write($("acceptance"), one.mean_acceptance_length.toFixed(2));
  write($("moves"), number(one.migrations));
  write($("running"), clock(one.tail_s));
  write(
    $("waiting"),
    `${Math.round((100 * one.tail_s) / Math.max(1e-9, one.wall_s))} % of the time`,
  );
  write($("eta"), clock(one.wall_s));
  write($("running-name"), "tail");
  write($("eta-name"), "wall time");
  if (responses.size < one.requests) {
    write(
      $("hint"),
      `${number(responses.size)} of ${number(one.requests)} responses are kept: the server keeps the last complete groups, in memory.`,
    );
  }
  drawStragglers();
  drawHistory();
  const { eta_inside: held } = one;
  write($("judged"), held === null ? "" : `${Math.round(100 * held)} % of its estimates held`);
  dueDraw();
}

if (EARLIER === null) {
  connect();
  setInterval(() => void look(false), 1000);
} else void showEarlier();
