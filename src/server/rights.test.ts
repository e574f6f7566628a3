// Every route has its right, and the table has no other: a route that is added without one fails here.

import { expect, test } from "bun:test";
import { describedRoutes } from "../serve-routes.ts";
import { listedRight, rightFor, socketRight } from "./rights.ts";

const names = describedRoutes().map(({ method, path }) => `${method} ${path}`);

test("rights: every route is in the table", () => {
  expect(names.filter((name) => listedRight(name) === null)).toEqual([]);
});

test("rights: only GET and the checks of load balancers need less than the API token", () => {
  const less = names.filter((name) => listedRight(name) !== "write");
  expect(less.filter((name) => !name.startsWith("GET ") && name !== "POST /ping")).toEqual([]);
});

test("rights: what changes or generates something needs the API token, GET or not", () => {
  for (const name of ["GET /flush_cache", "GET /v1/rollouts/:id/groups", "POST /update_weights"]) {
    expect([name, listedRight(name)]).toEqual([name, "write"]);
  }
  expect([socketRight("/v1/stream"), socketRight("/v1/draft")]).toEqual(["read", "write"]);
});

test("rights: a route or socket that is not in the table needs the API token", () => {
  expect(rightFor({ method: "GET", path: "/new" })).toBe("write");
  expect(socketRight("/new")).toBe("write");
});
