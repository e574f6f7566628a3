// What an answer of a server says, for those who asked it: a field of its JSON, or what is wrong with it.

import { parseJson } from "../../core/base/json.ts";
import type { HttpAnswer } from "./http.ts";
import { errorMessage } from "./stream-event.ts";

const MESSAGE_CHARACTERS = 200;

/** null: it is no JSON object, or no success. */
export function jsonIn(answer: HttpAnswer): Readonly<Record<string, unknown>> | null {
  if (answer.kind !== "answer" || answer.status !== 200) return null;
  try {
    const json: unknown = parseJson(answer.body);
    return typeof json === "object" && json !== null
      ? (json as Readonly<Record<string, unknown>>)
      : null;
  } catch {
    return null;
  }
}

/** Of an answer that is not what was expected. */
export function problemIn(answer: HttpAnswer): string {
  if (answer.kind === "unreachable") return answer.message;
  if (answer.status === 200) return "the answer is not what was expected";
  return `HTTP ${answer.status} ${errorMessage(answer.body).slice(0, MESSAGE_CHARACTERS)}`;
}

/** null: it is as it should be. */
export function statusProblem(answer: HttpAnswer): string | null {
  if (answer.kind === "unreachable") return answer.message;
  return answer.status === 200 ? null : `HTTP ${answer.status}`;
}
