// JSON as a line of a log, a file or a stream: a line for every reader. Many split text wherever Unicode ends a line
// (Python's str.splitlines, httpx), and JSON leaves these characters as they are inside of its strings.

const ENDS = /[\u0085\u2028\u2029]/g;

/** The same JSON without them; `json` has no line ends between its tokens. */
export function oneLine(json: string): string {
  return json.replace(ENDS, (end) => `\\u${end.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
