// A control request as the engines are asked it: a client's own, or one that an adapter makes of another call.

import type { ControlRequest } from "../../core/rollout/worker.ts";
import type { Exchange } from "../route.ts";

/** A control request whose epoch is not known yet. */
export type ControlCall = Omit<ControlRequest, "nextEpoch">;

/** Paths of calls that adapters make too, or that are answered otherwise than others. */
export const PATHS = {
  rpc: "/collective_rpc",
  loadAdapter: "/v1/load_lora_adapter",
  unloadAdapter: "/v1/unload_lora_adapter",
} as const;

export function posted(
  path: string,
  body: unknown = null,
  query: ControlCall["query"] = {},
): ControlCall {
  return { method: "POST", path, query, body };
}

/** Values of a key that comes several times (`tags`) are joined with commas. */
export async function callOf(exchange: Exchange): Promise<ControlCall> {
  const { pathname: path, searchParams: params } = exchange.url;
  const query = Object.fromEntries(
    [...params.keys()].map((key) => [key, params.getAll(key).join(",")]),
  );
  if (exchange.method === "GET") return { method: "GET", path, query, body: null };
  return posted(path, await exchange.json(), query);
}
