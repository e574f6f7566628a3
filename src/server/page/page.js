// @ts-check
// Where the page's state comes from and when it is drawn. GET /foretoken/live is asked once a second, and each answer is
// drawn as a whole; /v1/stream adds responses and their lengths to the map. An iteration that is over is read once.

/** @typedef {import("../stream/subscription.ts").JoinedEntry} Joined */
/** @typedef {import("../stream/subscription.ts").RestartedEntry} Restarted */
/** @typedef {import("../stream/subscription.ts").FinishedEntry} Finished */
/** @typedef {{ joined?: Joined[], restarted?: Restarted[], lengths?: { request: number, length: number }[], finished?: Finished[] }} Frame */

const LOOK_MS = 1000;
const PICTURE_MS = 3000;
let picturedMs = 0;
const GROUPS_MAX = 4096;
/** @type {WebSocket | null} */
let socket = null;
let retryMs = 500;
let isDrawDue = false;
/** The answers of one look are taken before another look begins. */
let isLooking = false;

function connect() {
  const url = urlOf("v1/stream");
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const opened = new WebSocket(url);
  socket = opened;
  opened.onopen = () => {
    retryMs = 500;
    live = null;
    opened.send(JSON.stringify({ subscribe: { progress: true } }));
    if (followed !== null) follow(followed);
    void look();
  };
  opened.onmessage = ({ data }) => take(JSON.parse(data));
  opened.onclose = ({ reason }) => {
    $("state").textContent = reason || "not connected; trying again";
    $("state").classList.remove("on");
    setTimeout(connect, retryMs);
    retryMs = Math.min(10_000, retryMs * 2);
  };
}

/** @param {Frame} frame */
function take({ joined = [], restarted = [], lengths = [], finished = [] }) {
  for (const { request, group, index, offset } of joined) {
    set(request, { length: offset }, () => ({ group, index }));
  }
  for (const { request } of restarted) set(request, { length: 0 });
  for (const { request, length } of lengths) set(request, { length });
  for (const { request, length, finish_reason: finish } of finished) {
    set(request, { length, finish });
  }
  dueDraw();
}

/**
 * Sets what is known of a response. `place`: where it belongs, if it may be a new one.
 * @param {number} id
 * @param {{ length: number, finish?: string | null }} known
 * @param {() => { group: string, index: number }} [place]
 */
function set(id, known, place) {
  const response = responses.get(id);
  isMapDirty = true;
  if (response !== undefined) Object.assign(response, known);
  else if (place !== undefined) {
    const { group: name, index } = place();
    const group = groups.get(name) ?? { name, responses: [], estimate: null };
    groups.set(name, group);
    const added = { id, group, index, finish: null, ...known };
    group.responses.push(added);
    responses.set(id, added);
  }
}

/** Finished groups, the oldest first, until no more than GROUPS_MAX are left. Those that run stay. */
function forget() {
  for (const [name, group] of groups) {
    if (groups.size <= GROUPS_MAX) return;
    if (group.responses.some(({ finish }) => finish === null)) continue;
    for (const { id } of group.responses) responses.delete(id);
    groups.delete(name);
    isMapDirty = true;
  }
}

/** One answer of the server feeds one drawing. */
async function look() {
  if (isLooking || socket?.readyState !== WebSocket.OPEN) return;
  isLooking = true;
  try {
    /** @type {Live} */
    let latest = await json("foretoken/live");
    if (latest.iteration !== live?.iteration) latest = await begin();
    live = latest;
    show(latest);
    if (followed !== null) await drawDetail(followed);
    await drawPicture(latest.iteration);
  } catch {
    // The socket's state shows that there is no connection.
  }
  isLooking = false;
  dueDraw();
}

/** Another iteration, or the first that this page sees: all of it so far. */
async function begin() {
  groups.clear();
  responses.clear();
  /** @type {Live} */
  const latest = await json("foretoken/live");
  if (latest.iteration > 0) addGroups(await json(`foretoken/iterations/${latest.iteration}`));
  return latest;
}

