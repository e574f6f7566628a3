// Has every engine carry out one operation and makes one answer of theirs.

import { AppError } from "../../core/base/errors.ts";
import type { ControlAnswer, EngineOperation } from "../../core/rollout/operation.ts";
import type { Worker } from "../../core/rollout/worker.ts";
import {
  type AnswerLimits,
  type Asked,
  answerOf,
  isUnavailable,
  reasonOf,
  SILENT,
} from "../../pool/engine-answer.ts";
import type { Took } from "../../pool/member.ts";
import type { Member, Reachable } from "../../pool/pool.ts";
import { jsonResponse } from "../route.ts";

export interface Answered {
  readonly member: Member;
  readonly worker: Worker;
  readonly answer: ControlAnswer;
}

export interface Outcome {
  readonly answers: readonly Answered[];
  readonly failed: readonly Answered[];
}

/** Limit of concurrent calls that ask engines and change no weights: more than all ranks of a large trainer make. */
const CALLS_MAX = 1024;

export class CallBound {
  #calls = 0;

  /** @throws AppError queue_full; what `act` throws. */
  async during<T>(act: () => Promise<T>): Promise<T> {
    if (this.#calls >= CALLS_MAX) {
      const message = `${CALLS_MAX} calls to engines are under way, the server's maximum: try again when they have ended`;
      throw new AppError("queue_full", message);
    }
    this.#calls += 1;
    try {
      return await act();
    } finally {
      this.#calls -= 1;
    }
  }
}

/** `askedOf`: an engine's own version of the operation, by its place in the order of engines. */
export async function fanOut(
  engines: readonly Reachable[],
  askedOf: (index: number) => Asked,
  limits: AnswerLimits,
): Promise<Outcome> {
  const answers = await Promise.all(
    engines.map(async ({ member, worker }, index) => ({
      member,
      worker,
      answer: await answerOf(worker, askedOf(index), {
        ...limits,
        isLost: () => member.worker === worker && member.state === "reconnecting",
      }),
    })),
  );
  return outcomeOf(answers);
}

export function outcomeOf(answers: readonly Answered[]): Outcome {
  return { answers, failed: answers.filter(({ answer }) => !isSuccess(answer)) };
}

export function isSuccess(answer: ControlAnswer | undefined): boolean {
  return answer !== undefined && answer.status >= 200 && answer.status < 300;
}

/** Engines that took the request; one that was opened again since has lost what it took. */
export function takenIn({ answers }: Outcome): Set<Member> {
  const good = answers.filter(
    ({ member, worker, answer }) => isSuccess(answer) && member.worker === worker,
  );
  return new Set(good.map(({ member }) => member));
}

/** The request's effect on each engine, over the connection that the engine has now. */
export function tookIn({ answers }: Outcome): Map<Member, Took> {
  return new Map(
    answers.map(({ member, worker, answer }): [Member, Took] => {
      if (member.worker !== worker || !mayHaveTaken(answer)) return [member, "none"];
      return [member, isSuccess(answer) ? "took" : "touched"];
    }),
  );
}

/** An engine took it, or failed in the middle of it, or its outcome is unknown. */
export function mayHaveChanged({ answers }: Outcome): boolean {
  return answers.some(({ answer }) => mayHaveTaken(answer));
}

/** Engines that are not there any more, or whose state is unknown: they are opened again. */
export function lostIn({ failed }: Outcome): Set<Member> {
  const lost = failed.filter(({ answer }) => isUnavailable(answer));
  return new Set(lost.map(({ member }) => member));
}

function mayHaveTaken({ status }: ControlAnswer): boolean {
  return status < 400 || status >= 500;
}

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

export function textOf({ member, answer }: Answered): string {
  return `${member.source.name} answered ${answer.status}: ${reasonOf(answer.body)}`;
}
