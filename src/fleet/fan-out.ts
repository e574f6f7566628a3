// Has every engine carry out one operation, and what their answers mean together.

import { AppError } from "../core/base/errors.ts";
import type { ControlAnswer } from "../core/rollout/operation.ts";
import type { Worker } from "../core/rollout/worker.ts";
import {
  type AnswerLimits,
  type Asked,
  answerOf,
  isUnavailable,
  reasonOf,
} from "./engine-answer.ts";
import type { Took } from "./member.ts";
import type { Member, Reachable } from "./pool.ts";

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

export function textOf({ member, answer }: Answered): string {
  return `${member.source.name} answered ${answer.status}: ${reasonOf(answer.body)}`;
}