/** @param {Live} latest */
function show(latest) {
  takeEstimates(latest.estimates);
  forget();
  drawState(latest);
  drawTiles(latest);
  drawLive(latest);
  drawTable(latest);
  drawWaited(latest.longest, latest.waited_for);
}

/**
 * The picture of an iteration, as the server draws it: of one that runs, anew now and then.
 * @param {number} iteration
 */
async function drawPicture(iteration) {
  if (iteration === 0 || document.hidden || Date.now() - picturedMs < PICTURE_MS) return;
  picturedMs = Date.now();
  const url = urlOf("foretoken/picture", EARLIER === null ? {} : { iteration });
  const answer = await fetch(url);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const drawn = page.querySelector("svg.picture");
  $("engines").hidden = drawn === null;
  if (drawn !== null) $("picture").replaceChildren(drawn);
  elementOf("save", HTMLAnchorElement).href = url.href;
}

/**
 * Groups of the iteration. The stream may have been quicker about some of them.
 * @param {Iteration} iteration
 */
function addGroups({ groups: all }) {
  for (const { group, requests, lengths, finish_reasons: ends } of all) {
    for (const [index, id] of requests.entries()) {
      const known = responses.get(id);
      const length = Math.max(lengths[index] ?? 0, known?.length ?? 0);
      const finish = ends[index] ?? known?.finish ?? null;
      set(id, { length, finish }, () => ({ group, index }));
    }
  }
}

/**
 * By what the scheduler has learned of each group: its longest response.
 * @param {Live["estimates"]} estimates
 */
function takeEstimates({ groups: names, tokens }) {
  for (const [i, name] of names.entries()) {
    const group = groups.get(name);
    const estimate = tokens[i] ?? null;
    if (group === undefined || group.estimate === estimate) continue;
    group.estimate = estimate;
    isMapDirty = true;
  }
}

/** @param {Live} live */
const stateText = ({ state }) => state.replace("_", " ");

/**
 * Whether what is shown is current, and whether every worker serves.
 * @param {Live} live
 */
function drawState(live) {
  const away = live.workers.filter(({ state }) => state !== "ready");
  const names = away.map(({ name, state }) => `${name} ${state}`);
  const states = live.state === "serving" ? names : [stateText(live), ...names];
  write($("state"), states.length === 0 ? "live" : states.join(", "));
  $("state").classList.toggle("on", states.length === 0);
}

/** @param {Live} live */
function drawTiles(live) {
  const { progress, iteration } = live;
  write($("rate"), number(progress.tokens_per_s));
  write($("running"), number(progress.running));
  write($("waiting"), `${number(progress.waiting)} waiting`);
  write($("done"), number(progress.requests_done));
  write($("total"), `of ${number(progress.requests)} requests`);
  write($("acceptance"), progress.mean_acceptance_length.toFixed(2));
  write($("moves"), number(progress.migrations));
  const { eta_low_s: low, eta_high_s: high } = progress;
  write($("eta"), low === null || high === null ? "–" : `${clock(low)} – ${clock(high)}`);
  // No response of this iteration has ended: there are no lengths to draw from.
  const isUnknown = low === null && progress.running + progress.waiting > 0;
  write($("judged"), isUnknown ? "unknown until responses finish" : "");
  const current = iteration > 0 ? `iteration ${iteration}, ` : "";
  write($("epoch"), `${current}weight epoch ${progress.weight_epoch}`);
  drawGroupCount(progress.groups, progress.groups - progress.groups_done);
}

/** @type {(count: number, unfinished: number) => void} */
function drawGroupCount(count, unfinished) {
  const text = `${counted(count, "group")}, ${number(unfinished)} unfinished`;
  write($("map-name"), count === 0 ? "Groups" : text);
}

function draw() {
  isDrawDue = false;
  if (live === null || document.hidden) return;
  if (isMapDirty) drawMap(colorsOf());
  isMapDirty = false;
}

/** At most one drawing for each frame of the screen, however many messages come. */
function dueDraw() {
  if (isDrawDue) return;
  isDrawDue = true;
  requestAnimationFrame(draw);
}

