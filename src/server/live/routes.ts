// The page's own routes, beside the stream.

import { InvalidFieldError } from "../../base/errors.ts";
import type { Text } from "../../text/text.ts";
import type { RouteDescription } from "../openapi.ts";
import { jsonResponse, type Route } from "../route.ts";
import type { Sidecar } from "../sidecar.ts";
import type { WorkerPool } from "../worker-pool.ts";
import { responseDetail } from "./response-detail.ts";
import type { LiveView } from "./view.ts";

export function liveRoutes(parts: {
  live: LiveView;
  sidecar: Sidecar;
  pool: WorkerPool;
  text: Text;
}): Route[] {
  const { live, sidecar, pool, text } = parts;
  const nameOf = (worker: number) =>
    pool.members.find(({ workerId }) => workerId === worker)?.source.name ?? `worker ${worker}`;
  return [
    {
      method: "GET",
      path: "/foretoken/live",
      handle: ({ url }) =>
        jsonResponse(live.answer({ samples: url.searchParams.get("samples") !== "false" })),
    },
    {
      method: "GET",
      path: "/foretoken/timeline",
      handle: () => {
        const { meter } = sidecar.rollout;
        const timeline = meter.timeline();
        return jsonResponse({ runs: { [`iteration ${meter.iteration}`]: { timeline } } });
      },
    },
    {
      method: "GET",
      path: "/foretoken/responses/:id",
      handle: ({ params, url }) => {
        const id = wholeNumber("id", params.id ?? "");
        const from = wholeNumber("from", url.searchParams.get("from") ?? "0");
        return jsonResponse(responseDetail(sidecar.rollout.requests, { id, from, text, nameOf }));
      },
    },
  ];
}

export const LIVE_DESCRIPTIONS: readonly RouteDescription[] = [
  {
    method: "GET",
    path: "/foretoken/live",
    summary: "The current iteration over time, the last ones, and the responses that it waits for",
    request: null,
    streams: false,
    query: { samples: { type: "boolean" } },
  },
  {
    method: "GET",
    path: "/foretoken/timeline",
    summary: "The chunks of the iteration, as `foretoken trace` takes them",
    request: null,
    streams: false,
  },
  {
    method: "GET",
    path: "/foretoken/responses/:id",
    summary: "A response's chunks, tokens and logprobs, while its group is not complete",
    request: null,
    streams: false,
    query: { from: { type: "integer", minimum: 0 } },
  },
];

function wholeNumber(field: string, text: string): number {
  const value = Number(text);
  if (text !== "" && Number.isSafeInteger(value) && value >= 0) return value;
  const problem = `is ${JSON.stringify(text)}, not a whole number`;
  throw new InvalidFieldError({ where: "request", field, problem });
}
