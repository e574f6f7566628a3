// @ts-check
// State, formats and colours that all scripts of the page share. Every figure and every list is drawn from one answer of
// the server, `live`; the stream adds to the map's cells alone.

/** @typedef {import("../live/view.ts").LiveAnswer} Live */
/** @typedef {ReturnType<import("../live/view.ts").LiveView["earlier"]>} Iteration */
/** @typedef {ReturnType<typeof import("../live/response-detail.ts").responseDetail>} Detail */
/** @typedef {{ name: string, responses: Cell[], estimate: number | null }} Group */
/** @typedef {{ id: number, group: Group, index: number, length: number, finish: string | null }} Cell */

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
function elementOf(id, kind) {
  const element = document.getElementById(id);
  if (!(element instanceof kind)) throw new Error(`the page has no ${kind.name} ${id}`);
  return element;
}

const $ = (/** @type {string} */ id) => elementOf(id, HTMLElement);
/** An iteration that is over, by its number in the page's address. null: the current one, as it runs. */
const EARLIER = new URLSearchParams(location.search).get("iteration");
/** @type {Map<string, Group>} */
const groups = new Map();
/** @type {Map<number, Cell>} */
const responses = new Map();
/** @type {Live | null} */
let live = null;

/**
 * @param {string} path
 * @param {Readonly<Record<string, string | number>>} [params]
 */
function urlOf(path, params = {}) {
  const url = new URL(path, location.href);
  const given = new URLSearchParams(location.search);
  given.delete("iteration");
  for (const [name, value] of Object.entries(params)) given.set(name, String(value));
  url.search = given.toString();
  url.hash = "";
  return url;
}

/**
 * @param {string} path
 * @param {Readonly<Record<string, string | number>>} [params]
 */
async function json(path, params) {
  const answer = await fetch(urlOf(path, params));
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error?.message ?? String(answer.status));
  return body;
}

/** @param {unknown} error */
const textOf = (error) => (error instanceof Error ? error.message : String(error));

/**
 * The server writes a number of its own before a client's name, and an id before those of /v1/rollouts.
 * @param {string} group
 */
const nameOf = (group) => group.replace(/^g\d+:(rollout-[0-9a-f-]+\/)?/, "");
/** @param {number} value */
const number = (value) => Math.round(value).toLocaleString("en");
/** @param {number} worker */
const hue = (worker) => `hsl(${(worker * 67 + 210) % 360} 55% 55%)`;

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

/**
 * Leaves the page as it is where the text is the same.
 * @param {Node} element
 * @param {string} value
 */
function write(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/**
 * -1 and 1 for two keys, 0 for others.
 * @param {KeyboardEvent} event
 * @param {readonly string[]} keys
 */
function stepOf({ key }, keys = ["ArrowLeft", "ArrowRight"]) {
  const at = keys.indexOf(key);
  return at < 0 ? 0 : 2 * at - 1;
}

/**
 * The children of a list, as many as `count`: one that stays keeps the focus of the keyboard.
 * @param {HTMLElement} list
 * @param {number} count
 * @param {() => HTMLElement} made
 * @returns {HTMLElement[]}
 */
function itemsOf(list, count, made) {
  while (list.children.length > count) list.lastChild?.remove();
  while (list.children.length < count) list.append(made());
  return /** @type {HTMLElement[]} */ ([...list.children]);
}

/**
 * @param {keyof HTMLElementTagNameMap} tag
 * @param {...(string | Node)} children
 */
function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

/** @typedef {[red: number, green: number, blue: number]} Rgb */
/** @type {(hex: string) => Rgb} */
const rgb = (hex) => {
  const part = (/** @type {number} */ at) => Number.parseInt(hex.slice(at, at + 2), 16);
  return [part(1), part(3), part(5)];
};
/** @param {Rgb} parts */
const css = (parts) => `rgb(${parts.join(",")})`;
/** @type {(from: Rgb, to: Rgb, share: number) => Rgb} */
const mix = (from, to, share) => {
  const part = (/** @type {0 | 1 | 2} */ i) => Math.round(from[i] + (to[i] - from[i]) * share);
  return [part(0), part(1), part(2)];
};
/** @param {Rgb} parts */
const pack = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;

/** @type {ReturnType<typeof readColors> | null} */
let colors = null;

function colorsOf() {
  colors ??= readColors();
  return colors;
}

function readColors() {
  const style = getComputedStyle(document.documentElement);
  const color = (/** @type {string} */ name) => {
    const value = style.getPropertyValue(`--${name}`).trim();
    return value.length === 4 ? `#${[...value.slice(1)].map((c) => c + c).join("")}` : value;
  };
  return {
    line: color("line"),
    edge: color("edge"),
    ink: color("ink"),
    cell0: rgb(color("cell-0")),
    cell1: rgb(color("cell-1")),
  };
}
