// Trial requests: a few tokens that no client waits for, read as a whole. Each caller judges the answer. The canary of new
// weights looks at logprobs: weights with NaN give none, weights that are all equal give every token the same. A canary
// leaves no KV that is found later: its salt is used once, and its prompt is shorter than any KV block.

import { groupId, requestId, type WeightEpoch, weightEpoch } from "../../core/base/ids.ts";
import { type RequestSpec, SAMPLING_DEFAULTS } from "../../core/request/request.ts";
import type { PromptReport, Refusal } from "../../core/request/response.ts";
import type { ControlAnswer } from "../../core/rollout/operation.ts";
import { AnswerReader } from "./answer.ts";
import { classify } from "./chunk-request.ts";
import {
  type ChunkRequest,
  ENDPOINT_PATHS,
  type EngineDialect,
  type RequestForm,
  type ServerAccess,
} from "./dialect.ts";
import { type EngineEvent, errorMessage, repeatedIn } from "./stream-event.ts";

export interface TrialServer extends ServerAccess {
  readonly dialect: EngineDialect;
  readonly form: RequestForm;
}

/** A request for one token after a prompt of two. */
const TRIAL: RequestSpec = {
  requestId: requestId(0),
  groupId: groupId("probe"),
  sampleIndex: 0,
  prompt: Int32Array.of(0, 0),
  sampling: { temperature: 0, seed: 0, tokensMax: 1, stopTokenIds: [], ...SAMPLING_DEFAULTS },
  draw: { hi: 0, lo: 0 },
  divisible: true,
};

export type TrialOptions = Partial<ChunkRequest> & {
  readonly prompt?: Int32Array;
  readonly sampling?: Partial<RequestSpec["sampling"]>;
  readonly draw?: RequestSpec["draw"];
};

/** `cacheSalt` is also the name of the run, unless `run` is given. */
export function trialRequest(
  cacheSalt: string,
  { prompt = TRIAL.prompt, sampling, draw = TRIAL.draw, ...options }: TrialOptions = {},
): ChunkRequest {
  const spec = { ...TRIAL, prompt, draw, sampling: { ...TRIAL.sampling, ...sampling } };
  return {
    name: "ft-probe",
    spec,
    offset: 0,
    tokens: prompt,
    tokensMax: spec.sampling.tokensMax,
    isLast: true,
    priority: -1,
    cacheSalt,
    run: cacheSalt,
    epoch: weightEpoch(0),
    streamInterval: 2,
    draft: null,
    form: "stream",
    expertsFrom: null,
    ...options,
  };
}

export interface Made {
  readonly kind: "made";
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
  /** Logprobs of the likeliest tokens at each position, highest first; empty: not requested. */
  readonly top: readonly (readonly number[])[];
  /** null: not reported. */
  readonly finish: string | null;
  readonly cachedTokens: number | null;
  /** Logprobs of the prompt; null: the answer was a stream. */
  readonly report: PromptReport | null;
  /** The first event reported the number of its tokens. */
  readonly hasCount: boolean;
  readonly reportsExperts: boolean;
  readonly hasUnreadable: boolean;
}

export type Tried =
  | Made
  /** `status` 0: not given. */
  | { readonly kind: "refused"; readonly status: number; readonly message: string }
  | { readonly kind: "unreachable"; readonly message: string };

/** Sends a trial request. Never rejects. `rank`: the data parallel rank that must answer. Absent: any. */
export async function tryRequest(
  { client, dialect, form }: TrialServer,
  chunk: ChunkRequest,
  { msMax, ...pin }: { msMax: number; rank?: number },
): Promise<Tried> {
  const path = ENDPOINT_PATHS[form.endpoint];
  const body = dialect.body(chunk, form);
  const answer = await client.answer({ method: "POST", path, body, ...pin }, msMax);
  if (answer.kind === "unreachable") return answer;
  const { status } = answer;
  if (status !== 200) return { kind: "refused", status, message: errorMessage(answer.body) };
  const topLogprobs = Math.min(chunk.spec.sampling.topLogprobs, form.logprobsMax);
  const bytes = Buffer.from(answer.body);
  const reader = new AnswerReader({ form: chunk.form, expertsFrom: 0 }, bytes.length, (data) =>
    dialect.read(data, topLogprobs),
  );
  const events: EngineEvent[] = [];
  let reportsExperts = false;
  const take = (event: EngineEvent) => {
    events.push(event);
    reportsExperts ||= reader.experts !== null;
    return event.kind !== "error";
  };
  reader.push(bytes, take);
  reader.end(take);
  return madeOf(events, { reportsExperts, report: reader.report });
}

