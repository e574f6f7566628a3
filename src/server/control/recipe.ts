// Whether a weight update can be repeated for an engine that is opened later: if its request contains the weights'
// path. Weights that a trainer sent over a network cannot.

import type { ControlRequest } from "../../core/rollout/worker.ts";
import type { Recipe } from "../../pool/give-weights.ts";

const PATH_FIELDS = ["weights_path", "weight_dir"];

/** The request contains the weights' path. */
function namesPath(body: unknown): boolean {
  if (typeof body !== "object" || body === null) return false;
  return Object.entries(body).some(
    ([field, value]) =>
      (PATH_FIELDS.includes(field) && typeof value === "string") || namesPath(value),
  );
}

/** What gives an engine the weights after `request`. */
export function baseAfter(request: ControlRequest): Recipe["base"] {
  return namesPath(request.body) ? request : "unknown";
}
