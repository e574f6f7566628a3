// The page as one file: its markup with styles and scripts in it. It talks to this server alone, and its
// policy lets the browser load nothing else, from here or from anywhere.

import type { Route } from "../route.ts";
import detail from "./detail.js" with { type: "text" };
import map from "./map.js" with { type: "text" };
import style from "./page.css" with { type: "text" };
import markup from "./page.html" with { type: "text" };
import page from "./page.js" with { type: "text" };
import state from "./state.js" with { type: "text" };

/** Bun's types know HTML files only as bundles of a server. */
const MARKUP = markup as unknown as string;

const PAGE_HTML = MARKUP.replace("/* styles */", () => style).replace(
  "<!-- scripts -->",
  // Scripts of one document share their declarations. The last one starts.
  () => [state, map, detail, page].map((text) => `<script>\n${text}</script>`).join("\n"),
);

/** Allows the page's own inline script and style; nothing in them contains clients' input. */
const OWN =
  "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/** A page of HTML that loads nothing. `policy`: what it may do beyond having styles. */
export function pageResponse(html: string, policy = "frame-ancestors 'none'"): Response {
  return new Response(html, {
    headers: {
      "content-type": "text/html; charset=utf-8",
      "content-security-policy": `default-src 'none'; style-src 'unsafe-inline'; ${policy}`,
      "referrer-policy": "no-referrer",
      "cache-control": "no-cache",
    },
  });
}

export const PAGE_ROUTE: Route = {
  method: "GET",
  path: "/",
  summary: "A page that shows the rollout",
  answers: ["text/html"],
  handle: () => pageResponse(PAGE_HTML, OWN),
};
