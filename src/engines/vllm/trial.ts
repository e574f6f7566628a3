// Requests by which a server is tried: a few tokens that nobody waits for, read as a whole. Each caller judges what came.

import { groupId, requestId, weightEpoch } from "../../core/base/ids.ts";
import { type RequestSpec, SAMPLING_DEFAULTS } from "../../core/request/request.ts";
import {
  type ChunkRequest,
  ENDPOINT_PATHS,
  type EngineDialect,
  type RequestForm,
  type ServerAccess,
} from "./dialect.ts";
import { type Alternatives, freshIn } from "./event.ts";
import { SseReader } from "./sse.ts";
import { errorMessage } from "./stream-event.ts";
import { withoutExperts } from "./whole-answer.ts";

export interface TrialServer extends ServerAccess {
  readonly dialect: EngineDialect;
  readonly form: RequestForm;
}

/** One token after a prompt of two. */
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

/** `cacheSalt` also names the run, unless that is given. */
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
  readonly alternatives: readonly Alternatives[];
  /** The first event counted its tokens. */
  readonly hasCount: boolean;
  readonly reportsExperts: boolean;
  readonly hasUnreadable: boolean;
}

export type Tried =
  | Made
  /** `status` 0: not said. */
  | { readonly kind: "refused"; readonly status: number; readonly message: string }
  | { readonly kind: "unreachable"; readonly message: string };

/** Never rejects. `rank`: the data parallel rank that is to answer; null: any. */
export async function tryRequest(
  { client, dialect, form }: TrialServer,
  ask: ChunkRequest,
  { msMax, rank = null }: { msMax: number; rank?: number | null },
): Promise<Tried> {
  const path = ENDPOINT_PATHS[form.endpoint];
  const pinned = rank === null ? {} : { rank };
  const body = dialect.body(ask, form);
  const answer = await client.answer({ method: "POST", path, body, ...pinned }, msMax);
  if (answer.kind === "unreachable") return answer;
  const { status } = answer;
  if (status !== 200) return { kind: "refused", status, message: errorMessage(answer.body) };
  const topLogprobs = Math.min(ask.spec.sampling.topLogprobs, form.logprobsMax);
  return madeIn(answer.body, (data) => dialect.read(data, topLogprobs));
}

function madeIn(body: string, read: (data: Buffer) => ReturnType<EngineDialect["read"]>): Tried {
  const tokens: number[] = [];
  const logprobs: number[] = [];
  const alternatives: Alternatives[] = [];
  const seen = { hasCount: false, reportsExperts: false, hasUnreadable: false };
  let refusal: Extract<Tried, { kind: "refused" }> | null = null;
  new SseReader(body.length + 1).push(Buffer.from(body), (data) => {
    const event = read(data);
    if (event.kind === "unreadable") seen.hasUnreadable = true;
    if (event.kind === "error") {
      refusal = { kind: "refused", status: event.status, message: event.message };
    }
    if (event.kind !== "piece") return event.kind !== "error";
    if (tokens.length === 0) {
      seen.hasCount = event.usage?.completionTokens === event.tokens.length;
      seen.reportsExperts = withoutExperts({ expertsFrom: 0 }, data).experts !== null;
    }
    const fresh = freshIn(event, tokens.length);
    tokens.push(...fresh.tokens);
    logprobs.push(...fresh.logprobs);
    alternatives.push(...fresh.alternatives);
    return true;
  });
  return refusal ?? { kind: "made", tokens, logprobs, alternatives, ...seen };
}

/** Has the server make one token: the proof that it serves. */
export async function proveServing(
  server: TrialServer,
  options: { msMax: number; rank?: number },
): Promise<Tried> {
  const tried = await tryRequest(server, trialRequest(server.cacheSalt), options);
  if (tried.kind !== "made") return tried;
  const refused = (message: string): Tried => ({ kind: "refused", status: 0, message });
  if (tried.tokens.length === 0) return refused("its stream holds no token");
  if ((tried.tokens[0] ?? -1) < 0) return refused("it reports no token ids");
  if (tried.logprobs.length !== tried.tokens.length) return refused("it reports no logprobs");
  return tried;
}
