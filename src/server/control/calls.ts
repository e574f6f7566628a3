// What the routes of the control plane do: each call is answered as if all engines were one. The table of the routes is
// routes.ts.

import { unreachable } from "../../core/base/assert.ts";
import { InvalidFieldError } from "../../core/base/errors.ts";
import type { PauseMode } from "../../core/rollout/pause.ts";
import { kvMovesReport } from "../../core/rollout/report.ts";
import type { ControlRequest } from "../../core/rollout/worker.ts";
import type { AnswerLimits } from "../../pool/engine-answer.ts";
import { connected, type Reachable, reachable, type WorkerPool } from "../../pool/pool.ts";
import { type Exchange, jsonResponse } from "../route.ts";
import type { Sidecar } from "../sidecar.ts";
import { requestOf } from "./control-call.ts";
import type { Dialect } from "./dialects.ts";
import { answerTo, type CallBound, fanOut, isSuccess, merged, type Outcome } from "./fan-out.ts";
import type { LearnedEpochs } from "./learned-epochs.ts";
import { rpcEffect } from "./rpc-methods.ts";
import { serverInfo } from "./sglang-info.ts";
import type { WeightUpdates } from "./weights.ts";

export interface ControlOptions {
  /** Calls of adapters that amount to routes of vLLM. */
  readonly dialects: readonly Dialect[];
  readonly sidecar: Sidecar;
  readonly pool: WorkerPool;
  readonly weights: WeightUpdates;
  readonly learned: Pick<LearnedEpochs, "stale">;
  /** As clients call the model. */
  readonly modelName: string;
  /** The answer of GET /version. */
  readonly version: string;
  /** Gives up requests by the ids that clients gave them, or read in answers; null: all. Returns how many there were. */
  readonly abortRequests: (ids: readonly string[] | null) => number;
  /** Time for an engine to answer. */
  readonly timeoutMs: number;
  /** Runs something after a while; returns what cancels it. */
  readonly later: (act: () => void, ms: number) => () => void;
  /** Methods of `/collective_rpc`, besides those that are known, that leave the weights alone. */
  readonly harmlessRpc: readonly string[];
}

export type Bounded = ControlOptions & { readonly calls: CallBound };

/** The state of every worker; also `/health`'s answer when one does not serve. */
export function workersOf({ pool, sidecar, learned }: ControlOptions) {
  const { meter } = sidecar.rollout;
  return pool.members.map(({ source, workerId, state, reason, worker }) => ({
    worker: workerId,
    name: source.name,
    state,
    reason,
    slots: worker?.capacity.slots ?? null,
    kv_tokens: worker?.capacity.kvTokens ?? null,
    context_tokens: worker?.capacity.contextTokens ?? null,
    weights: worker?.weights ?? null,
    weight_version: worker?.weightVersion?.name ?? null,
    stale: learned.stale.has(workerId),
    kv_moves: kvMovesReport([meter.latest(workerId)?.kvMoves]),
  }));
}

export function health(options: ControlOptions): Response {
  const { pool, sidecar } = options;
  const status = sidecar.isDraining ? "draining" : pool.problem;
  if (status === null) {
    if (pool.members.every(({ state }) => state === "ready")) {
      return new Response(null, { status: 200 });
    }
    return jsonResponse({ status: "some workers are not in service", workers: workersOf(options) });
  }
  return jsonResponse({ status, workers: workersOf(options) }, 503);
}

export async function broadcast(options: Bounded, exchange: Exchange): Promise<Response> {
  return merged(await broadcasted(options, exchange));
}

async function broadcasted(options: Bounded, exchange: Exchange): Promise<Outcome> {
  const request = await requestOf(exchange, options.sidecar.rollout.epoch);
  return await asked(options, reachable(options.pool.members), () => request);
}

async function asked(
  options: Bounded,
  engines: readonly Reachable[],
  requestOf: (index: number) => ControlRequest,
): Promise<Outcome> {
  return await options.calls.during(() => fanOut(engines, requestOf, limitsOf(options)));
}

function limitsOf({ timeoutMs: msMax, later, sidecar }: ControlOptions): AnswerLimits {
  return { msMax, later, sidecar };
}

/** All engines are of a kind: one answers for all. */
async function first(options: Bounded, exchange: Exchange): Promise<Response> {
  const request = await requestOf(exchange, options.sidecar.rollout.epoch);
  return merged(await asked(options, reachable(options.pool.members).slice(0, 1), () => request));
}

