// The OpenAPI document of the whole server, made from the routes that there are: a route without a
// description, or a description without a route, cannot be.

import { AppError } from "../core/base/errors.ts";
import { jsonResponse, type Route } from "./route.ts";

/** The document's description of one route. */
export interface RouteDescription {
  readonly method: Route["method"];
  readonly path: string;
  readonly summary: string;
  /** JSON Schema of the body; null: it takes none, or any. */
  readonly request: object | null;
  /** It may answer with a stream of events. */
  readonly streams: boolean;
  /** Media types of its answer; none: it is empty. Default: JSON. */
  readonly answers?: readonly string[];
  /** JSON Schema of its answer, where that is JSON. Default: any. */
  readonly answer?: object;
  /** JSON Schemas of the parameters in the query; none is required. */
  readonly query?: Readonly<Record<string, object>>;
}

const ERROR_SCHEMA = {
  type: "object",
  required: ["error"],
  properties: {
    error: {
      type: "object",
      required: ["message", "type", "code"],
      properties: {
        message: { type: "string" },
        type: { type: "string" },
        param: { type: ["string", "null"] },
        code: { type: "integer" },
      },
    },
  },
};

/** @throws AppError invalid_config: routes and descriptions differ. */
export function openApiRoute(
  routes: readonly Route[],
  descriptions: readonly RouteDescription[],
  version: string,
): Route {
  const document = openApiDocument(routes, descriptions, version);
  return { method: "GET", path: "/openapi.json", handle: () => jsonResponse(document) };
}

function openApiDocument(
  routes: readonly Route[],
  descriptions: readonly RouteDescription[],
  version: string,
): object {
  const described = new Map(descriptions.map((one) => [nameOf(one), one]));
  const paths: Record<string, Record<string, object>> = {};
  for (const route of routes) {
    const name = nameOf(route);
    const description = described.get(name);
    if (description === undefined) throw new AppError("invalid_config", `${name} is not described`);
    described.delete(name);
    const path = route.path.replace(/:(\w+)/g, "{$1}");
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: operationOf(description) };
  }
  const [left] = described.keys();
  if (left !== undefined)
    throw new AppError("invalid_config", `${left} is described, and no route`);
  return {
    openapi: "3.1.0",
    info: {
      title: "Foretoken",
      version,
      license: { name: "Apache-2.0", identifier: "Apache-2.0" },
    },
    paths,
    components: {
      schemas: { Error: ERROR_SCHEMA },
      securitySchemes: { token: { type: "http", scheme: "bearer" } },
    },
    security: [{}, { token: [] }],
  };
}

const JSON_ONLY = ["application/json"];

function operationOf(description: RouteDescription): object {
  const { path, summary, request, streams, answers = JSON_ONLY, query = {} } = description;
  const answer = description.answer === undefined ? {} : { schema: description.answer };
  const names = [...path.matchAll(/:(\w+)/g)].map((match) => match[1]);
  const types = streams ? [...answers, "text/event-stream"] : answers;
  const content = Object.fromEntries(
    types.map((type) => [type, type === "application/json" ? answer : {}]),
  );
  const error = {
    content: { "application/json": { schema: { $ref: "#/components/schemas/Error" } } },
  };
  return {
    summary,
    parameters: [
      ...names.map((name) => ({
        name,
        in: "path",
        required: true,
        schema: { type: "string" },
      })),
      ...Object.entries(query).map(([name, schema]) => ({ name, in: "query", schema })),
    ],
    ...(request === null
      ? {}
      : { requestBody: { required: true, content: { "application/json": { schema: request } } } }),
    responses: {
      200: { description: "done", ...(types.length === 0 ? {} : { content }) },
      "4XX": { description: "the request is wrong", ...error },
      "5XX": { description: "it cannot be served now", ...error },
    },
  };
}

function nameOf({ method, path }: { method: string; path: string }): string {
  return `${method} ${path}`;
}
