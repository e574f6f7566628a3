// A client's control request as the engines are asked it.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { ControlRequest } from "../../core/rollout/worker.ts";
import type { Exchange } from "../route.ts";

/** What is wanted of the engines, before it is known under which epoch. */
export type ControlCall = Omit<ControlRequest, "nextEpoch">;

export async function callOf(exchange: Exchange): Promise<ControlCall> {
  return {
    method: exchange.method === "GET" ? "GET" : "POST",
    path: exchange.url.pathname,
    query: queryOf(exchange.url.searchParams),
    body: exchange.method === "GET" ? null : await exchange.json(),
  };
}

export async function requestOf(
  exchange: Exchange,
  nextEpoch: WeightEpoch,
): Promise<ControlRequest> {
  return { ...(await callOf(exchange)), nextEpoch };
}

/** Values of a key that comes several times (`tags`) are joined with commas. */
function queryOf(params: URLSearchParams): Record<string, string> {
  return Object.fromEntries([...params.keys()].map((key) => [key, params.getAll(key).join(",")]));
}
