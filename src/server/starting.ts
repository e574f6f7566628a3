// Answers requests before the model is known: the server is up, and /health gives the reasons for the wait.

import { AppError } from "../core/base/errors.ts";
import type { Served } from "./http.ts";
import { jsonResponse, type Route } from "./route.ts";

/** Of GET /version: as vLLM's, and a name by which clients can tell this server from vLLM. */
export function versionAnswer(version: string): { version: string; server: "foretoken" } {
  return { version, server: "foretoken" };
}

/** `waitsFor`: why nothing is served yet. */
export function starting({
  version,
  waitsFor,
  routes,
}: {
  version: string;
  waitsFor: () => string;
  /** Those that can be answered already. */
  routes: readonly Route[];
}): Served {
  const health: Route["handle"] = () =>
    jsonResponse({ status: `starting: ${waitsFor()}`, workers: [] }, 503);
  return {
    routes: [
      { method: "GET", path: "/health", handle: health },
      { method: "GET", path: "/ping", handle: health },
      { method: "POST", path: "/ping", handle: health },
      { method: "GET", path: "/version", handle: () => jsonResponse(versionAnswer(version)) },
      ...routes,
    ],
    sockets: {},
    otherwise: () => {
      throw new AppError("no_worker", `the server is starting: ${waitsFor()}`);
    },
  };
}
