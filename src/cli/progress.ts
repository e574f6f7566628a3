// What a person sees while a rollout runs. On a terminal a few lines, drawn over in place; elsewhere a plain
// line every few seconds; nothing when asked to be quiet. Lines are laid out to the terminal's
// width, so that none wraps: a wrapped line could not be drawn over. It measures and decides nothing.

import { createLogUpdate } from "log-update";
import type { Progress } from "../core/rollout/report.ts";
import { formatClock, formatCount, formatShare } from "./format.ts";
import {
  type Environment,
  paint,
  type Style,
  type Terminal,
  type TerminalStream,
  terminalOf,
} from "./terminal.ts";

/** Seconds of the run between two frames, and between two plain lines. */
const FRAME_S = 0.1;
const PLAIN_S = 5;

const BAR_CELLS_MAX = 40;
const WORKER_BAR_CELLS = 8;
/** Maximum lines of workers; the rest is given as a number. */
const WORKER_LINES_MAX = 6;
const GAP = "  ";

/** KV use from which a worker is short of room, and from which it is about to preempt. */
const KV_TIGHT = 0.85;
const KV_FULL = 0.97;

export interface ProgressDisplayOptions {
  readonly stream: NodeJS.WriteStream | TerminalStream;
  readonly quiet: boolean;
  /** Names the run, for example its policy. */
  readonly title: string;
  /** Default: the process's own. */
  readonly env?: Environment;
}

/** One display for one run: `update` as often as there is news, then `finish` once. */
export class ProgressDisplay {
  readonly #stream: TerminalStream;
  readonly #env: Environment;
  readonly #title: string;
  readonly #quiet: boolean;
  readonly #live: ReturnType<typeof createLogUpdate> | null;
  #last: Progress | null = null;
  /** Elapsed time of the run from which something is shown again. */
  #nextS = 0;

