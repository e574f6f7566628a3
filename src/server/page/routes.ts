// The page: one HTML file that holds all it needs and talks to /v1/stream alone. The browser is instructed to
// load nothing else, from here or from anywhere.

import type { Route } from "../route.ts";
import { PAGE_HTML } from "./html.ts";

/** Inline script and style are the page's own; nothing in it contains clients' input. */
const POLICY =
  "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; " +
  "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

export const PAGE_ROUTE: Route = {
  method: "GET",
  path: "/",
  summary: "A page that shows the rollout",
  answers: ["text/html"],
  handle: () =>
    new Response(PAGE_HTML, {
      headers: {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": POLICY,
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
      },
    }),
};
