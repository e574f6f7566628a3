// What the server answers before it knows what it serves: it is there, and it says what it waits for.

import { AppError } from "../base/errors.ts";
import type { Served } from "./http.ts";
import { jsonResponse, type Route } from "./route.ts";

/** `waitsFor`: why nothing is served yet. */
export function starting(version: string, waitsFor: () => string): Served {
  const health: Route["handle"] = () =>
    jsonResponse({ status: `starting: ${waitsFor()}`, workers: [] }, 503);
  return {
    routes: [
      { method: "GET", path: "/health", handle: health },
      { method: "GET", path: "/ping", handle: health },
      { method: "POST", path: "/ping", handle: health },
      { method: "GET", path: "/version", handle: () => jsonResponse({ version }) },
    ],
    sockets: {},
    otherwise: () => {
      throw new AppError("no_worker", `the server is starting: ${waitsFor()}`);
    },
  };
}
