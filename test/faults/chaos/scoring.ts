// Whether responses of engines whose arithmetic depends on the batch are right: each token by the model's own logprobs of
// the finished text, from a vLLM server that has the response's weights. A token that was lost, repeated, moved or drawn
// with other weights changes the logprobs of those behind it; at temperature 0 each token is the likeliest one; at
// temperature 1 all tokens together are draws from the model's distributions (src/core/rollout/sampling-test.ts).

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { SamplingTest } from "../../../src/core/rollout/sampling-test.ts";
import { Engine, type Scored } from "../../../src/tools/doctor/engine.ts";
import { type Collected, judge } from "./client.ts";
import type { Asked, Call, Installation, Oracle, Trainer } from "./oracle.ts";
import { type ChaosPlan, JOBS } from "./plan.ts";
import {
  keyOf,
  mixedWeights,
  type ResponseLine,
  WEIGHTS,
  type WeightsName,
  weightsOf,
} from "./response-line.ts";
import { writeOtherSafetensors } from "./weights.ts";

const TOKENS_MAX = 64;
const DRAWN_SIZE = 2;
/** nats: between a token's logprob where it was drawn, in some batch, and that of the finished text, in float32. */
const DISTANCE_MAX = 0.01;
/** The chance that responses which are right are found wrong, of all seeds together. */
const ALPHA = 1e-6;
const TOP = 20;

export interface ScoringServer {
  readonly url: string;
  readonly isRunning: boolean;
}

const PROMPTS_PER_JOB = 2;

/** Lines of the bundled prompts, other ones for each job. */
function promptLines(path: string, job: number): string[] {
  const lines = readFileSync(path, "utf8").trim().split("\n");
  const first = PROMPTS_PER_JOB * (job % JOBS);
  return lines.slice(first, first + PROMPTS_PER_JOB);
}

export class Scoring implements Oracle {
  readonly #installation: Installation;
  readonly #paths: Readonly<Record<WeightsName, string>>;
  readonly #servers: () => readonly ScoringServer[];
  readonly #eos: number;
  readonly #draws = new SamplingTest(ALPHA);

