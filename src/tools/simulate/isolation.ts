// TailSieve's isolation, by the measured step-time curve: the requests that are expected to need the most tokens run on
// a few engines of their own, with so few beside them that a step is short; the rest fills the others. How many requests
// and engines: those with which both lanes are expected to end first.

import type { Request } from "../../core/request/buffer.ts";
import type { Slot } from "../../core/schedule/placement.ts";
import { schedulerFor } from "../../core/schedule/policies.ts";
import type { Scheduler } from "../../core/schedule/scheduler.ts";
import type { SchedulerParts } from "./simulation.ts";

/** Turns after which the lanes are chosen anew. */
const TURNS = 64;
/** Requests beside one another on an isolated engine, at most; engines that are isolated, as a part of all. */
const BESIDE = [1, 2, 4, 8, 16, 32];
const ENGINE_PARTS = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2];

interface Lanes {
  readonly long: ReadonlySet<Request>;
  /** Engines of the long lane; 0: there is none. */
  readonly engines: number;
}

export function isolating(parts: SchedulerParts): Scheduler {
  const [bulk, long] = [schedulerFor("seer", parts), schedulerFor("seer", parts)];
  const own = {
    schedule: bulk.schedule.bind(bulk),
    enqueue: bulk.enqueue.bind(bulk),
    remove: bulk.remove.bind(bulk),
    unparked: bulk.unparked.bind(bulk),
    refresh: bulk.refresh.bind(bulk),
    forget: bulk.forget.bind(bulk),
  };
  const bulkLane = { ...own };
  let lanes: Lanes = { long: new Set(), engines: 0 };
  const waits = new Map<Request, Pick<Scheduler, "enqueue" | "remove" | "unparked">>();
  let turns = 0;
  bulk.enqueue = (request) => {
    const lane = lanes.long.has(request) ? long : bulkLane;
    waits.set(request, lane);
    lane.enqueue(request);
  };
  bulk.remove = (request) => {
    waits.get(request)?.remove(request);
    waits.delete(request);
  };
  bulk.unparked = (request) => waits.get(request)?.unparked(request);
  for (const name of ["refresh", "forget"] as const) {
    bulk[name] = (group) => {
      own[name](group);
      long[name](group);
    };
  }
  bulk.schedule = (slots, ...rest) => {
    if (turns % TURNS === 0) {
      lanes = lanesOf([...parts.buffer.requests], slots, parts);
      for (const [request, lane] of [...waits]) {
        if ((lane === long) === lanes.long.has(request)) continue;
        lane.remove(request);
        bulk.enqueue(request);
      }
    }
    turns += 1;
    const commands = [
      ...long.schedule(slots.slice(0, lanes.engines), ...rest),
      ...own.schedule(slots.slice(lanes.engines), ...rest),
    ];
    for (const { kind, request } of commands) if (kind === "dispatch") waits.delete(request);
    return commands;
  };
  return bulk;
}

/** `context`: what is known of lengths; of others the mean is expected. */
function lanesOf(
  requests: readonly Request[],
  slots: readonly Slot[],
  parts: SchedulerParts,
): Lanes {
  const open = requests.filter(({ status }) => status !== "finished");
  const learned = open.map(({ group }) => parts.context.learned(group));
  const known = learned.filter((tokens) => tokens !== null);
  const mean = known.reduce((sum, tokens) => sum + tokens, 0) / Math.max(1, known.length);
  const left = open
    .map((request, i) => ({
      request,
      tokens: Math.max(0, (learned[i] ?? mean) - request.response.length),
    }))
    .sort((a, b) => b.tokens - a.tokens);
  const after = new Float64Array(left.length + 1);
  for (let i = left.length - 1; i >= 0; i -= 1)
    after[i] = (after[i + 1] ?? 0) + (left[i]?.tokens ?? 0);
  const context =
    open.reduce((sum, { response }) => sum + response.length, 1) / Math.max(1, open.length);
  const [slot] = slots;
  let best: Lanes = { long: new Set(), engines: 0 };
  if (slot === undefined) return best;
  const { baseRequests: base } = slot;
  const full = Math.max(1, Math.min(slot.slots, slot.kvTokens / (context + mean / 2)));
  /** Time of the lanes, in tokens that a request makes alone times what a step takes. */
  const timeOf = (engines: number, beside: number): number => {
    const count = Math.min(left.length, engines * beside);
    const others = slots.length - engines;
    const batch = Math.min(full, Math.max(1, (left.length - count) / others));
    const bulk = Math.max(
      ((after[count] ?? 0) / others / batch) * (base + batch),
      (left[count]?.tokens ?? 0) * (base + batch),
    );
    return Math.max(bulk, engines === 0 ? 0 : (left[0]?.tokens ?? 0) * (base + beside));
  };
  let least = timeOf(0, 0);
  // While requests wait for KV, an engine with few of them takes theirs.
  if (left.length > full * slots.length) return best;
  for (const part of ENGINE_PARTS) {
    const engines = Math.max(1, Math.floor(part * slots.length));
    if (engines >= slots.length) continue;
    for (const beside of BESIDE) {
      const time = timeOf(engines, beside);
      if (time >= least) continue;
      least = time;
      best = {
        engines,
        long: new Set(left.slice(0, engines * beside).map(({ request }) => request)),
      };
    }
  }
  return best;
}