/** Joins the events of an answer. */
function madeOf(
  events: readonly EngineEvent[],
  about: Pick<Made, "reportsExperts" | "report">,
): Tried {
  const error = events.find((event) => event.kind === "error");
  if (error !== undefined) return { ...error, kind: "refused" };
  const pieces = events.filter((event) => event.kind === "piece");
  const tokens: number[] = [];
  const logprobs: number[] = [];
  const top: number[][] = [];
  for (const piece of pieces) {
    const repeated = repeatedIn(piece, tokens.length);
    tokens.push(...piece.tokens.slice(repeated));
    logprobs.push(...piece.logprobs.slice(repeated));
    // Rows of token, logprob, token, logprob.
    const rows = piece.alternatives.slice(repeated);
    top.push(...rows.map((row) => row.filter((_, i) => i % 2 === 1)));
  }
  const usages = events.flatMap((event) => ("usage" in event ? (event.usage ?? []) : []));
  return {
    kind: "made",
    tokens,
    logprobs,
    top,
    finish: pieces.at(-1)?.finishReason ?? null,
    cachedTokens: usages.at(-1)?.cachedTokens ?? null,
    hasCount: pieces[0]?.usage?.completionTokens === pieces[0]?.tokens.length,
    hasUnreadable: events.some(({ kind }) => kind === "unreadable"),
    ...about,
  };
}

/** Like `tryRequest`; an answer without tokens, or whose tokens lack ids or logprobs, counts as a refusal. */
export async function tryTokens(...request: Parameters<typeof tryRequest>): Promise<Tried> {
  const tried = await tryRequest(...request);
  if (tried.kind !== "made") return tried;
  const refused = (message: string): Tried => ({ kind: "refused", status: 0, message });
  if (tried.tokens.length === 0) return refused("its answer holds no token");
  if ((tried.tokens[0] ?? -1) < 0) return refused("it reports no token ids");
  if (tried.logprobs.length !== tried.tokens.length) return refused("it reports no logprobs");
  return tried;
}

/** Has the server generate one token, to prove that it serves. */
export async function proveServing(
  server: TrialServer,
  options: { msMax: number },
): Promise<Tried> {
  return await tryTokens(server, trialRequest(server.cacheSalt), options);
}

/** Tokens of a canary. If the two likeliest tie at every position, all weights are equal; a single tie can happen. */
const OUTPUT_TOKENS = 4;
const ALTERNATIVES = 2;
/** vLLM's replacement for an invalid logprob. */
const LOGPROB_NONE = -9999;

/**
 * Generates the canary. The answer's body has its prompt, tokens and logprobs, and those of the other ranks. Never
 * rejects. `adapter` null: the model itself. `ranks`: data parallel ranks, each with weights of its own.
 */
export async function weightsCanary(
  server: TrialServer,
  { epoch, adapter, ranks }: { epoch: WeightEpoch; adapter: string | null; ranks: number },
): Promise<ControlAnswer> {
  const { limits, cacheSalt: run } = server;
  const form = adapter === null ? server.form : { ...server.form, model: adapter };
  const name = crypto.randomUUID();
  const prompt = Int32Array.of(0, 1, 2, 3);
  const sampling = { tokensMax: OUTPUT_TOKENS, topLogprobs: ALTERNATIVES };
  const tries = await Promise.all(
    Array.from({ length: ranks }, (_, rank) => {
      const id = `canary-${name}-${rank}`;
      const more = { name: `ft-${id}`, prompt, sampling, run, epoch, streamInterval: 1 };
      const pin = ranks === 1 ? {} : { rank };
      const options = { msMax: limits.canaryMsMax, ...pin };
      return tryRequest({ ...server, form }, trialRequest(`${run}-${id}`, more), options);
    }),
  );
  const canaries: Pick<Made, "tokens" | "logprobs">[] = [];
  for (const tried of tries) {
    if (tried.kind === "unreachable") return { status: 502, body: { error: tried.message } };
    const problem = tried.kind === "refused" ? refusalText(tried) : problemOf(tried);
    if (tried.kind === "made") canaries.push({ tokens: tried.tokens, logprobs: tried.logprobs });
    if (problem === null) continue;
    const isFull = tried.kind === "refused" && classify(tried) === "full";
    const error = `the weights do not generate: ${problem}`;
    return { status: isFull ? 503 : 500, body: { error } };
  }
  const [canary, ...others] = canaries;
  return { status: 200, body: { prompt: [...prompt], ...canary, ranks: others } };
}

/** A refusal in words. Status 0: the server gave none. */
export function refusalText({ status, message }: Refusal): string {
  return status === 0 ? message : `HTTP ${status}: ${message}`;
}

/** What is wrong with a canary; null: its logprobs are finite, and not all tokens are equally likely. */
function problemOf({ logprobs, top, hasUnreadable }: Made): string | null {
  if (hasUnreadable) return "an event of its stream is not JSON";
  if (logprobs.length === 0) return "it generated no token";
  const wrong = logprobs.find((value) => !(value > LOGPROB_NONE && value <= 0.001));
  if (wrong !== undefined) return `a token's logprob is ${wrong <= LOGPROB_NONE ? "none" : wrong}`;
  const isTie = (row: readonly number[]) => row.length >= 2 && row[0] === row[1];
  const isFlat = top.length === OUTPUT_TOKENS && top.every(isTie);
  return isFlat ? "all tokens are equally likely" : null;
}
