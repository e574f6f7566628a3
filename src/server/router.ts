// Finds the route of a request by path and method, and gives it the parts of the path that it names.

import { AppError } from "../core/base/errors.ts";
import type { Exchange, Route } from "./route.ts";

interface Found {
  readonly route: Route;
  readonly params: Readonly<Record<string, string>>;
}

export class Router {
  readonly #routes: readonly { readonly route: Route; readonly parts: readonly string[] }[];
  readonly #otherwise: Route["handle"];

  /** `otherwise`: for whatever no route is for. Default: 404. */
  constructor(routes: readonly Route[], otherwise: Route["handle"] = notFound) {
    this.#otherwise = otherwise;
    this.#routes = routes.map((route) => ({ route, parts: route.path.split("/") }));
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
    const found = this.#at(url.pathname.split("/"));
    const wanted = method === "HEAD" ? "GET" : method;
    // A path that is written out comes before a pattern that it fits.
    const one = found.find(({ route }) => route.method === wanted);
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

  #at(parts: readonly string[]): Found[] {
    const found = this.#routes.flatMap(({ route, parts: pattern }): Found[] => {
      const params = match(pattern, parts);
      return params === null ? [] : [{ route, params }];
    });
    return found.sort((a, b) => Object.keys(a.params).length - Object.keys(b.params).length);
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

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
