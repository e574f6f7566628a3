// The page as one file: its markup with styles, scripts and the chart library in it, so that a browser loads nothing else.

import uplot from "uplot/dist/uPlot.iife.min.js" with { type: "text" };
import chartsStyle from "uplot/dist/uPlot.min.css" with { type: "text" };
import charts from "./charts.js" with { type: "text" };
import detail from "./detail.js" with { type: "text" };
import map from "./map.js" with { type: "text" };
import style from "./page.css" with { type: "text" };
import markup from "./page.html" with { type: "text" };
import page from "./page.js" with { type: "text" };
import state from "./state.js" with { type: "text" };

/** Bun's types know HTML files only as bundles of a server. */
const MARKUP = markup as unknown as string;

export const PAGE_HTML = MARKUP.replace("/* styles */", () => chartsStyle + style).replace(
  "<!-- scripts -->",
  // Scripts of one document share their declarations. The last one starts.
  () =>
    [uplot, state, charts, map, detail, page]
      .map((text) => `<script>\n${text}</script>`)
      .join("\n"),
);
