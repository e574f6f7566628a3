// Pictures of iterations as a page to keep: self-contained, with the data of the pictures in it as JSON.

import { figureOf, type MeasuredRun, type RunFigure } from "./figure.ts";
import { duration, escaped, picture } from "./svg.ts";

/** A picture with what is said about it: plain text. */
export interface PagePart {
  readonly title: string | null;
  readonly headline: string;
  readonly runs: readonly RunFigure[];
  readonly facts: readonly string[];
}

/** `flag`: what holds for the whole page; null: nothing. */
export function savedPage(title: string, parts: readonly PagePart[], flag: string | null = null) {
  const data = parts.map(({ headline, runs }) => ({ headline, runs }));
  const body = parts.map((part) => [
    ...(part.title === null ? [] : [`<h2>${escaped(part.title)}</h2>`]),
    picture(part.headline, part.runs),
    ...part.facts.map((fact) => `<p>${escaped(fact)}</p>`),
  ]);
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>${escaped(title)}</title><style>${STYLE}</style></head><body>
${flag === null ? "" : `<p class="flag">${escaped(flag)}</p>`}
${body.flat().join("\n")}
<script type="application/json" id="data">${JSON.stringify(data).replaceAll("<", "\\u003c")}</script>
</body></html>
`;
}

/** The page of iterations that were measured one beside another. `areEqual`: all made the same responses. */
export function comparisonPage(
  runs: readonly (MeasuredRun & { readonly requests: number })[],
  { areEqual, facts }: { readonly areEqual: boolean; readonly facts: readonly string[] },
): string {
  const figures = runs.map(figureOf);
  const part = { title: null, headline: headlineOf(runs, areEqual), runs: figures, facts };
  return savedPage("foretoken rollout", [part]);
}

/** "The same 32 responses: 64 s, 29 s, 20 s". */
export function headlineOf(
  runs: readonly { readonly wall_s: number; readonly requests: number }[],
  areEqual: boolean,
): string {
  const requests = runs[0]?.requests ?? 0;
  const count = `${requests.toLocaleString("en-US")} response${requests === 1 ? "" : "s"}`;
  const times = runs.map(({ wall_s }) => duration(wall_s)).join(", ");
  return runs.length > 1 && areEqual ? `The same ${count}: ${times}` : `${count}: ${times}`;
}

/** Where the page of a report stands: beside it. */
export const pagePath = (report: string): string => `${report.replace(/\.json$/, "")}.html`;

const STYLE = `
body{font:15px/1.5 system-ui,sans-serif;background:#f5f5f2;color:#1b1c1e;max-width:1120px;margin:0 auto;padding:20px 20px 48px}
h2{font-size:20px;margin:32px 0 8px}p{margin:10px 4px}.flag{background:#fbeccb;color:#5c3d00;padding:8px 14px;border-radius:8px}
@media (prefers-color-scheme:dark){body{background:#121416;color:#eceae4}.flag{background:#43330f;color:#ffe2a6}}
`;
