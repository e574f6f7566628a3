// How a rollout goes, in words and a bar. It measures and decides nothing.

import { stripVTControlCharacters } from "node:util";
import { createLog } from "../compose/log.ts";
import { operatorLog } from "../compose/operator-log.ts";
import type { Progress } from "../core/rollout/meter.ts";
import { formatClock, formatCount, formatShare } from "./format.ts";
import { paint, Status, type StatusOptions, type Style } from "./terminal.ts";

const BAR_CELLS_MAX = 40;
const BAR_CELLS_MIN = 8;
/** Room for the text beside the bar in the first line. */
const HEAD_CHARACTERS = 64;
const GAP = "  ";

/** A display of one run, named `title`, as callbacks of a rollout: `onProgress` whenever there is news, then `finish` once. */
export function progressDisplay({ title, ...options }: StatusOptions & { readonly title: string }) {
  const status = new Status(options);
  let last: Progress | null = null;
  const note = (text: string) => status.note(text);
  const log = createLog("text", { level: "warn", write: (line) => note(line.trimEnd()) });
  return {
    onProgress: (progress: Progress) => {
      last = progress;
      status.show(
        (columns) => renderProgress(title, progress, columns),
        () => plainLine(title, progress),
      );
    },
    /** Prints a line above the live lines. */
    note,
    events: { ...operatorLog(log, () => {}), stateChanged: () => {} },
    /** Replaces the live lines by one line with the result. */
    finish: () => {
      status.end(last && outcomeLine(title, last));
      last = null;
    },
  };
}

const painted = (text: string, style: Style) => paint(text, style, process.stderr);
const dim = (text: string) => painted(text, "dim");

/** The live lines. */
export function renderProgress(title: string, progress: Progress, columns: number): string[] {
  const { requests, requestsDone } = progress;
  const share = requests === 0 ? 0 : requestsDone / requests;
  const room = columns - title.length - HEAD_CHARACTERS;
  const cells = Math.max(BAR_CELLS_MIN, Math.min(BAR_CELLS_MAX, room));
  const full = Math.floor(share * cells + 1e-9);
  const head = [
    painted(title, "bold"),
    painted("█".repeat(full), "green") + painted("░".repeat(cells - full), "dim"),
    painted(formatShare(share).padStart(4), "bold"),
    ...doneOf(progress),
    [formatClock(progress.elapsedS), ...etaOf(progress)].join(" "),
  ];
  return [head, countsOf(progress), kvOf(progress, columns)].map((parts) => parts.join(GAP));
}

/** The live lines as one line of text, for streams that cannot be redrawn. */
function plainLine(title: string, progress: Progress): string {
  const parts = [
    `${title} ${formatClock(progress.elapsedS)}`,
    ...doneOf(progress),
    ...countsOf(progress),
    ...etaOf(progress),
    ...kvOf(progress, Number.POSITIVE_INFINITY),
  ];
  return stripVTControlCharacters(parts.join(", "));
}

function doneOf({ requests, requestsDone, groups, groupsDone }: Progress): string[] {
  return [
    `${requestsDone}/${requests} ${dim("requests")}`,
    `${groupsDone}/${groups} ${dim("groups")}`,
  ];
}

/** The range in which the end is expected; empty: it is not known. */
function etaOf({ etaLowS, etaHighS }: Progress): string[] {
  if (etaLowS === null || etaHighS === null) return [];
  const low = formatClock(etaLowS);
  const high = formatClock(etaHighS);
  return [dim(`ETA ${low === high ? low : `${low} - ${high}`}`)];
}

/** KV use of the workers that fit beside one another. */
function kvOf({ workers }: Progress, columns: number): string[] {
  const shares = workers.map(({ kvTokens, kvTokensUsed }) =>
    formatShare(kvTokens === 0 ? 0 : Math.min(1, kvTokensUsed / kvTokens)),
  );
  const line = `kv ${shares.join(" ")}`;
  if (shares.length === 0) return [];
  return [line.length <= columns ? line : `${line.slice(0, columns - 4)} ...`];
}

function outcomeLine(title: string, progress: Progress): string {
  const { requestsDone, requests, groupsDone, groups, outputTokens, elapsedS } = progress;
  const how = requestsDone === requests ? "finished" : "stopped";
  const done = `${requestsDone}/${requests} requests, ${groupsDone}/${groups} groups`;
  return `${title} ${how}: ${done}, ${formatCount(outputTokens)} tokens generated in ${formatClock(elapsedS)}`;
}

function countsOf(progress: Progress): string[] {
  const count = (value: number, name: string) => `${formatCount(value)} ${dim(name)}`;
  const preempted = count(progress.preemptions, "preempted");
  const { meanAcceptanceLength: length } = progress;
  return [
    count(progress.tokensPerS, "tok/s"),
    count(progress.running, "running"),
    count(progress.waiting, "waiting"),
    count(progress.migrations, "moved"),
    progress.preemptions > 0 ? painted(preempted, "yellow") : preempted,
    // 1: without drafts, where it would look like a rate of 100 %.
    ...(length > 1 ? [`${dim("acceptance")} ${length.toFixed(2)}`] : []),
  ];
}
