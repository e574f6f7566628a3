// Models whose layers are not all attention (Mamba, linear attention): their responses run undivided until the engine
// has shown, when it is opened, that a divided one is the same.

import { errorText } from "../../core/base/errors.ts";
import { chunkBody } from "./body.ts";
import { type Dialect, ENDPOINT_PATHS } from "./dialect.ts";
import {
  checkDivided,
  type DividedCheck,
  type GenerateGreedy,
  type Greedy,
} from "./divided-check.ts";
import { freshIn } from "./event.ts";
import type { HttpClient } from "./http.ts";
import type { VllmLimits } from "./limits.ts";
import { PROBE, PROBE_ASK } from "./probe-request.ts";
import { SseReader } from "./sse.ts";
import { errorMessage, readEvent } from "./stream-event.ts";

interface Server {
  readonly client: HttpClient;
  readonly limits: VllmLimits;
  readonly cacheSalt: string;
}

/** Ids that every vocabulary has. */
const PROMPT = Array.from({ length: 96 }, (_, index) => 10 + (index % 32));
const ABOUT = "the model is hybrid (Mamba or linear attention)";

/** Why responses of a hybrid model run undivided; null: they can be divided. */
export async function hybridProblem(server: Server, dialect: Dialect): Promise<string | null> {
  try {
    const { at } = await dividedCheck(server, dialect);
    if (at < 0) return null;
    return `${ABOUT}, and a response in chunks differs from the whole one from token ${at} on: responses run undivided (see foretoken doctor)`;
  } catch (error) {
    return `${ABOUT}, and whether responses can be divided is not known (${errorText(error)}): they run undivided`;
  }
}

/** @throws Error: it generates nothing. */
export async function dividedCheck(server: Server, dialect: Dialect): Promise<DividedCheck> {
  return await checkDivided(greedyOf(server, dialect), PROMPT);
}

function greedyOf({ client, limits, cacheSalt }: Server, dialect: Dialect): GenerateGreedy {
  return async (prompt, { tokensMax, hasTop }) => {
    const topLogprobs = hasTop ? 2 : 0;
    const sampling = { ...PROBE.sampling, tokensMax, topLogprobs };
    const spec = { ...PROBE, prompt: Int32Array.from(prompt), sampling };
    const ask = { ...PROBE_ASK, name: "ft-divided", spec, tokens: spec.prompt, tokensMax };
    const body = chunkBody({ ...ask, cacheSalt, run: cacheSalt }, dialect);
    const call = { method: "POST" as const, path: ENDPOINT_PATHS[dialect.endpoint], body };
    const answer = await client.answer(call, limits.startMsMax);
    if (answer.kind === "unreachable") throw new Error(answer.message);
    if (answer.status !== 200) throw new Error(errorMessage(answer.body));
    return greedyIn(answer.body, topLogprobs);
  };
}

function greedyIn(body: string, topLogprobs: number): Greedy {
  const tokens: number[] = [];
  const top: number[][] = [];
  new SseReader(body.length + 1).push(Buffer.from(body), (data) => {
    const event = readEvent(data, topLogprobs);
    if (event.kind === "error") throw new Error(event.message);
    if (event.kind === "piece") {
      const fresh = freshIn(event, tokens.length);
      tokens.push(...fresh.tokens);
      top.push(...fresh.alternatives.map((row) => row.filter((_, i) => i % 2 === 1)));
    }
    return true;
  });
  return { tokens, top };
}
