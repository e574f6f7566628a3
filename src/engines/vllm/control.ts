// The engine's control plane is vLLM's own: a request is passed on unchanged.

import { parseJson } from "../../core/base/json.ts";
import type { ControlAnswer, ControlRequest } from "../../core/rollout/worker.ts";
import type { HttpAnswer, HttpCall } from "./http.ts";

export function controlCall({ method, path, query, body }: ControlRequest): HttpCall {
  // vLLM reads a list as a key that comes several times.
  const pairs = Object.entries(query).flatMap(([key, value]): [string, string][] =>
    key === "tags" ? value.split(",").map((tag) => [key, tag]) : [[key, value]],
  );
  const parameters = new URLSearchParams(pairs).toString();
  return {
    method,
    path: parameters === "" ? path : `${path}?${parameters}`,
    body: body === null || body === undefined ? null : JSON.stringify(body),
  };
}

/** The adapter that a canary is to generate with; null: none. */
export function canaryModel(body: unknown): string | null {
  const model = typeof body === "object" && body !== null ? Reflect.get(body, "model") : null;
  return typeof model === "string" ? model : null;
}

/** The answer of vLLM's workers to an unknown method, as HTTP 500: nothing was done. */
const NO_METHOD = /Method '[^']*' is not implemented/;

/** What is not JSON becomes a string; an empty body null. */
export function controlAnswer(url: string, answer: HttpAnswer): ControlAnswer {
  if (answer.kind === "unreachable") {
    return { status: 502, body: { error: `${url}: ${answer.message}` } };
  }
  const { body } = answer;
  const status = answer.status === 500 && NO_METHOD.test(body) ? 400 : answer.status;
  if (body === "") return { status, body: null };
  try {
    return { status, body: parseJson(body) };
  } catch {
    return { status, body };
  }
}
