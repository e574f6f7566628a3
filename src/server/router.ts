// Finds the route of a request by path and method, and gives it the parts of the path that it names.

import { AppError } from "../core/base/errors.ts";
import type { Exchange, Route } from "./route.ts";

interface Found {
  readonly route: Route;
  readonly params: Readonly<Record<string, string>>;
}

export class Router {
  readonly #exact = new Map<string, Found[]>();
  readonly #patterns: { readonly route: Route; readonly pattern: URLPattern }[] = [];
  readonly #otherwise: Route["handle"];

  /** `otherwise`: answers requests that match no route. Default: 404. */
  constructor(routes: readonly Route[], otherwise: Route["handle"] = notFound) {
    this.#otherwise = otherwise;
    for (const route of routes) {
      const { path: pathname } = route;
      const isPattern = pathname.includes("/:");
      if (isPattern) this.#patterns.push({ route, pattern: new URLPattern({ pathname }) });
      else this.#exact.set(pathname, [...(this.#exact.get(pathname) ?? []), { route, params: {} }]);
    }
  }

  /** `permit`: called first, with the route or null. @throws AppError not_found, and as `permit` and the route. */
  async handle(
    exchange: Exchange,
    permit: (route: Route | null) => void = () => {},
  ): Promise<Response> {
    const { method, url } = exchange;
    const wanted = method === "HEAD" ? "GET" : method;
    const isWanted = ({ route }: Found) => route.method === wanted;
    const exact = this.#exact.get(url.pathname) ?? [];
    const others = exact.some(isWanted) ? [] : this.#matching(url.pathname);
    const found = [...exact, ...others];
    const one = found.find(isWanted);
    permit(one?.route ?? null);
    if (one !== undefined) {
      const { route, params } = one;
      const given = route.right === "open" ? bare(exchange) : exchange;
      return await route.handle(Object.assign(given, { params }));
    }
    if (found.length === 0) return await this.#otherwise(exchange);
    const allow = [...new Set(found.map(({ route }) => route.method))].join(", ");
    const message = `${url.pathname} takes ${allow}`;
    const error = { message, type: "BadRequestError", param: null, code: 405 };
    return Response.json({ error }, { status: 405, headers: { allow } });
  }

  #matching(pathname: string): Found[] {
    return this.#patterns.flatMap(({ route, pattern }): Found[] => {
      const groups = pattern.exec({ pathname })?.pathname.groups;
      if (groups === undefined) return [];
      const parts = Object.entries(groups).map(([name, part]) => [name, decoded(part ?? "")]);
      return [{ route, params: Object.fromEntries(parts) }];
    });
  }
}

/** The exchange of an open route, which anybody may call, without query and body: wrappers of its handler cannot read them. */
function bare(exchange: Exchange): Exchange {
  const url = new URL(exchange.url.pathname, exchange.url);
  const none = async () => "";
  return { ...exchange, url, json: async () => null, digest: none, source: none };
}

function notFound({ url }: Exchange): never {
  throw new AppError("not_found", `there is no ${url.pathname} here`);
}

/** The part of a path without its escapes. */
export function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
