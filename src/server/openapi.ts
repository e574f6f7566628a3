// The OpenAPI document of the whole server, made from the rows of its routes.

import { jsonSchemaOf } from "./openai/fields.ts";
import { jsonResponse, type Route, type RouteInfo } from "./route.ts";

const TEXT = { type: "string" } as const;
const ERROR = {
  type: "object",
  required: ["message", "type", "code"],
  properties: {
    message: TEXT,
    type: TEXT,
    param: { type: ["string", "null"] },
    code: { type: "integer" },
  },
};
const ERROR_SCHEMA = { type: "object", required: ["error"], properties: { error: ERROR } };

export function openApiRoute(routes: readonly RouteInfo[], version: string): Route {
  let document: object | null = null;
  // Made when it is asked for first: most processes never are.
  const handle = () => {
    document ??= openApiDocument([...routes, OPENAPI_ROUTE], version);
    return jsonResponse(document);
  };
  return { ...OPENAPI_ROUTE, handle };
}

export const OPENAPI_ROUTE: RouteInfo = {
  method: "GET",
  path: "/openapi.json",
  summary: "The OpenAPI document of this server",
};

function openApiDocument(routes: readonly RouteInfo[], version: string): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const route of routes) {
    const path = route.path.replace(/:(\w+)/g, "{$1}");
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: operationOf(route) };
  }
  const license = { name: "Apache-2.0", identifier: "Apache-2.0" };
  const securitySchemes = { token: { type: "http", scheme: "bearer" } };
  return {
    openapi: "3.1.0",
    info: { title: "Foretoken", version, license },
    paths,
    components: { schemas: { Error: ERROR_SCHEMA }, securitySchemes },
  };
}

const JSON_ONLY = ["application/json"];

function ofJson(schema: object) {
  return { content: { "application/json": { schema } } };
}

function operationOf(route: RouteInfo): object {
  const { path, summary, right, schema, streams = false, answers = JSON_ONLY, query = {} } = route;
  const names = [...path.matchAll(/:(\w+)/g)].map((match) => match[1]);
  const types = streams ? [...answers, "text/event-stream"] : answers;
  const content = Object.fromEntries(types.map((type) => [type, {}]));
  const error = ofJson({ $ref: "#/components/schemas/Error" });
  return {
    summary,
    // A server without a token needs none.
    security: right === "open" ? [] : [{}, { token: [] }],
    parameters: [
      ...names.map((name) => ({ name, in: "path", required: true, schema: TEXT })),
      ...Object.entries(query).map(([name, schema]) => ({ name, in: "query", schema })),
    ],
    ...(schema && { requestBody: { required: true, ...ofJson(jsonSchemaOf(schema)) } }),
    responses: {
      200: { description: "done", ...(types.length > 0 && { content }) },
      "4XX": { description: "the request is wrong", ...error },
      "5XX": { description: "it cannot be served now", ...error },
    },
  };
}
