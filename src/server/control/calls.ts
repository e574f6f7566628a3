// Calls of the control plane: how each is read, what it does, and how the engines' answers become one. The table of the routes
// is routes.ts; adapters make the same calls.

import { AppError } from "../../core/base/errors.ts";
import { kvMovesReport } from "../../core/rollout/meter.ts";
import type { ControlAnswer, EngineOperation } from "../../core/rollout/operation.ts";
import type { PauseMode } from "../../core/rollout/pause.ts";
import {
  type CallBound,
  connected,
  type EngineAnswers,
  fanOut,
  isSuccess,
  type Reachable,
  reachable,
  SILENT,
  textOf,
  type UpdateTimes,
} from "../../fleet/engines.ts";
import type { WorkerPool } from "../../fleet/pool.ts";
import type { WeightUpdates } from "../../fleet/updates.ts";
import { type Exchange, invalid, jsonResponse, textIn } from "../route.ts";
import type { Sidecar } from "../sidecar.ts";
import { rpcEffect } from "./rpc-methods.ts";

export interface ControlCall {
  readonly query: Readonly<Record<string, string>>;
  readonly body: unknown;
}

export const RPC_PATH = "/collective_rpc";

const METHOD_CHARACTERS = 100;

/** Reads a call. Values of a query key that comes several times (`tags`) are joined with commas. */
export async function callOf(exchange: Exchange): Promise<ControlCall> {
  const { searchParams: params } = exchange.url;
  const query = Object.fromEntries(
    [...params.keys()].map((key) => [key, params.getAll(key).join(",")]),
  );
  const body = exchange.method === "GET" ? null : await exchange.json();
  const method: unknown = exchange.url.pathname === RPC_PATH ? Object(body).method : null;
  if (typeof method === "string") exchange.about = method.slice(0, METHOD_CHARACTERS);
  return { query, body };
}

const LOAD_FIELDS: ReadonlySet<string> = new Set(["method", "kwargs", "weight_version"]);

/** A call of `/collective_rpc`: `reload_weights` with a path and known fields is the load that every engine can do. */
function rpcOf(body: unknown): EngineOperation {
  const { method, kwargs, weight_version: version = null } = Object(body);
  const { weights_path: path, ...options } = Object(kwargs);
  const isLoad =
    method === "reload_weights" &&
    Object.keys(Object(body)).every((field) => LOAD_FIELDS.has(field));
  const isNamed = version === null || typeof version === "string";
  if (!isLoad || typeof path !== "string" || !isNamed) return { kind: "rpc", body };
  return { kind: "load", path, version, options };
}

export interface ControlOptions extends Omit<UpdateTimes, "clock"> {
  readonly sidecar: Sidecar;
  readonly pool: WorkerPool;
  readonly weights: WeightUpdates;
  readonly modelName: string;
  readonly version: string;
  /** Aborts requests by the clients' ids or those in answers; null: all. Returns how many there were. */
  readonly abortRequests: (ids: readonly string[] | null) => number;
}

export type Control = ControlOptions & { readonly calls: CallBound };
export type ControlAct = (control: Control, call: ControlCall) => Promise<Response> | Response;

export function workersOf(of: Pick<ControlOptions, "pool" | "sidecar">) {
  const { pool, sidecar } = of;
  const { meter } = sidecar.rollout;
  return pool.members.map(({ source, workerId, record, state, reason, worker }) => ({
    worker: workerId,
    name: source.name,
    state,
    reason,
    slots: worker?.capacity.slots ?? null,
    kv_tokens: worker?.capacity.kvTokens ?? null,
    context_tokens: worker?.capacity.contextTokens ?? null,
    weights: worker?.weights ?? null,
    weight_version: worker?.weightVersion?.name ?? null,
    stale: record.stale !== null,
    kv_moves: kvMovesReport([meter.latest(workerId)?.kvMoves]),
  }));
}

export function health(control: ControlOptions): Response {
  const { pool, sidecar } = control;
  const problem = sidecar.isDraining ? "draining" : pool.problem;
  const isWell = pool.members.every(({ state }) => state === "ready");
  if (problem === null && isWell) return new Response(null, { status: 200 });
  const status = problem ?? "some workers are not in service";
  return jsonResponse({ status, workers: workersOf(control) }, problem === null ? 200 : 503);
}

async function fanned(
  { timeoutMs: msMax, later, sidecar }: ControlOptions,
  engines: readonly Reachable[],
  operationOf: (index: number) => EngineOperation,
): Promise<EngineAnswers> {
  const { epoch: nextEpoch } = sidecar.rollout;
  return await fanOut(engines, operationOf, { nextEpoch, msMax, later, sidecar });
}

