// The page's own routes, beside the stream.

import { AppError } from "../../core/base/errors.ts";
import type { Text } from "../../text/text.ts";
import type { CompletedGroups } from "../completed-groups.ts";
import { pageResponse } from "../page/html.ts";
import { jsonResponse, type Row, wholeNumber } from "../route.ts";
import type { Sidecar } from "../sidecar.ts";
import { responseDetail } from "./response-detail.ts";
import type { LiveView } from "./view.ts";

interface Parts {
  readonly live: LiveView;
  readonly completed: CompletedGroups;
  readonly sidecar: Sidecar;
  readonly text: Text;
}

export const LIVE_ROUTES: readonly Row<Parts>[] = [
  {
    method: "GET",
    path: "/foretoken/live",
    summary: "The current iteration, the last ones, and the responses that it waits for",
    handle: ({ live }) => jsonResponse(live.answer()),
  },
  {
    method: "GET",
    path: "/v1/waiting",
    summary:
      "What the server waits for, one line each; paused sessions, and the progress clocks of engines",
    handle: ({ live }) => jsonResponse(live.waiting()),
  },
  {
    method: "GET",
    path: "/foretoken/timeline",
    summary: "The chunks of the iteration, as `foretoken trace` takes them",
    handle: ({ live, sidecar }) => {
      const timeline = sidecar.rollout.meter.timeline();
      return jsonResponse({ runs: { [`iteration ${live.iteration}`]: { timeline } } });
    },
  },
  {
    method: "GET",
    path: "/foretoken/picture",
    summary:
      "The picture of the current iteration, or of one of the last 50, as a page with its data",
    query: { iteration: { type: "integer", minimum: 1 } },
    answers: ["text/html"],
    handle: ({ live }, { url }) => {
      const number = url.searchParams.get("iteration");
      return pageResponse(live.picture(number === null ? null : wholeNumber("iteration", number)));
    },
  },
  {
    method: "GET",
    path: "/foretoken/iterations/:number",
    summary:
      "One of the last 50 iterations: figures, its picture's data, the responses that ended last, and its groups that are kept; of the current one, its groups",
    handle: ({ live }, { params }) =>
      jsonResponse(live.earlier(wholeNumber("number", params.number ?? ""))),
  },
  {
    method: "GET",
    path: "/foretoken/responses/:id",
    summary: "A response's chunks, tokens and logprobs; of complete groups, the last that are kept",
    query: { from: { type: "integer", minimum: 0 } },
    handle: ({ live, completed, text }, { params, url }) => {
      const id = wholeNumber("id", params.id ?? "");
      const from = wholeNumber("from", url.searchParams.get("from") ?? "0");
      const request = live.request(id);
      if (request === null) {
        const bound = `responses of complete groups are kept up to ${completed.kept.bytesMax / 2 ** 20} MB, the last ones`;
        const problem = `request ${id} is not here: it never was, or is not kept; ${bound}`;
        throw new AppError("not_found", problem);
      }
      const { nameOf } = live;
      return jsonResponse(responseDetail(request, { from, text, nameOf }));
    },
  },
];
