// The rollout API: a whole iteration in one request. Finished groups stream out at once as NDJSON, in the
// shape of RESPONSES.jsonl; the last line is a summary.

import type { Later } from "../../core/base/clock.ts";
import { noted } from "../openai/submit.ts";
import { lineStream, NDJSON } from "../pulled-stream.ts";
import { bound, type Exchange, jsonResponse, type Row, wholeNumber } from "../route.ts";
import { KnownRollouts, type KnownRolloutsOptions } from "./known.ts";
import {
  AdditionSchema,
  additionsOf,
  type PlanContext,
  planOf,
  ROLLOUT_LIMITS,
  type RolloutLimits,
  RolloutRequestSchema,
  requestsIn,
} from "./plan.ts";
import type { RolloutRun } from "./run.ts";

type Plan = Pick<PlanContext, "encoder" | "chats" | "eosTokenIds" | "adapterOf">;

export interface RolloutRoutesOptions extends Omit<KnownRolloutsOptions, "limits">, Plan {
  readonly limits?: Partial<RolloutLimits>;
  /** Whether engines draft in a way that lets a seed draw other tokens each time. Default: none does. */
  readonly variesSeeds?: () => boolean;
  readonly later: Later;
}

interface Parts extends RolloutRoutesOptions {
  readonly limits: RolloutLimits;
  readonly known: KnownRollouts;
}

export const ROLLOUT_ROUTES: readonly Row<Parts>[] = [
  {
    method: "POST",
    path: "/v1/rollouts",
    summary: "Runs an iteration; finished groups come as NDJSON at once, a summary last",
    schema: RolloutRequestSchema,
    answers: [NDJSON],
    handle: begin,
  },
  {
    method: "GET",
    path: "/v1/rollouts",
    summary: "Every rollout that is kept",
    handle: ({ known }) => jsonResponse({ rollouts: known.runs().map(stateOf) }),
  },
  {
    method: "GET",
    path: "/v1/rollouts/:id",
    summary: "One rollout: its state, and that of each response",
    handle: ({ known }, exchange) => jsonResponse(detailOf(runOf(known, exchange))),
  },
  {
    method: "GET",
    path: "/v1/rollouts/:id/groups",
    summary: "Its finished groups as NDJSON, those from the `from`th on",
    answers: [NDJSON],
    query: { from: { type: "integer", minimum: 0 } },
    handle: (parts, exchange) => {
      const run = runOf(parts.known, exchange);
      const from = exchange.url.searchParams.get("from") ?? "0";
      const first = wholeNumber("from", from, run.groups.length);
      return streamOf(run, { ...parts, from: first, exchange });
    },
  },
  {
    method: "POST",
    path: "/v1/rollouts/:id/groups",
    summary: "Adds groups to a rollout that runs, or responses to one of its groups",
    schema: AdditionSchema,
    handle: add,
  },
  {
    method: "DELETE",
    path: "/v1/rollouts/:id/groups/:group",
    summary: "Gives up a group that is not handed out",
    handle: ({ known }, exchange) => {
      const run = runOf(known, exchange);
      const responses = run.giveUp(exchange.params.group ?? "");
      return jsonResponse({ ...stateOf(run), given_up_requests: responses });
    },
  },
  {
    method: "DELETE",
    path: "/v1/rollouts/:id",
    summary: "Gives up what is not finished",
    handle: ({ known }, exchange) => {
      const run = runOf(known, exchange);
      run.cancel();
      return jsonResponse(stateOf(run));
    },
  },
];

export function rolloutSide(options: RolloutRoutesOptions) {
  const limits = { ...ROLLOUT_LIMITS, ...options.limits };
  const known = new KnownRollouts({ ...options, limits });
  return { routes: bound(ROLLOUT_ROUTES, { ...options, limits, known }), known };
}

/** Name of the group in streams. */
function streamGroupOf({ requests }: RolloutRun["groups"][number]): string {
  return String(requests[0]?.spec.groupId ?? "");
}

function runOf(known: KnownRollouts, { params }: Exchange): RolloutRun {
  return known.run(params.id ?? "");
}

async function contextOf(parts: Parts, exchange: Exchange): Promise<PlanContext> {
  const { contextTokens: room } = parts.sidecar;
  const contextTokens = Number.isFinite(room) ? room : null;
  const { requestsMax } = parts.limits;
  const source = await exchange.source();
  return { ...parts, source, contextTokens, requestsMax, signal: exchange.signal };
}

async function add(parts: Parts, exchange: Exchange): Promise<Response> {
  const body = await exchange.json("packed");
  const run = runOf(parts.known, exchange);
  run.checkRunning();
  const { added, isOpen } = await additionsOf(body, await contextOf(parts, exchange), run);
  run.add(added, isOpen);
  const added_requests = requestsIn(added.map(({ plan }) => plan));
  return jsonResponse({ ...stateOf(run), added_requests });
}

async function begin(parts: Parts, exchange: Exchange): Promise<Response> {
  const digest = await exchange.digest();
  const context = await contextOf(parts, exchange);
  const plan = await planOf(await exchange.json("packed"), context);
  exchange.release();
  const run = parts.known.begin(plan, digest);
  const varies = plan.groups.some(({ seeded }) => seeded) && parts.variesSeeds?.() === true;
  return noted(streamOf(run, { ...parts, from: 0, exchange }), varies);
}

/** Finished groups from number `from` on, then the others as they finish, then the summary. */
function streamOf(
  run: RolloutRun,
  { from, exchange, later }: Pick<Parts, "later"> & { from: number; exchange: Exchange },
): Response {
  let position = from;
  let detach = () => {};
  const { response, news } = lineStream(exchange, {
    headers: { "x-rollout-id": encodeURIComponent(run.id) },
    later,
    next: () => {
      const group = run.finishedGroups[position];
      if (group === undefined) {
        return run.state === "running" ? null : { text: run.summaryLine(), end: "done" };
      }
      position += 1;
      const hasMore = position < run.finishedGroups.length || run.state !== "running";
      return { text: run.linesOf(group), hasMore };
    },
    closed: () => detach(),
  });
  detach = run.attach(news);
  if (exchange.signal.aborted) detach();
  return response;
}

function stateOf(run: RolloutRun) {
  return {
    id: run.id,
    state: run.state,
    detached: run.isDetached,
    progress: {
      groups: run.groups.length,
      finished_groups: run.finishedGroups.length,
      requests: run.requests,
      finished_requests: run.finishedRequests,
      output_tokens: run.outputTokens,
      elapsed_s: run.report?.wall_s ?? run.elapsedS,
    },
    report: run.report === null ? null : { ...run.report },
  };
}

/** The rollout's state, with the names of its groups and the numbers of its responses on /v1/stream. */
function detailOf(run: RolloutRun) {
  const groups = run.groups.map((group) => ({
    id: group.id,
    stream_group: streamGroupOf(group),
    requests: group.requests.map(({ spec }): number => spec.requestId),
    lengths: group.requests.map(({ response }) => response.length),
    finished: group.finished,
  }));
  return { ...stateOf(run), groups };
}