  /** `folder`: for its files. `servers`: the vLLM servers of the fleet, all of which have the same weights. */
  constructor(installation: Installation, folder: string, servers: () => readonly ScoringServer[]) {
    this.#installation = installation;
    this.#servers = servers;
    this.#paths = { a: installation.model, b: join(folder, "other") };
    writeOtherSafetensors(installation.model, this.#paths.b);
    const config = readFileSync(join(installation.model, "config.json"), "utf8");
    this.#eos = JSON.parse(config).eos_token_id;
  }

  updateTo(weights: WeightsName): Call {
    const kwargs = { weights_path: this.#paths[weights] };
    const body = { method: "reload_weights", kwargs, weight_version: weights };
    return { path: "/collective_rpc", body };
  }

  /** Requests for each prompt one response at temperature 0, and some at temperature 1. */
  ask({ seed, job, faults }: ChaosPlan, current: WeightsName): Promise<Asked> {
    const groups = promptLines(this.#installation.prompts, job).flatMap((line, i) => {
      const { prompt } = JSON.parse(line) as { prompt: string };
      return [
        {
          id: `greedy-${i}`,
          prompt,
          n: 1,
          sampling_params: { temperature: 0, max_tokens: TOKENS_MAX },
        },
        {
          ...{ id: `drawn-${i}`, prompt, n: DRAWN_SIZE },
          sampling_params: { temperature: 1, max_tokens: TOKENS_MAX, seed },
        },
      ];
    });
    const keys = groups.flatMap(({ id, n }) => Array.from({ length: n }, (_, i) => `${id}/${i}`));
    const isUpdated = faults.some(({ kind }) => kind === "weights");
    const possible = isUpdated ? WEIGHTS : [current];
    return Promise.resolve({
      tokens: keys.length * TOKENS_MAX,
      body: (id) => JSON.stringify({ id, detached: true, groups }),
      judge: async (collected, trainer) => {
        const problems = await this.#problems(collected, possible, trainer);
        const verdict = judge(collected, keys, (line) => problems.get(keyOf(line)) ?? null);
        return { ...verdict, problems: [...verdict.problems, ...this.#drawProblem()] };
      },
    });
  }

  /** Problems by the key of the response. `possible`: the weights that may have generated it. */
  async #problems(
    { responses }: Collected,
    possible: readonly WeightsName[],
    trainer: Trainer,
  ): Promise<Map<string, string>> {
    const problems = new Map<string, string>();
    const left = new Map<WeightsName, ResponseLine[]>();
    for (const line of responses.values()) {
      const weights = weightsOf(line);
      const problem = this.#shapeProblem(line);
      if (weights === null || !possible.includes(weights)) {
        problems.set(keyOf(line), mixedWeights(line));
      } else if (problem !== null) problems.set(keyOf(line), problem);
      else left.set(weights, [...(left.get(weights) ?? []), line]);
    }
    // The others need an update.
    const order = [...left].sort(([one]) => (one === trainer.current ? -1 : 1));
    for (const [weights, lines] of order) {
      if (trainer.current !== weights) await trainer.next();
      const isThere = trainer.current === weights;
      const check = async (line: ResponseLine) => {
        const problem = isThere ? await this.#scoreProblem(line) : `no engine took ${weights}`;
        if (problem !== null) problems.set(keyOf(line), problem);
      };
      await Promise.all(lines.map(check));
    }
    return problems;
  }

  /** null: its lengths fit together, and it ends where it should. */
  #shapeProblem({
    token_ids: tokens,
    logprobs,
    chunks,
    finish_reason,
  }: ResponseLine): string | null {
    const { length } = tokens;
    const chunked = chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
    const end = tokens.indexOf(this.#eos);
    const isEnded = finish_reason === "stop" && end >= 0 && end === length - 1;
    const isFull = finish_reason === "length" && end < 0 && length === TOKENS_MAX;
    if (chunked === length && logprobs.length === length && (isEnded || isFull)) return null;
    return `${length} tokens in chunks of ${chunked}, ${logprobs.length} logprobs, ${finish_reason}, end of text at ${end}`;
  }

  async #scoreProblem(line: ResponseLine): Promise<string | null> {
    const { prompt_token_ids: prompt, token_ids: tokens } = line;
    const server = this.#servers().find(({ isRunning }) => isRunning);
    if (server === undefined) return "no server runs that could give the model's logprobs";
    // It serves one model, and needs no name of it.
    const engine = new Engine(server.url, null);
    const scored = await engine.score([...prompt, ...tokens], prompt.length, TOP);
    if (scored === null) return "the server did not give the model's logprobs";
    const isGreedy = line.group.startsWith("greedy");
    const problem = tokenProblem(line, scored, isGreedy);
    if (problem !== null || isGreedy) return problem;
    for (const [i, logprob] of scored.logprobs.entries()) {
      this.#draws.add({ logprob, top: (scored.top[i] ?? []).slice(0, TOP - 1) });
    }
    return null;
  }

  /** Empty: all tokens so far are draws from the model's distributions. */
  #drawProblem(): string[] {
    const { isRejected, draws, scoreMean, expectedMean } = this.#draws;
    if (!isRejected) return [];
    const means = `mean logprob ${scoreMean.toFixed(3)}, by the model ${expectedMean.toFixed(3)}`;
    return [`${draws} tokens of all seeds are no draws from the model's distributions: ${means}`];
  }
}

/** null: the logprobs that came with the response are the model's own; at temperature 0 each token is the likeliest. */
export function tokenProblem(
  { token_ids: tokens, logprobs }: ResponseLine,
  scored: Scored,
  isGreedy: boolean,
): string | null {
  for (const [i, token] of tokens.entries()) {
    const came = logprobs[i] ?? Number.NaN;
    const own = scored.logprobs[i] ?? Number.NaN;
    // A comparison with NaN is false.
    if (!(Math.abs(came - own) <= DISTANCE_MAX)) {
      return `token ${i}, ${token}, came with logprob ${came}; in the finished text it has ${own}`;
    }
    const likeliest = scored.top[i]?.[0] ?? Number.NaN;
    if (isGreedy && !(own >= likeliest - DISTANCE_MAX)) {
      return `token ${i}, ${token}, has logprob ${own} at temperature 0; the likeliest has ${likeliest}`;
    }
  }
  return null;
}
