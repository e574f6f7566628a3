// The log of a server: one line an event on stderr, as text for people or as JSON for machines.

export const LOG_FORMS = ["text", "json", "off"] as const;
export type LogForm = (typeof LOG_FORMS)[number];

export type LogLevel = "debug" | "info" | "warn" | "error";

export type Log = (
  level: LogLevel,
  event: string,
  fields?: Readonly<Record<string, string | number | boolean | null>>,
) => void;

export function createLog(form: LogForm, write: (line: string) => void): Log {
  if (form === "off") return () => {};
  return (level, event, fields = {}) => {
    const time = new Date().toISOString();
    if (form === "json") {
      write(`${JSON.stringify({ time, level, event, ...fields })}\n`);
      return;
    }
    const told = Object.entries(fields).map(([name, value]) => `${name}=${quoted(value)}`);
    write(`${[time, level.toUpperCase().padEnd(5), event, ...told].join(" ")}\n`);
  };
}

function quoted(value: string | number | boolean | null): string {
  const text = String(value);
  return /^[\w.:/+-]+$/.test(text) ? text : JSON.stringify(text);
}
