// The rollout API: a whole iteration in one request. Finished groups stream out at once as NDJSON, in the
// shape of RESPONSES.jsonl; the last line is a summary.

import type { Clock } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { Encoder, Text } from "../../text/text.ts";
import type { Kept } from "../kept.ts";
import { type Exchange, jsonResponse, type Route } from "../route.ts";
import type { Sidecar } from "../sidecar.ts";
import type { RolloutDetail, RolloutStateAnswer } from "./answers.ts";
import type { RunFiles } from "./journal.ts";
import { KnownRollouts, type KnownRolloutsOptions } from "./known.ts";
import { invalid, type PlanContext, planOf, ROLLOUT_LIMITS, type RolloutLimits } from "./plan.ts";
import type { Run } from "./run.ts";

export interface RolloutRoutesOptions {
  readonly sidecar: Sidecar;
  readonly text: Text;
  readonly encoder: Encoder;
  readonly eosTokenIds: readonly number[];
  readonly clock: Clock;
  readonly adapterOf: PlanContext["adapterOf"];
  /** What the trainer calls the weights of an epoch. Default: its number. */
  readonly versionOf?: (epoch: WeightEpoch) => string;
  /** 32 random bits. */
  readonly random: () => number;
  readonly limits?: Partial<RolloutLimits>;
  /** Default: no journals are kept. */
  readonly files?: RunFiles | null;
  /** Default: not known. */
  readonly held?: KnownRolloutsOptions["held"];
  /**
   * A client that takes nothing for so long, while there is something to take, is dropped. What it does not take costs
   * no memory but the responses, and trainers compute between two groups. Default: ten minutes.
   */
  readonly stallMsMax?: number;
  /** Runs `run` after `ms`; returns what prevents it. */
  readonly after: (ms: number, run: () => void) => () => void;
}

const STALL_MS_MAX = 600_000;

export interface RolloutSide {
  readonly routes: Route[];
  /** Of rollouts that are over. */
  readonly kept: () => Kept;
  readonly known: KnownRollouts;
}

export function rolloutSide(options: RolloutRoutesOptions): RolloutSide {
  const { sidecar, text, encoder, clock, random, eosTokenIds, versionOf = String } = options;
  const { after, adapterOf, stallMsMax = STALL_MS_MAX } = options;
  const limits = { ...ROLLOUT_LIMITS, ...options.limits };
  const newId = () => `rollout-${hex(random())}${hex(random())}`;
  const { files = null, held = () => ({ weights: null, base: "unknown" as const }) } = options;
  const known = new KnownRollouts({ sidecar, text, clock, versionOf, limits, newId, files, held });
  const runOf = ({ params }: Exchange): Run => known.run(params.id ?? "");
  const routes: Route[] = [
    {
      method: "POST",
      path: "/v1/rollouts",
      handle: async (exchange) => {
        const digest = await exchange.digest();
        const { signal } = exchange;
        const { contextTokens: room } = sidecar;
        const contextTokens = Number.isFinite(room) ? room : null;
        const context = { text, encoder, contextTokens, signal, eosTokenIds, adapterOf, limits };
        const plan = await planOf(await exchange.json("packed"), context);
        exchange.release();
        const { run } = known.begin(plan, digest);
        return streamOf(run, { from: 0, exchange, after, stallMsMax });
      },
    },
    {
      method: "GET",
      path: "/v1/rollouts",
      handle: () => jsonResponse({ rollouts: known.runs().map(stateOf) }),
    },
    {
      method: "GET",
      path: "/v1/rollouts/:id",
      handle: (exchange) => jsonResponse(detailOf(runOf(exchange))),
    },
    {
      method: "GET",
      path: "/v1/rollouts/:id/groups",
      handle: (exchange) => {
        const run = runOf(exchange);
        const from = fromOf(exchange.url, run);
        return streamOf(run, { from, exchange, after, stallMsMax });
      },
    },
    {
      method: "DELETE",
      path: "/v1/rollouts/:id",
      handle: (exchange) => {
        const run = runOf(exchange);
        run.cancel();
        return jsonResponse(stateOf(run));
      },
    },
  ];
  return {
    routes,
    kept: () => known.kept,
    known,
  };
}

/** Finished groups from number `from` on, then the others as they finish, then the summary. */
function streamOf(
  run: Run,
  options: {
    from: number;
    exchange: Exchange;
    stallMsMax: number;
    after: RolloutRoutesOptions["after"];
  },
): Response {
  const { exchange, stallMsMax, after } = options;
  const hold = exchange.streams();
  const detach = run.attach();
  let cancelStall = () => {};
  const leave = () => {
    cancelStall();
    detach();
    hold.ended();
  };
  if (exchange.signal.aborted) leave();
  exchange.signal.addEventListener("abort", leave, { once: true });
  const encoder = new TextEncoder();
  let next = options.from;
  const write = (controller: ReadableStreamDefaultController<Uint8Array>) => {
    const group = run.finishedGroups[next];
    if (group === undefined) {
      controller.enqueue(encoder.encode(run.summaryLine()));
      controller.close();
      leave();
      return;
    }
    controller.enqueue(encoder.encode(run.linesOf(group)));
    next += 1;
    // It asks for more as soon as it has taken this.
    cancelStall = after(stallMsMax, () => {
      controller.error(
        new AppError("deadline_exceeded", `the client took nothing for ${stallMsMax} ms`),
      );
      leave();
    });
  };
  const stream = new ReadableStream<Uint8Array>(
    {
      // A group is written when the client has taken the one before: what waits is the responses themselves.
      async pull(controller) {
        cancelStall();
        hold.took();
        while (next >= run.finishedGroups.length && run.state === "running") await run.changed();
        try {
          write(controller);
        } catch (error) {
          leave();
          throw error;
        }
      },
      cancel: leave,
    },
    { highWaterMark: 0 },
  );
  const headers = {
    "content-type": "application/x-ndjson",
    "x-rollout-id": encodeURIComponent(run.id),
  };
  return new Response(stream, { headers });
}

function fromOf(url: URL, run: Run): number {
  const given = url.searchParams.get("from");
  if (given === null) return 0;
  const from = Number(given);
  if (given !== "" && Number.isInteger(from) && from >= 0 && from <= run.groups.length) return from;
  throw invalid(
    "from",
    `is ${JSON.stringify(given)}, not a whole number in 0..${run.groups.length}`,
  );
}

function stateOf(run: Run): RolloutStateAnswer {
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

function detailOf(run: Run): RolloutDetail {
  const groups = run.groups.map(({ id, requests, finished }) => ({
    id,
    stream_group: String(requests[0]?.spec.groupId ?? ""),
    requests: requests.map(({ spec }): number => spec.requestId),
    lengths: requests.map(({ response }) => response.length),
    finished,
  }));
  return { ...stateOf(run), groups };
}

function hex(word: number): string {
  return (word >>> 0).toString(16).padStart(8, "0");
}
