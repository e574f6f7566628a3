// Finds the route of a request by path and method, and gives it the parts of the path that it names.

import { AppError } from "../core/base/errors.ts";
import type { Exchange, Route } from "./route.ts";

interface Found {
  readonly route: Route;
  readonly params: Readonly<Record<string, string>>;
}

export class Router {
  /** Routes without parameters, by path. */
  readonly #exact = new Map<string, Found[]>();
  readonly #patterns: { readonly route: Route; readonly parts: readonly string[] }[] = [];
  readonly #otherwise: Route["handle"];

  /** `otherwise`: for whatever no route is for. Default: 404. */
  constructor(routes: readonly Route[], otherwise: Route["handle"] = notFound) {
    this.#otherwise = otherwise;
    for (const route of routes) {
      const { path } = route;
      if (path.includes("/:")) this.#patterns.push({ route, parts: path.split("/") });
      else this.#exact.set(path, [...(this.#exact.get(path) ?? []), { route, params: {} }]);
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
    const wanted = method === "HEAD" ? "GET" : method;
    const isWanted = ({ route }: Found) => route.method === wanted;
    const exact = this.#exact.get(url.pathname) ?? [];
    const others = exact.some(isWanted) ? [] : this.#matching(url.pathname.split("/"));
    const found = [...exact, ...others];
    const one = found.find(isWanted);
    permit(one?.route ?? null);
    if (one !== undefined) {
      exchange.params = one.params;
      return await one.route.handle(exchange);
    }
    if (found.length === 0) return await this.#otherwise(exchange);
    const allow = [...new Set(found.map(({ route }) => route.method))].join(", ");
    const message = `${url.pathname} takes ${allow}`;
    const error = { message, type: "BadRequestError", param: null, code: 405 };
    return Response.json({ error }, { status: 405, headers: { allow } });
  }

  #matching(parts: readonly string[]): Found[] {
    return this.#patterns.flatMap(({ route, parts: pattern }): Found[] => {
      const params = match(pattern, parts);
      return params === null ? [] : [{ route, params }];
    });
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
  for (let i = 0; i < parts.length; i += 1) {
    const [wanted = "", given = ""] = [pattern[i], parts[i]];
    if (wanted.startsWith(":") && given !== "") params[wanted.slice(1)] = decoded(given);
    else if (wanted !== given) return null;
  }
  return params;
}

/** The part of a path without its escapes. */
export function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
