// Finds the route of a request by path and method, and gives it the parts of the path that it names.

import { AppError } from "../core/base/errors.ts";
import type { Exchange, Route } from "./route.ts";

interface Pattern {
  readonly parts: readonly string[];
  readonly route: Route;
}

export class Router {
  readonly #exact = new Map<string, Route[]>();
  readonly #patterns: Pattern[] = [];
  readonly #otherwise: Route["handle"];

  /** `otherwise`: for whatever no route is for. Default: 404. */
  constructor(routes: readonly Route[], otherwise: Route["handle"] = notFound) {
    this.#otherwise = otherwise;
    for (const route of routes) {
      if (route.path.includes("/:")) {
        this.#patterns.push({ parts: route.path.split("/"), route });
      } else {
        const there = this.#exact.get(route.path);
        if (there === undefined) this.#exact.set(route.path, [route]);
        else there.push(route);
      }
    }
  }

  /**
   * `permit`: called before anything is done, with the route, or null where none is for the request.
   * @throws AppError not_found, and what `permit` and the route throw.
   */
  async handle(
    exchange: Exchange,
    permit: (route: Route | null) => void = () => {},
  ): Promise<Response> {
    const { method, url } = exchange;
    const path = url.pathname;
    const exact = this.#exact.get(path) ?? [];
    const wanted = method === "HEAD" ? "GET" : method;
    const found = exact.find((route) => route.method === wanted);
    if (found !== undefined) {
      permit(found);
      return await found.handle(exchange);
    }
    const parts = path.split("/");
    const allowed = new Set(exact.map((route) => route.method));
    for (const { parts: pattern, route } of this.#patterns) {
      const params = match(pattern, parts);
      if (params === null) continue;
      if (route.method === wanted) {
        permit(route);
        return await route.handle(withParams(exchange, params));
      }
      allowed.add(route.method);
    }
    permit(null);
    if (allowed.size === 0) return await this.#otherwise(exchange);
    return Response.json(
      {
        error: {
          message: `${path} takes ${[...allowed].join(", ")}`,
          type: "BadRequestError",
          param: null,
          code: 405,
        },
      },
      { status: 405, headers: { allow: [...allowed].join(", ") } },
    );
  }
}

function notFound({ url }: Exchange): never {
  throw new AppError("not_found", `there is no ${url.pathname} here`);
}

function match(
  pattern: readonly string[],
  parts: readonly string[],
): Record<string, string> | null {
  if (pattern.length !== parts.length) return null;
  const params: Record<string, string> = {};
  for (const [i, part] of pattern.entries()) {
    const given = parts[i] ?? "";
    if (!part.startsWith(":")) {
      if (part !== given) return null;
    } else {
      if (given === "") return null;
      params[part.slice(1)] = decoded(given);
    }
  }
  return params;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function withParams(exchange: Exchange, params: Readonly<Record<string, string>>): Exchange {
  return {
    id: exchange.id,
    method: exchange.method,
    url: exchange.url,
    params,
    headers: exchange.headers,
    signal: exchange.signal,
    json: (lists) => exchange.json(lists),
    digest: () => exchange.digest(),
    release: () => exchange.release(),
    streams: () => exchange.streams(),
  };
}
