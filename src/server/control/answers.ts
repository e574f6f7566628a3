// One HTTP answer for those of all engines.

import { AppError } from "../../core/base/errors.ts";
import type { ControlAnswer, EngineOperation } from "../../core/rollout/operation.ts";
import { SILENT } from "../../fleet/engine-answer.ts";
import { type Outcome, textOf } from "../../fleet/fan-out.ts";
import { jsonResponse } from "../route.ts";

/**
 * One engine's answer stands for all where all agree that it worked. Otherwise the engines that failed are
 * named; a status that they all share (404: no such route) is the answer's too, and a deadline that passed is.
 */
export function merged(outcome: Outcome): Response {
  const { answers, failed } = outcome;
  const first = answers[0];
  if (first === undefined) throw new AppError("no_worker", "no worker can be reached");
  if (failed.length === 0) return whole(first.answer);
  const statuses = new Set(answers.map(({ answer }) => answer.status));
  const isSilent = failed.some(({ answer }) => answer.status === SILENT);
  const status = statuses.size === 1 ? first.answer.status : isSilent ? SILENT : 500;
  return jsonResponse(
    {
      error: {
        message: `${failed.length} of ${answers.length} workers failed: ${failed.map(textOf).join("; ")}`,
        type: status < 500 ? "BadRequestError" : "InternalServerError",
        param: null,
        code: status,
      },
      workers: answers.map(({ member, answer }) => ({
        worker: member.source.name,
        status: answer.status,
        answer: answer.body,
      })),
    },
    status,
  );
}

/** The answer of `merged`; for a method of ranks the results of all engines, in their order. */
export function answerTo({ kind }: EngineOperation, outcome: Outcome): Response {
  const isList = kind === "rpc" || kind === "load";
  if (!isList || outcome.failed.length > 0 || outcome.answers.length === 0) return merged(outcome);
  const results = outcome.answers.flatMap(({ answer }) => {
    const { results: own } = Object(answer.body);
    return Array.isArray(own) ? own : [answer.body];
  });
  return jsonResponse({ results });
}

/** Some routes of vLLM's answer plain text, or nothing. */
function whole({ body, status }: ControlAnswer): Response {
  if (body === null) return new Response(null, { status });
  if (typeof body === "string") return new Response(body, { status });
  return jsonResponse(body, status);
}