export async function asSglangServer(options: Bounded, url: URL): Promise<object> {
  const all = await sizes(options, connected(options.pool.members), {});
  const worldSize = all.reduce((sum, size) => sum + size, 0);
  return serverInfo(options, { url, worldSize });
}

/** vLLM and SGLang have a route of this name, and slime and miles ask for it first: the answer has the fields of both. */
export async function bothServerInfos(options: Bounded, exchange: Exchange): Promise<Response> {
  const answer = await first(options, exchange);
  const own: unknown = answer.ok ? await answer.clone().json() : null;
  if (typeof own !== "object" || own === null || Array.isArray(own)) return answer;
  return jsonResponse({ ...own, ...(await asSglangServer(options, exchange.url)) });
}

async function sizes(
  options: Bounded,
  engines: readonly Reachable[],
  query: ControlRequest["query"],
): Promise<number[]> {
  const request: ControlRequest = {
    method: "GET",
    path: "/get_world_size",
    query,
    body: null,
    nextEpoch: options.sidecar.rollout.epoch,
  };
  const { answers } = await asked(options, engines, () => request);
  // An engine without the route (vLLM without its development mode) is a world of one.
  return answers.map(({ answer }) => {
    const { body } = answer;
    const { world_size: size } = Object(body);
    return typeof size === "number" && isSuccess(answer) ? size : 1;
  });
}

export async function worldSize(options: Bounded, exchange: Exchange): Promise<Response> {
  const query = Object.fromEntries(exchange.url.searchParams);
  const all = await sizes(options, reachable(options.pool.members), query);
  return jsonResponse({ world_size: all.reduce((sum, size) => sum + size, 0) });
}

/** Each engine's ranks follow those of the engines before it. */
export async function initWeightTransfer(options: Bounded, exchange: Exchange): Promise<Response> {
  const request = await requestOf(exchange, options.sidecar.rollout.epoch);
  // The same engines even if others join or leave meanwhile: their order determines the ranks.
  const engines = reachable(options.pool.members);
  const all = await sizes(options, engines, {});
  const offsets = all.map((_, index) => all.slice(0, index).reduce((sum, size) => sum + size, 0));
  const own = (index: number): ControlRequest => ({
    ...request,
    body: shifted(request.body, { ranks: offsets[index] ?? 0, engines: index }),
  });
  return merged(await asked(options, engines, own));
}

/** vLLM has the rank in `init_info`, AReaL and prime-rl (`server_rank`: of a server, whose ranks it knows) have not. */
function shifted(body: unknown, { ranks, engines }: { ranks: number; engines: number }): unknown {
  if (typeof body !== "object" || body === null) return body;
  if ("init_info" in body)
    return { ...body, init_info: shifted(body.init_info, { ranks, engines }) };
  if ("rank_offset" in body) {
    return { ...body, rank_offset: rankIn(body.rank_offset, "rank_offset") + ranks };
  }
  if ("server_rank" in body) {
    return { ...body, server_rank: rankIn(body.server_rank, "server_rank") + engines };
  }
  return body;
}

const RANKS_MAX = 1_048_576;
const SHOWN_MAX = 100;

function rankIn(value: unknown, field: string): number {
  if (Number.isInteger(value) && Number(value) >= 0 && Number(value) <= RANKS_MAX) {
    return Number(value);
  }
  const shown = JSON.stringify(value).slice(0, SHOWN_MAX);
  throw invalid(field, `is ${shown}; it is a whole number from 0 to ${RANKS_MAX}`);
}

export async function renameWeights({ weights }: Bounded, exchange: Exchange): Promise<Response> {
  const version = stringField(await exchange.json(), "new_version");
  weights.rename(version);
  return jsonResponse({ weight_version: version });
}

export async function collectiveRpc(options: Bounded, exchange: Exchange): Promise<Response> {
  const { weights, harmlessRpc } = options;
  const method = stringField(await exchange.json(), "method");
  const effect = rpcEffect(method, harmlessRpc);
  switch (effect.kind) {
    case "harmless":
      return answerTo({ path: exchange.url.pathname }, await broadcasted(options, exchange));
    case "refused":
      throw invalid("method", `is "${method}"; POST ${effect.route} does it`);
    case "start":
      return await weights.start(exchange);
    case "finish":
      return await weights.finish(exchange);
    case "whole":
      return await weights.whole(exchange);
    case "part":
      return await weights.update(exchange);
    default:
      return unreachable(effect);
  }
}

