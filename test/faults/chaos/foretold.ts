// What stand-ins generate is known without a run: every token is a function of the response's seed, of the weights, and of all
// tokens before it. Responses under faults must be that, to the last token and logprob.

import { drawKey } from "../../../src/core/request/request.ts";
import { chunkSeed } from "../../../src/engines/vllm/body.ts";
import { standInLogprob, standInResponse } from "../stand-in/tokens.ts";
import { exactSample } from "../stand-in/vllm-stand-in.ts";
import { differenceFrom, judge } from "./client.ts";
import type { Asked, Call, Oracle } from "./oracle.ts";
import type { ChaosPlan } from "./plan.ts";
import { keyOf, type ResponseLine, WEIGHTS, type WeightsName } from "./response-line.ts";

const GROUPS = 2;
const GROUP_SIZE = 3;
const TOKENS_MAX = 96;
/** One token in a hundred of those that a stand-in draws. */
const STOPS = Array.from({ length: 10 }, (_, i) => 100 * i + 50);

export class Foretold implements Oracle {
  updateTo(weights: WeightsName): Call {
    const kwargs = { weights_path: pathOf(weights) };
    const body = { method: "reload_weights", kwargs, weight_version: weights };
    return { path: "/collective_rpc", body };
  }

  ask({ seed, job, faults }: ChaosPlan, current: WeightsName): Promise<Asked> {
    const isUpdated = faults.some(({ kind }) => kind === "weights");
    const possible = isUpdated ? WEIGHTS : [current];
    const wanted = new Map(possible.map((name) => [name, responses(seed, job, name)]));
    const keys = [...responses(seed, job, current).keys()];
    return Promise.resolve({
      tokens: keys.length * TOKENS_MAX,
      body: (id) => bodyOf(id, seed, job),
      judge: (collected) => Promise.resolve(judge(collected, keys, differenceFrom(wanted))),
    });
  }
}

export const pathOf = (weights: WeightsName): string => `/weights/${weights}`;

const promptOf = (job: number, group: number): number[] => [10 + job, 20 + group, 30, 40];

const names = Array.from({ length: GROUPS }, (_, i) => `g${i}`);

function responses(seed: number, job: number, weights: WeightsName): Map<string, ResponseLine> {
  const lines = new Map<string, ResponseLine>();
  for (const [i, group] of names.entries()) {
    for (let index = 0; index < GROUP_SIZE; index += 1) {
      const prompt = promptOf(job, i);
      const drawSeed = chunkSeed(drawKey(seed, group, index), 0);
      const sample = exactSample(drawSeed, pathOf(weights));
      const drawn = { prompt, sample, tokensMax: TOKENS_MAX, stopTokenIds: STOPS };
      const tokens = standInResponse(drawn);
      const isStopped = STOPS.includes(tokens.at(-1) ?? -1);
      const line: ResponseLine = {
        group,
        index,
        prompt_token_ids: prompt,
        token_ids: tokens,
        logprobs: tokens.map(standInLogprob),
        finish_reason: isStopped ? "stop" : "length",
        chunks: [],
      };
      lines.set(keyOf(line), line);
    }
  }
  return lines;
}

function bodyOf(id: string, seed: number, job: number): string {
  return JSON.stringify({
    id,
    detached: true,
    n: GROUP_SIZE,
    sampling_params: { seed, temperature: 1, max_tokens: TOKENS_MAX, stop_token_ids: STOPS },
    groups: names.map((group, i) => ({ id: group, token_ids: promptOf(job, i) })),
  });
}
