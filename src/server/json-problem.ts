// Why a body is not taken as JSON, as an answer says it.

import { JsonLimitError } from "../core/base/json.ts";

export function jsonProblem(error: unknown): string {
  const reason = error instanceof Error ? error.message : String(error);
  const problem = error instanceof JsonLimitError ? "is refused" : "is not JSON";
  return `the body ${problem}: ${reason}`;
}