  constructor(options: ProgressDisplayOptions) {
    this.#stream = options.stream;
    this.#env = options.env ?? process.env;
    this.#title = options.title;
    this.#quiet = options.quiet;
    const live = !options.quiet && terminalOf(options.stream, this.#env).live;
    // The cursor is left alone: a killed process could not give it back.
    this.#live = live
      ? createLogUpdate(options.stream as NodeJS.WriteStream, { showCursor: true })
      : null;
  }

  update(progress: Progress): void {
    this.#last = progress;
    if (this.#quiet || progress.elapsedS < this.#nextS) return;
    this.#nextS = progress.elapsedS + (this.#live === null ? PLAIN_S : FRAME_S);
    if (this.#live === null) {
      this.#stream.write(`${plainLine(this.#title, progress)}\n`);
    } else {
      const terminal = terminalOf(this.#stream, this.#env);
      this.#live(renderProgress(this.#title, progress, terminal).join("\n"));
    }
  }

  /** Prints a line above the live lines. */
  note(text: string): void {
    if (this.#quiet) return;
    this.#live?.clear();
    this.#stream.write(`${text}\n`);
    this.#nextS = 0;
  }

  /** Replaces the live lines by one line with the result. Safe to call twice. */
  finish(): void {
    const last = this.#last;
    this.#last = null;
    if (this.#live !== null) {
      this.#live.clear();
      this.#live.done();
    }
    if (this.#quiet || last === null) return;
    const words = outcomeWords(this.#title, last);
    const terminal = terminalOf(this.#stream, this.#env);
    const lines = this.#live === null ? [words] : flow(words, terminal.columns - 1, " ");
    for (const line of lines) this.#stream.write(`${paintLine(line, terminal.color, " ")}\n`);
  }
}

/** A piece of a line that is not cut; `parts` are its differently painted pieces. */
interface Span {
  readonly text: string;
  readonly parts: readonly (readonly [text: string, style: Style | null])[];
}

function span(...parts: (readonly [text: string, style: Style | null])[]): Span {
  return { text: parts.map(([text]) => text).join(""), parts };
}

/** The live lines. None is longer than `columns - 1`, so that the cursor never falls off the edge. */
export function renderProgress(title: string, progress: Progress, terminal: Terminal): string[] {
  const width = Math.max(1, terminal.columns - 1);
  const lines = [
    ...headLines(title, progress, width, terminal.unicode),
    ...flow(countSpans(progress), width),
    ...workerLines(progress, width, terminal),
  ];
  // log-update would cut the top off, where the bar is.
  const shown = lines.slice(0, Math.max(1, terminal.rows - 1));
  return shown.map((line) => paintLine(cutLine(line, width), terminal.color));
}

/** The line for streams that cannot be drawn over: everything of the live lines, in words. */
export function plainLine(title: string, progress: Progress): string {
  const kv = progress.workers.map((worker) => formatShare(kvShare(worker))).join(" ");
  const parts = [
    `${title} ${formatClock(progress.elapsedS)}`,
    `${progress.requestsDone}/${progress.requests} requests`,
    `${progress.groupsDone}/${progress.groups} groups`,
    ...countSpans(progress).map((one) => one.text),
    ...(etaText(progress) === null ? [] : [`ETA ${etaText(progress)}`]),
    ...(kv === "" ? [] : [`kv ${kv}`]),
  ];
  return parts.join(", ");
}

/** The range in which the end is expected; null: not known. */
function etaText({ etaLowS, etaHighS }: Progress): string | null {
  if (etaLowS === null || etaHighS === null) return null;
  const [low, high] = [formatClock(etaLowS), formatClock(etaHighS)];
  return low === high ? low : `${low} - ${high}`;
}

function outcomeWords(title: string, progress: Progress): Span[] {
  const { requestsDone, requests, groupsDone, groups, outputTokens, elapsedS } = progress;
  const words = `${requestsDone}/${requests} requests, ${groupsDone}/${groups} groups, ${formatCount(outputTokens)} tokens in ${formatClock(elapsedS)}`;
  const done = requestsDone === requests;
  return [
    span([title, "bold"]),
    span([done ? "finished:" : "stopped:", done ? "green" : "yellow"]),
    ...words.split(" ").map((word) => span([word, null])),
  ];
}

function headLines(title: string, progress: Progress, width: number, unicode: boolean): Span[][] {
  const share = progress.requests === 0 ? 0 : progress.requestsDone / progress.requests;
  const before = span([title, "bold"]);
  const after = [
    span([formatShare(share).padStart(4), "bold"]),
    span([`${progress.requestsDone}/${progress.requests}`, null], [" requests", "dim"]),
    span([`${progress.groupsDone}/${progress.groups}`, null], [" groups", "dim"]),
    span(
      [formatClock(progress.elapsedS), null],
      etaText(progress) === null ? ["", null] : [` ETA ${etaText(progress)}`, "dim"],
    ),
  ];
  const rest = [before, ...after].reduce((sum, one) => sum + one.text.length + GAP.length, 0);
  const cells = Math.min(BAR_CELLS_MAX, width - rest);
  if (cells >= 8) return [[before, bar(share, cells, "green", unicode), ...after]];
  // A narrow terminal: the bar gets a line of its own.
  const narrow = Math.max(1, Math.min(BAR_CELLS_MAX, width - 6));
  const [percent, ...others] = after;
  return [
    [bar(share, narrow, "green", unicode), ...(percent === undefined ? [] : [percent])],
    ...flow([before, ...others], width),
  ];
}

function countSpans(progress: Progress): Span[] {
  const count = (value: number, name: string, style: Style | null = null): Span =>
    span([formatCount(value), style], [` ${name}`, "dim"]);
  return [
    count(progress.tokensPerS, "tok/s", "cyan"),
    count(progress.running, "running"),
    count(progress.waiting, "waiting"),
    count(progress.migrations, "moved"),
    count(progress.preemptions, "preempted", progress.preemptions > 0 ? "yellow" : null),
    span(["acceptance ", "dim"], [progress.meanAcceptanceLength.toFixed(2), null]),
  ];
}

function workerLines(progress: Progress, width: number, terminal: Terminal): Span[][] {
  const { workers } = progress;
  if (workers.length === 0) return [];
  const names = Math.max(...workers.map(({ worker }) => String(worker).length));
  const slots = Math.max(...workers.map((worker) => `${worker.running}/${worker.slots}`.length));
  const spans = workers.map((worker): Span => {
    const share = kvShare(worker);
    const style = share >= KV_FULL ? "red" : share >= KV_TIGHT ? "yellow" : "cyan";
    return span(
      [`worker ${String(worker.worker).padStart(names)} `, "dim"],
      ...bar(share, WORKER_BAR_CELLS, style, terminal.unicode).parts,
      [formatShare(share).padStart(5), null],
      [" kv", "dim"],
      [`${worker.running}/${worker.slots}`.padStart(slots + 1), null],
      [" slots", "dim"],
    );
  });
  const lines = flow(spans, width);
  if (lines.length <= WORKER_LINES_MAX) return lines;
  const shown = lines.slice(0, WORKER_LINES_MAX - 1);
  const hidden = workers.length - shown.reduce((sum, line) => sum + line.length, 0);
  return [...shown, [span([`and ${hidden} workers more`, "dim"])]];
}

function kvShare(worker: Progress["workers"][number]): number {
  return worker.kvTokens === 0 ? 0 : Math.min(1, worker.kvTokensUsed / worker.kvTokens);
}

function bar(share: number, cells: number, style: Style, unicode: boolean): Span {
  const full = Math.floor(Math.min(1, Math.max(0, share)) * cells + 1e-9);
  const [on, off] = unicode ? ["█", "░"] : ["#", "."];
  return span([on.repeat(full), style], [off.repeat(cells - full), "dim"]);
}

/** Puts spans on lines of at most `width` characters, in order. */
function flow(spans: readonly Span[], width: number, gap = GAP): Span[][] {
  const lines: Span[][] = [];
  let line: Span[] = [];
  let used = 0;
  for (const one of spans) {
    const needed = one.text.length + (line.length === 0 ? 0 : gap.length);
    if (line.length > 0 && used + needed > width) {
      lines.push(line);
      line = [];
      used = one.text.length;
    } else {
      used += needed;
    }
    line.push(one);
  }
  if (line.length > 0) lines.push(line);
  return lines;
}

/** A line of a terminal so narrow that one span does not fit is cut. */
function cutLine(line: readonly Span[], width: number): Span[] {
  const text = line.map((one) => one.text).join(GAP);
  return text.length <= width ? [...line] : [span([text.slice(0, width), null])];
}

function paintLine(line: readonly Span[], color: boolean, gap = GAP): string {
  return line
    .map((one) => one.parts.map(([text, style]) => paint(text, style, color)).join(""))
    .join(gap);
}
