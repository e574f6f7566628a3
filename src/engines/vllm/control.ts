// The engine's control plane is vLLM's own: a request is passed on unchanged.

import { errorText } from "../../core/base/errors.ts";
import { parseJson } from "../../core/base/json.ts";
import type { ControlAnswer, ControlRequest } from "../../core/rollout/worker.ts";
import type { ControlPlane } from "./dialect.ts";
import type { HttpAnswer, HttpCall, HttpClient } from "./http.ts";

/** Longest deadline of a caller: each has its own, `--weights-timeout-s` at most. */
export const CALLER_MS_MAX = 86_400_000;
const SLEEPING: HttpCall = { method: "GET", path: "/is_sleeping", body: null };
const SLEEPING_MS_MAX = 30_000;

export function vllmControl(client: HttpClient): ControlPlane {
  return {
    async answer(request) {
      let call: HttpCall;
      try {
        call = controlCall(request);
      } catch (error) {
        return { status: 400, body: { error: `it cannot be sent on: ${errorText(error)}` } };
      }
      return controlAnswer(client.url, await client.answer(call, CALLER_MS_MAX));
    },
    // Only development mode reports it; a server without it has no sleep either.
    async isAsleep() {
      const answer = await client.answer(SLEEPING, SLEEPING_MS_MAX);
      if (answer.kind !== "answer" || answer.status !== 200) return false;
      return /"is_sleeping"\s*:\s*true/.test(answer.body);
    },
  };
}

function controlCall({ method, path, query, body }: ControlRequest): HttpCall {
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

/** The answer of vLLM's workers to an unknown method, as HTTP 500: nothing was done. */
const NO_METHOD = /Method '[^']*' is not implemented/;

/** An answer's body as JSON: text that is not JSON becomes a string, an empty body null. */
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
