// A client's call of the control plane, as far as it goes on to engines.

import type { EngineOperation } from "../../core/rollout/operation.ts";
import type { Exchange } from "../route.ts";

export interface ControlCall {
  readonly query: Readonly<Record<string, string>>;
  /** Body as parsed JSON; null: none. */
  readonly body: unknown;
}

export const RPC_PATH = "/collective_rpc";

const METHOD_CHARACTERS = 100;

/** Values of a key that comes several times (`tags`) are joined with commas. */
export async function callOf(exchange: Exchange): Promise<ControlCall> {
  const { searchParams: params } = exchange.url;
  const query = Object.fromEntries(
    [...params.keys()].map((key) => [key, params.getAll(key).join(",")]),
  );
  const body = exchange.method === "GET" ? null : await exchange.json();
  const method: unknown = exchange.url.pathname === RPC_PATH ? Object(body).method : null;
  if (typeof method === "string") exchange.about = method.slice(0, METHOD_CHARACTERS);
  return { query, body };
}

const LOAD_FIELDS: ReadonlySet<string> = new Set(["method", "kwargs", "weight_version"]);

/** A call of `/collective_rpc`: `reload_weights` with a path and nothing unusual is the operation that every engine has. */
export function rpcOf(body: unknown): EngineOperation {
  const { method, kwargs, weight_version: version = null } = Object(body);
  const { weights_path: path, ...options } = Object(kwargs);
  const isLoad =
    method === "reload_weights" &&
    Object.keys(Object(body)).every((field) => LOAD_FIELDS.has(field));
  const isNamed = version === null || typeof version === "string";
  if (!isLoad || typeof path !== "string" || !isNamed) return { kind: "rpc", body };
  return { kind: "load", path, version, options };
}
