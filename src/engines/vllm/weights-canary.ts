// Has a server make a few tokens with the weights that it has now, and looks at their logprobs: weights that are not
// numbers give none, weights that are all the same give every token the same. Its salt is used once, and its prompt is
// shorter than any block of KV, so that nothing of it is found later.

import { groupId, requestId, type WeightEpoch } from "../../core/base/ids.ts";
import { type RequestSpec, SAMPLING_DEFAULTS } from "../../core/request/request.ts";
import type { ControlAnswer } from "../../core/rollout/worker.ts";
import { chunkBody } from "./body.ts";
import { type Dialect, ENDPOINT_PATHS } from "./dialect.ts";
import { type Alternatives, freshIn } from "./event.ts";
import type { HttpAnswer, HttpClient } from "./http.ts";
import type { VllmLimits } from "./limits.ts";
import { SseReader } from "./sse.ts";
import { errorMessage, readEvent } from "./stream-event.ts";

/** Number of positions that must all be flat before the weights count as flat: ties of two tokens happen. */
const OUTPUT_TOKENS = 4;
const ALTERNATIVES = 2;
/** vLLM's replacement for an invalid logprob. */
const LOGPROB_NONE = -9999;

export interface WeightsCanaryOptions {
  readonly client: HttpClient;
  readonly dialect: Dialect;
  readonly limits: VllmLimits;
  readonly cacheSalt: string;
  readonly epoch: WeightEpoch;
  /** An adapter; null: the model itself. */
  readonly model: string | null;
  /** Distinguishes one canary from another. */
  readonly name: string;
  /** The data parallel rank that generates; null: any. */
  readonly rank: number | null;
}

/** Answers CANARY_PATH. Never rejects. */
export async function weightsCanary(options: WeightsCanaryOptions): Promise<ControlAnswer> {
  const { client, dialect, limits, rank } = options;
  if (await isAsleep(client, limits)) return { status: 200, body: { asleep: true } };
  const call = {
    method: "POST" as const,
    path: ENDPOINT_PATHS[dialect.endpoint],
    body: bodyOf(options),
    ...(rank === null ? {} : { rank }),
  };
  const answer = await client.answer(call, limits.canaryMsMax);
  if (answer.kind === "unreachable") return { status: 502, body: { error: answer.message } };
  const problem = problemOf(answer, Math.min(ALTERNATIVES, dialect.logprobsMax));
  if (problem === null) return { status: 200, body: { tokens: OUTPUT_TOKENS } };
  return { status: 500, body: { error: `the weights do not generate: ${problem}` } };
}

/** Only development mode reports it; a server without it has no sleep either. */
async function isAsleep(client: HttpClient, limits: VllmLimits): Promise<boolean> {
  const call = { method: "GET" as const, path: "/is_sleeping", body: null };
  const answer = await client.answer(call, limits.checkMsMax);
  if (answer.kind !== "answer" || answer.status !== 200) return false;
  return /"is_sleeping"\s*:\s*true/.test(answer.body);
}

function bodyOf(options: WeightsCanaryOptions): string {
  const { dialect, cacheSalt, epoch, model, name } = options;
  const salt = `${cacheSalt}-canary-${name}`;
  const ask = {
    name: `ft-canary-${name}`,
    spec: SPEC,
    offset: 0,
    tokens: SPEC.prompt,
    tokensMax: OUTPUT_TOKENS,
    isLast: true,
    priority: -1,
    cacheSalt: salt,
    run: cacheSalt,
    epoch,
    streamInterval: 1,
    draft: null,
    form: "stream" as const,
    expertsFrom: null,
  };
  return chunkBody(ask, model === null ? dialect : { ...dialect, model });
}

const SPEC: RequestSpec = {
  requestId: requestId(0),
  groupId: groupId("canary"),
  sampleIndex: 0,
  prompt: Int32Array.of(0, 1, 2, 3),
  sampling: {
    temperature: 0,
    seed: 0,
    tokensMax: OUTPUT_TOKENS,
    stopTokenIds: [],
    ...SAMPLING_DEFAULTS,
    topLogprobs: ALTERNATIVES,
  },
  draw: { hi: 0, lo: 0 },
  divisible: true,
};

/** null: its tokens have finite logprobs, and not all the same ones. */
function problemOf(
  { status, body }: Extract<HttpAnswer, { kind: "answer" }>,
  alternatives: number,
): string | null {
  if (status !== 200) return `HTTP ${status}: ${errorMessage(body)}`;
  const logprobs: number[] = [];
  const rows: Alternatives[] = [];
  let problem: string | null = null;
  new SseReader(body.length + 1).push(Buffer.from(body), (data) => {
    const event = readEvent(data, alternatives);
    if (event.kind === "error") problem = event.message;
    else if (event.kind === "unreadable") problem = "an event of its stream is not JSON";
    else if (event.kind === "piece") {
      const fresh = freshIn(event, logprobs.length);
      logprobs.push(...fresh.logprobs);
      rows.push(...fresh.alternatives);
    }
    return problem === null;
  });
  if (problem !== null) return problem;
  if (logprobs.length === 0) return "it generated no token";
  const wrong = logprobs.find((one) => !(one > LOGPROB_NONE && one <= 0.001));
  if (wrong !== undefined) return `a token's logprob is ${wrong <= LOGPROB_NONE ? "none" : wrong}`;
  const isFlat = rows.length === OUTPUT_TOKENS && rows.every((row) => isTie(row));
  return isFlat ? "all tokens are equally likely" : null;
}

/** Token, logprob, token, logprob. */
function isTie(row: Alternatives): boolean {
  return row.length >= 4 && row[1] === row[3];
}
