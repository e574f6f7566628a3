// What all scripts of the page share: the state of the rollout as the page knows it, formats, colours.

const $ = (id) => document.getElementById(id);
/** An iteration that is over, by its number in the page's address. null: the current one, as it runs. */
const EARLIER = new URLSearchParams(location.search).get("iteration");
const groups = new Map();
const responses = new Map();
/** The server's report of its workers, by number. */
const workers = new Map();
let samples = [];
let live = null;
let progress = null;

function urlOf(path, params = {}) {
  const url = new URL(path, location.href);
  const given = new URLSearchParams(location.search);
  given.delete("iteration");
  for (const [name, value] of Object.entries(params)) given.set(name, value);
  url.search = given.toString();
  url.hash = "";
  return url;
}

async function json(path, params) {
  const answer = await fetch(urlOf(path, params));
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error?.message ?? String(answer.status));
  return body;
}

/** The server writes a number of its own before a client's name, and an id before those of /v1/rollouts. */
const nameOf = ({ name }) => name.replace(/^g\d+:(rollout-[0-9a-f-]+\/)?/, "");
const number = (value) => Math.round(value).toLocaleString("en");
const seconds = (s) =>
  s < 90
    ? `${Math.ceil(s)} s`
    : s < 5400
      ? `${Math.round(s / 60)} min`
      : `${(s / 3600).toFixed(1)} h`;
const workerName = (worker) => workers.get(worker)?.name ?? `worker ${worker}`;
const hue = (worker) => `hsl(${(worker * 67 + 210) % 360} 55% 55%)`;

/** Leaves the page as it is where the text is the same. */
function write(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

const rgb = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
const css = (parts) => `rgb(${parts.join(",")})`;
const mix = (from, to, share) => from.map((part, i) => Math.round(part + (to[i] - part) * share));
const pack = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;

let colors = null;

function colorsOf() {
  colors ??= readColors();
  return colors;
}

function readColors() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => {
    const value = style.getPropertyValue(`--${name}`).trim();
    return value.length === 4 ? `#${[...value.slice(1)].map((c) => c + c).join("")}` : value;
  };
  const flat = Object.fromEntries(
    ["tail", "kv", "run", "line", "edge", "ink", "soft"].map((name) => [name, color(name)]),
  );
  return { ...flat, cell0: rgb(color("cell-0")), cell1: rgb(color("cell-1")) };
}
