// JSON as one line of a log, a file or a stream, for every reader: many split text at each line end of Unicode (Python's
// str.splitlines, httpx), and JSON may have these characters inside of strings.

const ENDS = /[\u0085\u2028\u2029]/g;

/** The same JSON with these characters escaped. `json` must have no line ends outside of strings. */
export function oneLine(json: string): string {
  return json.replace(ENDS, (end) => `\\u${end.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
