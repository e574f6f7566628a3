// Parts that adapters' control calls share: texts in bodies, the call that loads weights from a path, and the answer that says
// whether it worked. No dialect is known here.

import { InvalidFieldError } from "../core/base/errors.ts";
import type { Call, Done } from "../server/control/dialects.ts";
import { jsonResponse } from "../server/route.ts";

const PATH_CHARACTERS_MAX = 4096;

export const verdict = ({ isSuccess, status, message }: Done) =>
  jsonResponse({ success: isSuccess, message }, isSuccess ? 200 : Math.max(400, status));

/** vLLM's own method (v1/worker/gpu_worker.py); embedded engines have it too. */
export function reload(path: string, version: string | null = null): Call {
  return {
    route: "POST /collective_rpc",
    body: {
      method: "reload_weights",
      kwargs: { weights_path: path },
      ...(version !== null && { weight_version: version }),
    },
  };
}

export function textIn(body: unknown, field: string): string {
  const value = optionalTextIn(body, field);
  if (value === null || value === "") throw invalid(field, "is not a text");
  return value;
}

export function optionalTextIn(body: unknown, field: string): string | null {
  const value: unknown = Object(body)[field] ?? null;
  if (value === null) return null;
  if (typeof value !== "string") throw invalid(field, "is not a text");
  if (value.length <= PATH_CHARACTERS_MAX) return value;
  throw invalid(field, `has ${value.length} characters, more than ${PATH_CHARACTERS_MAX}`);
}

export function invalid(field: string, problem: string): InvalidFieldError {
  return new InvalidFieldError({ where: "request", field, problem });
}
