// A client that wants every response of one rollout whatever happens: it repeats the same POST until the stream ends with
// its summary, and keeps what each answer brought.

import { linesOf } from "../../suite/lines.ts";
import {
  keyOf,
  mixedWeights,
  type ResponseLine,
  type WeightsName,
  weightsOf,
} from "./response-line.ts";

const PAUSE_MS = 50;

export interface Collected {
  /** Responses by `keyOf`. */
  readonly responses: ReadonlyMap<string, ResponseLine>;
  /** Responses that came twice in one answer, and of those again that another answer had brought, those that differed. */
  readonly twice: number;
  readonly changed: readonly string[];
  /** How the rollout ended, or why the client gave up. */
  readonly end: string;
}

interface Summary {
  readonly rollout: string;
  readonly state: string;
  readonly error?: { readonly message: string };
}

/** `signal` ends it, with its reason. */
export async function collect(url: string, body: string, signal: AbortSignal): Promise<Collected> {
  const responses = new Map<string, ResponseLine>();
  const changed: string[] = [];
  let twice = 0;
  let end = "";
  while (end === "") {
    const seen = new Set<string>();
    try {
      for await (const line of answerTo(url, body, signal)) {
        if ("rollout" in line) {
          end = line.error === undefined ? line.state : `${line.state}: ${line.error.message}`;
          break;
        }
        const key = keyOf(line);
        if (seen.has(key)) twice += 1;
        seen.add(key);
        const before = responses.get(key);
        if (before !== undefined && difference(before, line) !== null) changed.push(key);
        responses.set(key, line);
      }
    } catch (error) {
      if (error instanceof Refused) end = error.message;
    }
    if (signal.aborted) end ||= String(signal.reason);
    if (end === "") await Bun.sleep(PAUSE_MS);
  }
  return { responses, twice, changed, end };
}

/** An answer that no repetition makes better. */
class Refused extends Error {}

async function* answerTo(
  url: string,
  body: string,
  signal: AbortSignal,
): AsyncGenerator<ResponseLine | Summary> {
  const answer = await fetch(`${url}/v1/rollouts`, { method: "POST", body, signal });
  if (answer.status === 503) return;
  if (!answer.ok || answer.body === null) {
    throw new Refused(`status ${answer.status}: ${await answer.text()}`);
  }
  for await (const line of linesOf(answer.body)) {
    if (line !== "") yield JSON.parse(line) as ResponseLine | Summary;
  }
}

/** null: the same tokens, logprobs and end. */
function difference(one: ResponseLine, other: ResponseLine): string | null {
  for (const [i, token] of one.token_ids.entries()) {
    if (other.token_ids[i] !== token) return `token ${i} is ${other.token_ids[i]}, not ${token}`;
    if (other.logprobs[i] !== one.logprobs[i]) {
      return `logprob ${i} is ${other.logprobs[i]}, not ${one.logprobs[i]}`;
    }
  }
  if (other.token_ids.length !== one.token_ids.length) {
    return `it has ${other.token_ids.length} tokens, not ${one.token_ids.length}`;
  }
  if (other.finish_reason === one.finish_reason) return null;
  return `it ended with ${other.finish_reason}, not ${one.finish_reason}`;
}

/** What is wrong with a response, by those that each set of weights generates. */
export function differenceFrom(
  wanted: ReadonlyMap<WeightsName, ReadonlyMap<string, ResponseLine>>,
): (line: ResponseLine) => string | null {
  return (line) => {
    const weights = weightsOf(line);
    const expected = weights === null ? undefined : wanted.get(weights)?.get(keyOf(line));
    return expected === undefined ? mixedWeights(line) : difference(expected, line);
  };
}

export interface Verdict {
  readonly lost: number;
  readonly twice: number;
  readonly wrong: number;
  /** The first ones. */
  readonly problems: readonly string[];
}

const PROBLEMS_MAX = 5;

/** Counts what is wrong with what came. `keys`: of all responses. `problemOf`: null: the response is right. */
export function judge(
  collected: Collected,
  keys: Iterable<string>,
  problemOf: (line: ResponseLine) => string | null,
): Verdict {
  const problems: string[] = [];
  let lost = 0;
  let wrong = collected.changed.length;
  for (const key of collected.changed) problems.push(`${key} came again and differed`);
  const left = new Map(collected.responses);
  for (const key of keys) {
    const line = left.get(key);
    left.delete(key);
    if (line === undefined) {
      lost += 1;
      continue;
    }
    const problem = problemOf(line);
    if (problem === null) continue;
    wrong += 1;
    problems.push(`${key}: ${problem}`);
  }
  if (lost > 0)
    problems.push(`${lost} responses are missing; the rollout ended as ${collected.end}`);
  for (const key of left.keys()) problems.push(`${key} was not asked for`);
  wrong += left.size;
  return { lost, twice: collected.twice, wrong, problems: problems.slice(0, PROBLEMS_MAX) };
}