async function asked(
  control: Control,
  operation: EngineOperation,
  engines = reachable(control.pool.members),
): Promise<EngineAnswers> {
  return await control.calls.during(() => fanned(control, engines, () => operation));
}

/**
 * The first engine's answer if all succeeded. Otherwise an error that names those that failed: with their common status
 * (404: no such route), else 504 if one did not answer in time, else 500.
 */
function merged(outcome: EngineAnswers): Response {
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

/** As `merged`, but the results of a method that ranks run are those of all engines, in order. */
export function answerTo({ kind }: EngineOperation, outcome: EngineAnswers): Response {
  const isList = kind === "rpc" || kind === "load";
  if (!isList || outcome.failed.length > 0 || outcome.answers.length === 0) return merged(outcome);
  const results = outcome.answers.flatMap(({ answer }) => {
    const { results: ranks } = Object(answer.body);
    return Array.isArray(ranks) ? ranks : [answer.body];
  });
  return jsonResponse({ results });
}

/** An engine's answer as ours. Some of vLLM's routes answer plain text, or nothing. */
function whole({ body, status }: ControlAnswer): Response {
  if (body === null) return new Response(null, { status });
  if (typeof body === "string") return new Response(body, { status });
  return jsonResponse(body, status);
}

export async function broadcast(control: Control, operation: EngineOperation): Promise<Response> {
  return merged(await asked(control, operation));
}

/** Asks the first engine only: all are of a kind. */
export async function askFirst(control: Control, operation: EngineOperation): Promise<Response> {
  const engines = reachable(control.pool.members).slice(0, 1);
  return merged(await asked(control, operation, engines));
}

/** Ranks of each engine. An engine without the route (vLLM outside of development mode) counts as one rank. */
export async function worldSizes(
  control: Control,
  engines = connected(control.pool.members),
  settings: ControlCall["query"] = {},
): Promise<number[]> {
  const operation = { kind: "ask", about: "world_size", settings } as const;
  const { answers } = await asked(control, operation, engines);
  return answers.map(({ answer }) => {
    const { world_size: size } = Object(answer.body);
    return typeof size === "number" && isSuccess(answer) ? size : 1;
  });
}

export const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

export const worldSize: ControlAct = async (control, { query }) => {
  const sizes = await worldSizes(control, reachable(control.pool.members), query);
  return jsonResponse({ world_size: sum(sizes) });
};

/** Connects every engine to the trainer. Each engine's ranks follow those of the engines before it. */
export async function connectTrainer(
  control: Control,
  operation: Extract<EngineOperation, { kind: "update" | "extension" }>,
): Promise<Response> {
  // The same engines even if others join or leave meanwhile: their order determines the ranks.
  const engines = reachable(control.pool.members);
  const sizes = await worldSizes(control, engines);
  const operationOf = (index: number): EngineOperation => {
    const ranks = sum(sizes.slice(0, index));
    return { ...operation, body: shifted(operation.body, { ranks, engines: index }) };
  };
  return merged(await control.calls.during(() => fanned(control, engines, operationOf)));
}

/** Shifts a body's first rank: vLLM has it in `init_info`, AReaL at the top, prime-rl counts servers (`server_rank`). */
function shifted(body: unknown, by: { ranks: number; engines: number }): unknown {
  if (typeof body !== "object" || body === null) return body;
  if ("init_info" in body) return { ...body, init_info: shifted(body.init_info, by) };
  if ("rank_offset" in body) {
    return { ...body, rank_offset: rankIn(body.rank_offset, "rank_offset") + by.ranks };
  }
  if ("server_rank" in body) {
    return { ...body, server_rank: rankIn(body.server_rank, "server_rank") + by.engines };
  }
  return body;
}

const RANKS_MAX = 1_048_576;
const SHOWN_MAX = 100;

function rankIn(value: unknown, field: string): number {
  const isRank = Number.isInteger(value) && Number(value) >= 0 && Number(value) <= RANKS_MAX;
  if (isRank) return Number(value);
  const shown = JSON.stringify(value).slice(0, SHOWN_MAX);
  throw invalid(field, `is ${shown}; it is a whole number from 0 to ${RANKS_MAX}`);
}

export async function updated(
  { weights }: Control,
  step: "start" | "part" | "finish" | "whole",
  operation: EngineOperation,
): Promise<Response> {
  return answerTo(operation, await weights[step](operation));
}

const ADAPTER_CHARACTERS_MAX = 256;

export const changeAdapter =
  (change: "load" | "unload"): ControlAct =>
  async ({ weights }, { body }) => {
    const name = textIn(body, "lora_name", ADAPTER_CHARACTERS_MAX);
    return merged(await weights.changeAdapter(name, { kind: "adapter", change, body }));
  };

export const renameWeights: ControlAct = ({ weights, sidecar }, { body }) => {
  const version = textIn(body, "new_version");
  weights.name(sidecar.rollout.epoch, version);
  return jsonResponse({ weight_version: version });
};

export const collectiveRpc: ControlAct = async (control, { body }) => {
  const method = textIn(body, "method");
  const effect = rpcEffect(method);
  const operation = rpcOf(body);
  if (effect.kind === "harmless") return answerTo(operation, await asked(control, operation));
  if (effect.kind !== "refused") return await updated(control, effect.kind, operation);
  throw invalid("method", `is "${method}"; POST ${effect.route} does it`);
};

/** `reset` sets all weights to zero; the others only read them. */
export const weightChecker: ControlAct = async (control, { body }) => {
  const action = textIn(body, "action");
  const operation = { kind: "update", step: "compare", body } as const;
  const isRead = action === "checksum" || action === "compare";
  return isRead ? await broadcast(control, operation) : await updated(control, "whole", operation);
};

export async function pause(control: ControlOptions, mode: PauseMode, clearsCache = true) {
  await control.weights.hold.pause(mode);
  if (clearsCache) forgetKv(control);
  return jsonResponse({ status: "paused" });
}

/** The pause mode of a query; null: the client gave none. */
export function modeIn(mode: string | null | undefined, fallback: PauseMode): PauseMode {
  const chosen = mode ?? fallback;
  if (chosen === "abort" || chosen === "wait" || chosen === "keep") return chosen;
  throw invalid("mode", `is "${chosen}"; it is one of abort, wait, keep`);
}

export function resume({ weights }: ControlOptions): Response {
  const reason = weights.resume();
  return jsonResponse(reason === null ? { status: "resumed" } : { status: "deferred", reason });
}

export async function sleep(
  control: Control,
  { level, mode = null }: { level: 0 | 1 | 2; mode?: PauseMode | null },
): Promise<Response> {
  // Refused before anything is paused.
  return await control.calls.during(async () => {
    await control.weights.hold.pause(mode ?? "keep");
    await control.weights.beforeSleep();
    forgetKv(control);
    const engines = reachable(control.pool.members);
    return merged(await fanned(control, engines, () => ({ kind: "sleep", level, mode })));
  });
}

/** `tags`: parts of the memory; none: all. */
export async function wakeUp(control: Control, tags: readonly string[]): Promise<Response> {
  const outcome = await asked(control, { kind: "wake", tags });
  // Trainers wake weights first, update them, and wake the KV cache last: only then can anything run.
  const canRun = tags.length === 0 || tags.includes("kv_cache");
  if (outcome.failed.length > 0 || !canRun) return merged(outcome);
  const tried = await control.weights.checkAwake();
  control.weights.resume();
  return merged(tried.failed.length > 0 ? tried : outcome);
}

export const isSleeping: ControlAct = async (control, { query: settings }) => {
  const { answers } = await asked(control, { kind: "ask", about: "is_asleep", settings });
  const asleep = answers.some(({ answer }) => Object(answer.body).is_sleeping === true);
  return jsonResponse({ is_sleeping: asleep });
};

export async function resetPrefixCache(
  control: Control,
  settings: ControlCall["query"] = {},
): Promise<Response> {
  const answer = await broadcast(control, { kind: "drop_cache", cache: "prefix", settings });
  if (answer.ok) forgetKv(control);
  return answer;
}

/** Drops the KV that requests have on workers: it is computed again. Does nothing while something runs. */
function forgetKv({ sidecar }: ControlOptions): void {
  if (sidecar.rollout.isQuiet) sidecar.rollout.forgetKv();
}

/** `noneMeansAll`: without ids, all requests are aborted, as by vLLM's route for trainers; its other route requires ids. */
export function abortRequests(noneMeansAll: boolean): ControlAct {
  return ({ abortRequests: abort }, { body }) => {
    const ids: unknown = Object(body).request_ids ?? null;
    const isList = Array.isArray(ids);
    if (noneMeansAll && (ids === null || (isList && ids.length === 0))) {
      return jsonResponse({ status: "aborted", aborted: abort(null) });
    }
    if (!isList || ids.some((id) => typeof id !== "string")) {
      throw invalid("request_ids", "is not a list of strings");
    }
    return jsonResponse({ status: "aborted", aborted: abort(ids) });
  };
}
