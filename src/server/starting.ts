// Answers requests before the model is known: the server is up, and /health gives the reasons for the wait.

import { AppError } from "../core/base/errors.ts";
import type { Served } from "./http.ts";
import { jsonResponse, type Route, type RouteInfo } from "./route.ts";

/** Answer to GET /version: vLLM's, and a name by which clients can tell this server from vLLM. */
export function versionAnswer(version: string): { version: string; server: "foretoken" } {
  return { version, server: "foretoken" };
}

/** Rights and answer of the probes: load balancers ask without a token. */
const PROBE = { right: "open", answers: [], isProbe: true } as const;

export const HEALTH_ROUTES: readonly RouteInfo[] = [
  {
    method: "GET",
    path: "/health",
    summary: "Whether any worker serves",
    ...PROBE,
  },
  { method: "GET", path: "/ping", summary: "As /health", ...PROBE },
  { method: "POST", path: "/ping", summary: "As /health", ...PROBE },
];

export const VERSION_ROUTE: RouteInfo = {
  method: "GET",
  path: "/version",
  summary: "The version of this server",
};

export function starting({
  version,
  waitsFor,
  routes,
}: {
  version: string;
  waitsFor: () => string;
  routes: readonly Route[];
}): Served {
  const health: Route["handle"] = () =>
    jsonResponse({ status: `starting: ${waitsFor()}`, workers: [] }, 503);
  return {
    routes: [
      ...HEALTH_ROUTES.map((info) => ({ ...info, handle: health })),
      { ...VERSION_ROUTE, handle: () => jsonResponse(versionAnswer(version)) },
      ...routes,
    ],
    sockets: {},
    otherwise: () => {
      throw new AppError("no_worker", `the server is starting: ${waitsFor()}`);
    },
  };
}
