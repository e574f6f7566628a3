// A picture of iterations as a page to keep: self-contained, with the picture's data in it as JSON.

import { figureOf, type MeasuredRun, type RunFigure } from "./figure.ts";
import { duration, escaped, picture } from "./svg.ts";

/** Texts of the page around the picture; they are plain text, not HTML. */
export interface SavedPicture {
  readonly title: string;
  readonly headline: string;
  readonly runs: readonly RunFigure[];
  /** Sentences below the picture. */
  readonly facts: readonly string[];
  /** A warning above it; absent: none. */
  readonly flag?: string;
}

export function savedPage({ title, headline, runs, facts, flag }: SavedPicture): string {
  const data = JSON.stringify({ headline, runs }).replaceAll("<", "\\u003c");
  const body = [
    ...(flag === undefined ? [] : [`<p class="flag">${escaped(flag)}</p>`]),
    picture(headline, runs),
    ...facts.map((fact) => `<p>${escaped(fact)}</p>`),
  ];
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>${escaped(title)}</title><style>${STYLE}</style></head><body>
${body.join("\n")}
<script type="application/json" id="data">${data}</script>
</body></html>
`;
}

/** The page of several iterations, measured one after another. `areEqual`: all made the same responses. */
export function comparisonPage(
  runs: readonly (MeasuredRun & { readonly requests: number })[],
  { areEqual, facts }: { readonly areEqual: boolean; readonly facts: readonly string[] },
): string {
  const headline = headlineOf(runs, areEqual);
  return savedPage({ title: "foretoken rollout", headline, runs: runs.map(figureOf), facts });
}

/** A headline such as "The same 32 responses: 64 s, 29 s, 20 s". */
export function headlineOf(
  runs: readonly { readonly wall_s: number; readonly requests: number }[],
  areEqual: boolean,
): string {
  const requests = runs[0]?.requests ?? 0;
  const count = `${requests.toLocaleString("en-US")} response${requests === 1 ? "" : "s"}`;
  const times = runs.map(({ wall_s }) => duration(wall_s)).join(", ");
  return runs.length > 1 && areEqual ? `The same ${count}: ${times}` : `${count}: ${times}`;
}

/** Path of a report's page: beside the report. */
export const pagePath = (report: string): string => `${report.replace(/\.json$/, "")}.html`;

const STYLE = `
body{font:15px/1.5 system-ui,sans-serif;background:#f5f5f2;color:#1b1c1e;max-width:1120px;margin:0 auto;padding:20px 20px 48px}
p{margin:10px 4px}.flag{background:#fbeccb;color:#5c3d00;padding:8px 14px;border-radius:8px}
@media (prefers-color-scheme:dark){body{background:#121416;color:#eceae4}.flag{background:#43330f;color:#ffe2a6}}
`;