/** @param {Live} live */
function drawLive(live) {
  $("banner").hidden = live.state === "serving";
  const [state, reason] = $("banner").children;
  if (state) write(state, stateText(live));
  if (reason) write(reason, `for ${clock(live.state_s)}: ${live.reason ?? ""}`);
  // The banner says why nothing is generated.
  const lines = live.waiting.filter(({ kind }) => kind !== "generation");
  $("lines").hidden = lines.length === 0;
  const items = itemsOf($("lines"), lines.length, () => element("li"));
  for (const [i, { state, reason }] of lines.entries()) {
    const item = items[i];
    if (item === undefined) continue;
    item.className = state;
    write(item, state === "ok" ? reason : `${state}: ${reason}`);
  }
  drawFigures(live.figures);
  drawHistory(live);
}

/**
 * Every figure of the server's table, under its name in reports.
 * @param {Live["figures"]} figures
 */
function drawFigures(figures) {
  const entry = () => element("div", element("dt"), element("dd"));
  const items = itemsOf($("figures"), figures.length, entry);
  for (const [i, { key, help, unit, value }] of figures.entries()) {
    const [item, name, figure] = [items[i], items[i]?.firstChild, items[i]?.lastChild];
    if (!item || !name || !figure) continue;
    item.title = help;
    write(name, key.replaceAll("_", " "));
    write(figure, unit === "s" ? clock(value) : number(value));
  }
}

/**
 * Responses that the iteration waits for; of one in which nothing runs, those that it waited for.
 * @param {Live["longest"]} now
 * @param {Live["waited_for"]} before
 */
function drawWaited(now, before) {
  const isOver = now.length === 0 && before.length > 0;
  write($("waits"), isOver ? "The iteration waited for" : "The iteration waits for");
  const shown = isOver
    ? before.map((one) => ({ ...one, about: endText(one) }))
    : now.map((one) => ({ ...one, about: speedText(one) }));
  $("no-stragglers").hidden = shown.length > 0;
  const items = itemsOf($("stragglers"), shown.length, () => element("li", element("button")));
  for (const [i, { request, group, length, about, reason }] of shown.entries()) {
    const button = items[i]?.firstChild;
    if (!(button instanceof HTMLButtonElement)) continue;
    write(
      button,
      `request ${request} of group ${nameOf(group)}: ${number(length)} tokens, ${about}${reason}`,
    );
    // Numbers of requests begin again with every process.
    button.disabled = EARLIER !== null && !responses.has(request);
    button.onclick = () => follow(request);
  }
}

/** @param {Live["longest"][number]} response */
function speedText({ tokens_per_s }) {
  return tokens_per_s === null ? "" : `${number(tokens_per_s)} tokens/s, `;
}

/** @param {Live["waited_for"][number]} response */
function endText({ before_last_s }) {
  if (before_last_s === 0) return "ended last, ";
  return before_last_s < 0.05
    ? "ended with the last one, "
    : `ended ${before_last_s.toFixed(1)} s before the last, `;
}

/**
 * An engine that does not know its step times gives a bound.
 * @param {Live["drafts"][number]} drafts
 */
function savedText({ drafted_tokens, saved_s, saved_s_max }) {
  if (drafted_tokens === 0) return "–";
  if (saved_s === null) return `at most ${saved_s_max.toFixed(1)} s`;
  return `${saved_s.toFixed(1)} s ${saved_s < 0 ? "lost" : "saved"}`.replace("-", "");
}

/** @param {Live} live */
function drawTable(live) {
  const drafts = new Map(live.drafts.map((one) => [Number(one.worker), one]));
  const rows = live.workers.map(({ worker, name, state, reason, ...about }) => {
    const of = drafts.get(worker);
    const stale = about.stale ? "stale" : null;
    const weights = [about.weight_version, about.weights, stale].filter((part) => part !== null);
    const cells = [
      name,
      reason === null ? state : `${state}: ${reason}`,
      weights.join(", ") || `epoch ${live.weight_epoch}`,
      of === undefined ? "–" : number(of.drafted_tokens),
      of === undefined ? "–" : number(of.accepted_tokens),
      of === undefined ? "–" : of.mean_acceptance_length.toFixed(2),
      of === undefined ? "–" : `${of.drafting_s.toFixed(1)} s`,
      of === undefined ? "–" : savedText(of),
    ].map((text) => element("td", text));
    for (const [i, cell] of cells.entries()) if (i > 2) cell.className = "n";
    if (state !== "ready" && cells[1] !== undefined) cells[1].className = "bad";
    return element("tr", ...cells);
  });
  $("table").replaceChildren(...rows);
}

