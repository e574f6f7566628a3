// Reports every control call that may change something: request, outcome and duration.

import { errorText } from "../../core/base/errors.ts";
import { CLIENT_GONE, statusOf } from "../http-errors.ts";
import { type Exchange, type Route, reasonIn } from "../route.ts";
import { RPC_PATH } from "./control-call.ts";

export interface ControlEntry {
  readonly id: string;
  readonly path: string;
  /** The query, and for a call into the engines the method's name. */
  readonly asked: string;
  readonly status: number;
  readonly ms: number;
  /** Reasons of the failure, engine by engine; null: the request succeeded. */
  readonly reason: string | null;
}

/** The routes, with `notify` called at the end of every POST. */
export function logged(routes: readonly Route[], notify: (entry: ControlEntry) => void): Route[] {
  return routes.map((route) =>
    route.method === "GET"
      ? route
      : { ...route, handle: (exchange) => handled(route, exchange, notify) },
  );
}

async function handled(
  route: Route,
  exchange: Exchange,
  notify: (entry: ControlEntry) => void,
): Promise<Response> {
  const startMs = performance.now();
  const tell = (status: number, reason: string | null, method: string) => {
    const asked = [exchange.url.search.slice(1), method].filter((part) => part !== "").join(" ");
    const ms = performance.now() - startMs;
    notify({ id: exchange.id, path: route.path, asked, status, ms, reason });
  };
  let method = "";
  try {
    if (route.path === RPC_PATH) method = methodIn(await exchange.json());
    const response = await route.handle(exchange);
    tell(response.status, await reasonIn(response), method);
    return response;
  } catch (error) {
    const status = exchange.signal.aborted ? CLIENT_GONE : statusOf(error);
    tell(status, errorText(error), method);
    throw error;
  }
}

const METHOD_CHARACTERS = 100;

function methodIn(body: unknown): string {
  const method: unknown = Object(body).method;
  return typeof method === "string" ? method.slice(0, METHOD_CHARACTERS) : "";
}
