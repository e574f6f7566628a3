// How a rollout goes, in words and bars. It measures and decides nothing.

import { stripVTControlCharacters } from "node:util";
import type { Progress } from "../core/rollout/report.ts";
import { formatClock, formatCount, formatShare } from "./format.ts";
import { paint, Status, type StatusOptions, type Style, type Terminal } from "./terminal.ts";

const BAR_CELLS_MAX = 40;
const BAR_CELLS_MIN = 8;
/** Room for the text beside the bar in the first line. */
const HEAD_CHARACTERS = 64;
const WORKER_BAR_CELLS = 8;
/** Maximum lines of workers; the rest is given as a number. */
const WORKER_LINES_MAX = 6;
const GAP = "  ";

/** KV use from which a worker is short of room, and from which it is about to preempt. */
const KV_TIGHT = 0.85;
const KV_FULL = 0.97;

/** One display for one run, which `title` names: `update` as often as there is news, then `finish` once. */
export class ProgressDisplay {
  readonly #title: string;
  readonly #status: Status;
  #last: Progress | null = null;

  constructor({ title, ...options }: StatusOptions & { readonly title: string }) {
    this.#title = title;
    this.#status = new Status(options);
  }

  update(progress: Progress): void {
    this.#last = progress;
    this.#status.show(
      (terminal) => renderProgress(this.#title, progress, terminal),
      () => plainLine(this.#title, progress),
    );
  }

  /** Prints a line above the live lines. */
  note(text: string): void {
    this.#status.note(text);
  }

  /** Replaces the live lines by one line with the result. */
  finish(): void {
    this.#status.end(this.#last && outcomeLine(this.#title, this.#last));
    this.#last = null;
  }
}

type Painter = (text: string, style: Style) => string;

/** The live lines. */
export function renderProgress(title: string, progress: Progress, terminal: Terminal): string[] {
  const { requests, requestsDone, groups, groupsDone } = progress;
  const painted: Painter = (text, style) => paint(text, style, terminal.color);
  const share = requests === 0 ? 0 : requestsDone / requests;
  const cells = Math.max(
    BAR_CELLS_MIN,
    Math.min(BAR_CELLS_MAX, terminal.columns - title.length - HEAD_CHARACTERS),
  );
  const eta = etaText(progress);
  const head = [
    painted(title, "bold"),
    bar(share, { cells, style: "green", unicode: terminal.unicode, painted }),
    painted(formatShare(share).padStart(4), "bold"),
    `${requestsDone}/${requests} ${painted("requests", "dim")}`,
    `${groupsDone}/${groups} ${painted("groups", "dim")}`,
    `${formatClock(progress.elapsedS)}${eta === null ? "" : painted(` ETA ${eta}`, "dim")}`,
  ];
  const counts = countsOf(progress, painted);
  return [head.join(GAP), counts.join(GAP), ...workerLines(progress, terminal, painted)];
}

/** The line for streams that cannot be drawn over: everything of the live lines, in words. */
function plainLine(title: string, progress: Progress): string {
  const { requests, requestsDone, groups, groupsDone, workers } = progress;
  const eta = etaText(progress);
  const kv = workers.map((worker) => formatShare(kvShare(worker))).join(" ");
  return [
    `${title} ${formatClock(progress.elapsedS)}`,
    `${requestsDone}/${requests} requests`,
    `${groupsDone}/${groups} groups`,
    ...countsOf(progress, (text) => text),
    ...(eta === null ? [] : [`ETA ${eta}`]),
    ...(kv === "" ? [] : [`kv ${kv}`]),
  ].join(", ");
}

/** The range in which the end is expected; null: not known. */
function etaText({ etaLowS, etaHighS }: Progress): string | null {
  if (etaLowS === null || etaHighS === null) return null;
  const [low, high] = [formatClock(etaLowS), formatClock(etaHighS)];
  return low === high ? low : `${low} - ${high}`;
}

function outcomeLine(title: string, progress: Progress): string {
  const { requestsDone, requests, groupsDone, groups, outputTokens, elapsedS } = progress;
  const how = requestsDone === requests ? "finished" : "stopped";
  const done = `${requestsDone}/${requests} requests, ${groupsDone}/${groups} groups`;
  return `${title} ${how}: ${done}, ${formatCount(outputTokens)} tokens in ${formatClock(elapsedS)}`;
}

function countsOf(progress: Progress, painted: Painter): string[] {
  const count = (value: number, name: string) => `${formatCount(value)} ${painted(name, "dim")}`;
  const preempted = count(progress.preemptions, "preempted");
  return [
    count(progress.tokensPerS, "tok/s"),
    count(progress.running, "running"),
    count(progress.waiting, "waiting"),
    count(progress.migrations, "moved"),
    progress.preemptions > 0 ? painted(preempted, "yellow") : preempted,
    `${painted("acceptance", "dim")} ${progress.meanAcceptanceLength.toFixed(2)}`,
  ];
}

function workerLines({ workers }: Progress, terminal: Terminal, painted: Painter): string[] {
  const names = Math.max(...workers.map(({ worker }) => String(worker).length));
  const slots = Math.max(...workers.map((one) => `${one.running}/${one.slots}`.length));
  const texts = workers.map((one) => {
    const share = kvShare(one);
    const style = share >= KV_FULL ? "red" : share >= KV_TIGHT ? "yellow" : "cyan";
    const room = { cells: WORKER_BAR_CELLS, style, unicode: terminal.unicode, painted } as const;
    return [
      painted(`worker ${String(one.worker).padStart(names)} `, "dim"),
      bar(share, room),
      `${formatShare(share).padStart(5)} ${painted("kv", "dim")}`,
      ` ${`${one.running}/${one.slots}`.padStart(slots)} ${painted("slots", "dim")}`,
    ].join("");
  });
  const characters = stripVTControlCharacters(texts[0] ?? "").length + GAP.length;
  const perLine = Math.max(1, Math.floor(terminal.columns / characters));
  const shown =
    texts.length <= WORKER_LINES_MAX * perLine ? texts.length : (WORKER_LINES_MAX - 1) * perLine;
  const lines: string[] = [];
  for (let from = 0; from < shown; from += perLine) {
    lines.push(texts.slice(from, Math.min(shown, from + perLine)).join(GAP));
  }
  return shown === texts.length ? lines : [...lines, `and ${texts.length - shown} workers more`];
}

function kvShare(worker: Progress["workers"][number]): number {
  return worker.kvTokens === 0 ? 0 : Math.min(1, worker.kvTokensUsed / worker.kvTokens);
}

function bar(
  share: number,
  look: { cells: number; style: Style; unicode: boolean; painted: Painter },
): string {
  const { cells, style, unicode, painted } = look;
  const full = Math.floor(Math.min(1, Math.max(0, share)) * cells + 1e-9);
  const [on, off] = unicode ? ["█", "░"] : ["#", "."];
  return painted(on.repeat(full), style) + painted(off.repeat(cells - full), "dim");
}