/** `reset` sets all weights to zero; the others only read them. */
export async function weightChecker(options: Bounded, exchange: Exchange): Promise<Response> {
  const action = stringField(await exchange.json(), "action");
  if (action === "checksum" || action === "compare") return await broadcast(options, exchange);
  return await options.weights.whole(exchange);
}

export async function pause(options: ControlOptions, exchange: Exchange): Promise<Response> {
  const { searchParams } = exchange.url;
  await options.weights.pause(modeIn(searchParams, "abort"));
  if (searchParams.get("clear_cache") !== "false") forgetKv(options);
  return jsonResponse({ status: "paused" });
}

function modeIn(params: URLSearchParams, fallback: PauseMode): PauseMode {
  const mode = params.get("mode") ?? fallback;
  if (mode === "abort" || mode === "wait" || mode === "keep") return mode;
  throw invalid("mode", `is "${mode}"; it is one of abort, wait, keep`);
}

export function resume({ weights }: Bounded): Response {
  const reason = weights.resume();
  return jsonResponse(reason === null ? { status: "resumed" } : { status: "deferred", reason });
}

export async function sleep(options: Bounded, exchange: Exchange): Promise<Response> {
  const mode = modeIn(exchange.url.searchParams, "keep");
  // First, so that a body that cannot be read leaves nothing paused.
  const request = await requestOf(exchange, options.sidecar.rollout.epoch);
  // Refused before anything is paused.
  return await options.calls.during(async () => {
    await options.weights.pause(mode);
    options.weights.slept();
    forgetKv(options);
    return merged(await fanOut(reachable(options.pool.members), () => request, limitsOf(options)));
  });
}

export async function wakeUp(options: Bounded, exchange: Exchange): Promise<Response> {
  const outcome = await broadcasted(options, exchange);
  const tags = exchange.url.searchParams.getAll("tags");
  // Trainers wake weights first, update them, and wake the KV cache last: only then can anything run.
  const canRun = tags.length === 0 || tags.includes("kv_cache");
  if (outcome.failed.length > 0 || !canRun) return merged(outcome);
  const tried = await options.weights.checkAwake();
  options.weights.resume();
  return tried.failed.length > 0 ? merged(tried) : merged(outcome);
}

export async function isSleeping(options: Bounded, exchange: Exchange): Promise<Response> {
  const outcome = await broadcasted(options, exchange);
  const asleep = outcome.answers.some(({ answer }) => {
    const { body } = answer;
    return typeof body === "object" && body !== null && "is_sleeping" in body && body.is_sleeping;
  });
  return jsonResponse({ is_sleeping: asleep });
}

export async function resetPrefixCache(options: Bounded, exchange: Exchange): Promise<Response> {
  const answer = await broadcast(options, exchange);
  if (answer.ok) forgetKv(options);
  return answer;
}

/** KV that requests have left anywhere is dropped, and recomputed when it is wanted; unless something runs again. */
function forgetKv({ sidecar }: ControlOptions): void {
  if (sidecar.rollout.isQuiet) sidecar.rollout.forgetKv();
}

/** vLLM's route for trainers takes no ids, or none at all, for all requests; its other one wants them. */
export async function abortRequests(
  options: ControlOptions,
  exchange: Exchange,
): Promise<Response> {
  const body = await exchange.json();
  const ids =
    typeof body === "object" && body !== null && "request_ids" in body ? body.request_ids : null;
  const meansAll = exchange.url.pathname === "/abort_requests";
  if (meansAll && (ids === null || (Array.isArray(ids) && ids.length === 0))) {
    return jsonResponse({ status: "aborted", aborted: options.abortRequests(null) });
  }
  if (!Array.isArray(ids) || ids.some((id) => typeof id !== "string")) {
    throw invalid("request_ids", "is not a list of strings");
  }
  return jsonResponse({ status: "aborted", aborted: options.abortRequests(ids) });
}

function stringField(body: unknown, field: string): string {
  const value: unknown =
    typeof body === "object" && body !== null ? Reflect.get(body, field) : undefined;
  if (typeof value !== "string" || value === "") throw invalid(field, "is not a string");
  return value;
}

function invalid(field: string, problem: string): InvalidFieldError {
  return new InvalidFieldError({ where: "request", field, problem });
}