window.onresize = () => {
  isMapDirty = true;
  dueDraw();
};
matchMedia("(prefers-color-scheme: dark)").onchange = () => {
  colors = null;
  window.onresize?.(new UIEvent("resize"));
};

/**
 * The last iterations, the latest first: a row for each, which leads to it.
 * @param {Live} live
 */
function drawHistory({ iterations }) {
  $("history").hidden = iterations.length === 0;
  $("no-history").hidden = iterations.length > 0;
  const longest = Math.max(...iterations.map((one) => one.wall_s));
  const rows = iterations.toReversed().map(({ number: iteration, wall_s, tail_s, ...one }) => {
    const link = element("a", String(iteration));
    link.setAttribute("href", addressOf(iteration));
    if (String(iteration) === EARLIER) link.setAttribute("aria-current", "page");
    const bar = element("div");
    const before = share(wall_s - tail_s, wall_s).replace(" ", "");
    bar.style.width = share(wall_s, longest).replace(" ", "");
    bar.style.background = `linear-gradient(90deg, var(--kv) ${before}, var(--edge) ${before})`;
    const cells = [link, clock(wall_s), clock(tail_s), number(one.tokens_per_s), bar];
    return element("tr", ...cells.map((cell) => element("td", cell)));
  });
  $("numbers").replaceChildren(...rows);
}

/**
 * The address of the page with an iteration; null: the current one.
 * @param {number | null} iteration
 */
function addressOf(iteration) {
  return urlOf("", iteration === null ? {} : { iteration }).href;
}

/**
 * Reads the iteration that the address names.
 * @param {string} iteration
 */
async function showEarlier(iteration) {
  document.body.classList.add("earlier");
  const back = elementOf("back", HTMLAnchorElement);
  back.hidden = false;
  back.href = addressOf(null);
  try {
    /** @type {[Iteration, Live]} */
    const [one, latest] = await Promise.all([
      json(`foretoken/iterations/${iteration}`),
      json("foretoken/live"),
    ]);
    addGroups(one);
    if ("figures" in one) drawEarlier(one, latest);
    // It still runs.
    else location.replace(addressOf(null));
  } catch (error) {
    write($("state"), textOf(error));
  }
}

/**
 * @param {Extract<Iteration, { figures: object }>} one
 * @param {Live} latest
 */
function drawEarlier(one, latest) {
  live = latest;
  write($("epoch"), `iteration ${one.number}, weight epoch ${one.weight_epoch}`);
  write($("state"), `ended ${new Date(1000 * one.ended_at_s).toLocaleString()}`);
  write($("rate"), number(one.tokens_per_s));
  write($("done"), number(one.finished_requests));
  write($("total"), `of ${number(one.requests)} requests`);
  write($("acceptance"), one.mean_acceptance_length.toFixed(2));
  write($("moves"), number(one.migrations));
  write($("running"), clock(one.tail_s));
  write($("waiting"), `${share(one.tail_s, one.wall_s)} of the time`);
  write($("eta"), clock(one.wall_s));
  write($("running-name"), "tail");
  write($("eta-name"), "wall time");
  const counts = new Map(one.figures.map(({ key, value }) => [key, value]));
  const count = counts.get("groups") ?? 0;
  drawGroupCount(count, count - (counts.get("finished_groups") ?? 0));
  if (responses.size < one.requests) {
    write(
      $("hint"),
      `${number(responses.size)} of ${number(one.requests)} responses are kept: the server keeps the last complete groups, in memory.`,
    );
  }
  drawFigures(one.figures);
  drawWaited([], one.waited_for);
  drawHistory(latest);
  void drawPicture(one.iteration);
  dueDraw();
}

if (EARLIER === null) {
  connect();
  setInterval(() => void look(), LOOK_MS);
} else void showEarlier(EARLIER);
