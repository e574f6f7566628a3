// The log of a server: one line an event on stderr, as text for people or as JSON for machines. What clients can cause
// any number of times is counted beyond a few lines, so that a flood of errors is not a flood of lines.

import { oneLine } from "../core/base/json-line.ts";

export type LogForm = "text" | "json" | "off";

const LOG_LEVELS = ["debug", "info", "warn", "error"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

export type LogFields = Readonly<Record<string, string | number | boolean | null>>;

export type Log = (level: LogLevel, event: string, fields?: LogFields) => void;

/** The log on stderr, as --log gives it. */
export function stderrLog(choice: LogForm | `${LogForm}:${LogLevel}`): Log {
  const [form, level = "info"] = choice.split(":") as [LogForm, LogLevel?];
  return createLog(form, { level, write: (line) => process.stderr.write(line) });
}

export interface LogOptions {
  /** Lines below it are left out. Default: info. */
  readonly level?: LogLevel;
  readonly write: (line: string) => void;
  readonly nowMs?: () => number;
  /** Runs `act` after `ms`. */
  readonly later?: (act: () => void, ms: number) => void;
}

/** Limit of a kind's lines in a window of time; further ones are counted, and reported at its end. */
const LINES_MAX = 50;
const WINDOW_MS = 10_000;
/** Limit of kinds that are counted separately; beyond it, all others count as one. */
const KINDS_MAX = 256;

interface Kind {
  lines: number;
  suppressed: number;
}

export function createLog(form: LogForm, options: LogOptions): Log {
  const { write, level: least = "info", nowMs = Date.now } = options;
  const { later = (act, ms) => void setTimeout(act, ms).unref() } = options;
  if (form === "off") return () => {};
  const kinds = new Map<string, Kind>();
  const print = (level: LogLevel, event: string, fields: LogFields) => {
    const time = new Date(nowMs()).toISOString();
    const parts = Object.entries(fields).map(([name, value]) => `${name}=${quoted(value)}`);
    const line =
      form === "json"
        ? JSON.stringify({ time, level, event, ...fields })
        : [time, level.toUpperCase().padEnd(5), event, ...parts].join(" ");
    write(`${oneLine(line)}\n`);
  };
  return (level, event, fields = {}) => {
    if (LOG_LEVELS.indexOf(level) < LOG_LEVELS.indexOf(least)) return;
    const name = nameOf(event, fields);
    const kind = kinds.get(name) ?? (kinds.size < KINDS_MAX ? null : kinds.get("others")) ?? null;
    if (kind === null) {
      const fresh = { lines: 1, suppressed: 0 };
      const key = kinds.size < KINDS_MAX - 1 ? name : "others";
      kinds.set(key, fresh);
      later(() => {
        kinds.delete(key);
        const { suppressed } = fresh;
        if (suppressed > 0) print(level, "suppressed", { like: key, lines: suppressed });
      }, WINDOW_MS);
    } else {
      kind.lines += 1;
      if (kind.lines > LINES_MAX) {
        kind.suppressed += 1;
        return;
      }
    }
    print(level, event, fields);
  };
}

/** Key by which similar lines are counted together: each worker's lines, or all requests' of a status. */
function nameOf(event: string, fields: LogFields): string {
  const about = [fields.status, fields.worker].filter((value) => value !== undefined);
  return [event, ...about].join(" ");
}

function quoted(value: string | number | boolean | null): string {
  const text = String(value);
  return /^[\w.:/+-]+$/.test(text) ? text : JSON.stringify(text);
}

export function errorWithStack(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
