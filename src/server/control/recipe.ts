// What gives an engine that is opened later the weights that the others have: the requests that led to them, where
// these can be repeated. Weights that a trainer sent over a network cannot: then there is no recipe.

import type { ControlRequest } from "../../rollout/worker.ts";
import type { Recipe } from "../worker-pool.ts";

/** Adapters that an engine opened anew is given, at most; beyond, it waits for the trainer. */
const ADAPTERS_MAX = 64;

/** Before any update: an engine is opened with these weights. */
export const FIRST_WEIGHTS: Recipe = { isWhole: false, requests: [] };

const PATH_FIELDS = ["weights_path", "weight_dir", "lora_path"];

/** The request says where the weights lie. */
function namesPath(body: unknown): boolean {
  if (typeof body !== "object" || body === null) return false;
  return Object.entries(body).some(
    ([field, value]) =>
      (PATH_FIELDS.includes(field) && typeof value === "string") || namesPath(value),
  );
}

export const isAdapter = ({ path }: Pick<ControlRequest, "path">): boolean =>
  path.endsWith("_lora_adapter");

export function adapterIn(body: unknown): unknown {
  return typeof body === "object" && body !== null ? Reflect.get(body, "lora_name") : undefined;
}

/** What leads to the weights after `request`; adapters stay through an update of the weights under them. */
export function recipeAfter(before: Recipe | null, request: ControlRequest): Recipe | null {
  if (!isAdapter(request)) {
    if (!namesPath(request.body)) return null;
    const adapters = before?.requests.filter(isAdapter) ?? [];
    return { isWhole: true, requests: [request, ...adapters] };
  }
  if (before === null) return null;
  const name = adapterIn(request.body);
  const others = before.requests.filter((one) => !isAdapter(one) || adapterIn(one.body) !== name);
  const requests = namesPath(request.body) ? [...others, request] : others;
  return requests.length > ADAPTERS_MAX ? null : { ...before, requests };
}
