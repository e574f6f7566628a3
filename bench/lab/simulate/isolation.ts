// TailSieve's isolation, by the measured step-time curve: the requests that are expected to need the most tokens run on
// a few engines of their own, with so few beside them that a step is short; the rest fills the others. How many requests
// and engines: those with which both lanes are expected to end first.

import type { RolloutRequest } from "../../../src/core/request/buffer.ts";
import type { Slot } from "../../../src/core/schedule/placement.ts";
import { schedulerFor } from "../../../src/core/schedule/policies.ts";
import type { Scheduler } from "../../../src/core/schedule/scheduler.ts";
import { meanOf } from "../../../src/tools/simulate/simulation.ts";
import { sumOf } from "../../statistics.ts";
import type { SchedulerParts } from "./iteration.ts";

/** Turns after which the lanes are chosen anew. */
const TURNS = 64;
/** Requests beside one another on an isolated engine, at most; engines that are isolated, as a part of all. */
const BESIDE = [1, 2, 4, 8, 16, 32];
const ENGINE_PARTS = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2];

interface Lanes {
  readonly long: ReadonlySet<RolloutRequest>;
  /** Engines of the long lane; 0: there is none. */
  readonly engines: number;
}

const NONE: Lanes = { long: new Set(), engines: 0 };

/** Two schedulers behind one: each waiting request is in the queue of its lane. */
export function isolating(parts: SchedulerParts): Scheduler {
  const bulk = schedulerFor("seer", parts);
  const long = schedulerFor("seer", parts);
  let lanes = NONE;
  let turns = 0;
  const waits = new Map<RolloutRequest, Scheduler>();
  const enqueue: Scheduler["enqueue"] = (request) => {
    const lane = lanes.long.has(request) ? long : bulk;
    waits.set(request, lane);
    lane.enqueue(request);
  };
  const remove: Scheduler["remove"] = (request) => {
    waits.get(request)?.remove(request);
    waits.delete(request);
  };
  const schedule: Scheduler["schedule"] = (slots, ...rest) => {
    if (turns % TURNS === 0) {
      lanes = lanesOf([...parts.buffer.requests], slots, parts);
      for (const [request, lane] of [...waits]) {
        if ((lane === long) === lanes.long.has(request)) continue;
        remove(request);
        enqueue(request);
      }
    }
    turns += 1;
    const commands = [
      ...long.schedule(slots.slice(0, lanes.engines), ...rest),
      ...bulk.schedule(slots.slice(lanes.engines), ...rest),
    ];
    for (const { kind, request } of commands) if (kind === "dispatch") waits.delete(request);
    return commands;
  };
  const ofBoth = (act: "refresh" | "forget") => (group: RolloutRequest["group"]) => {
    for (const lane of [bulk, long]) lane[act](group);
  };
  return Object.assign(Object.create(bulk) as Scheduler, {
    enqueue,
    remove,
    schedule,
    unparked: (request: RolloutRequest) => waits.get(request)?.unparked(request),
    isUrgent: (request: RolloutRequest) => bulk.isUrgent(request),
    refresh: ofBoth("refresh"),
    forget: ofBoth("forget"),
  });
}

/** `context`: what is known of lengths; of others the mean is expected. */
function lanesOf(
  requests: readonly RolloutRequest[],
  slots: readonly Slot[],
  { context }: SchedulerParts,
): Lanes {
  const open = requests.filter(({ status }) => status !== "finished");
  const learned = open.map(({ group }) => context.learned(group));
  const mean = meanOf(learned.filter((tokens) => tokens !== null));
  const left = open
    .map((request, i) => {
      return { request, tokens: Math.max(0, (learned[i] ?? mean) - request.response.length) };
    })
    .sort((a, b) => b.tokens - a.tokens);
  const tokensIn = (some: typeof left) => sumOf(some, ({ tokens }) => tokens);
  const total = tokensIn(left);
  const [slot] = slots;
  if (slot === undefined) return NONE;
  const { baseRequests: base } = slot;
  const held = meanOf(open.map(({ response }) => response.length));
  const full = Math.max(1, Math.min(slot.slots, slot.kvTokens / (held + mean / 2)));
  // While requests wait for KV, an engine with few of them takes theirs.
  if (left.length > full * slots.length) return NONE;
  /** Time of the lanes, in tokens that a request makes alone times what a step takes. */
  const timeOf = (engines: number, beside: number): number => {
    const apart = left.slice(0, engines * beside);
    const others = slots.length - engines;
    const batch = Math.min(full, Math.max(1, (left.length - apart.length) / others));
    const rest = total - tokensIn(apart);
    const longest = left[apart.length]?.tokens ?? 0;
    const bulk = Math.max(rest / others / batch, longest) * (base + batch);
    return Math.max(bulk, engines === 0 ? 0 : (left[0]?.tokens ?? 0) * (base + beside));
  };
  let best = { engines: 0, beside: 0, time: timeOf(0, 0) };
  for (const part of ENGINE_PARTS) {
    const engines = Math.max(1, Math.floor(part * slots.length));
    if (engines >= slots.length) continue;
    for (const beside of BESIDE) {
      const time = timeOf(engines, beside);
      if (time < best.time) best = { engines, beside, time };
    }
  }
  const { engines, beside } = best;
  return { engines, long: new Set(left.slice(0, engines * beside).map(({ request }) => request)) };
}
