// Sessions as the scheduler sees them: turns that wait, and finished turns whose KV stays for the next one. It says which
// turn goes first, how much room sessions still need, and whether a paused one is expected back soon. It dispatches nothing.

import type { WorkerId } from "../base/ids.ts";
import type { SessionOutlook } from "../context/session-outlook.ts";
import { type Group, isLaterTurn, type RolloutRequest } from "../request/buffer.ts";
import { LOAD_COST, type Slot } from "./placement.ts";
import { PRIORITY_STRIDE } from "./policy.ts";
import { Returns } from "./returns.ts";

/** A probe's session has more to do than any other. */
const PROBE_TOKENS = 2 ** 31;

export class Sessions {
  readonly returns = new Returns();
  /** Waiting turns of sessions that have begun, in order of arrival. */
  readonly turns = new Set<RolloutRequest>();
  /** Finished turns whose KV stays parked; the one finished longest ago comes first. */
  readonly paused = new Set<RolloutRequest>();
  readonly #outlook: SessionOutlook;

  constructor(outlook: SessionOutlook) {
    this.#outlook = outlook;
  }

  /** The request waits; most are no turns of sessions that have begun. */
  enqueue(request: RolloutRequest): void {
    const hasBegun = request.spec.keepsKv === true && request.response.length > 0;
    if (hasBegun || isLaterTurn(request)) this.turns.add(request);
  }

  /** Waiting turns: by the clients' priority, a group's probe first, then those with most to do yet. */
  inOrder(isUrgent: (request: RolloutRequest) => boolean): RolloutRequest[] {
    const keyed = Array.from(this.turns, (request) => {
      const left = isUrgent(request) ? PROBE_TOKENS : this.#outlook.tokensLeft(request);
      return { request, key: request.priority * PRIORITY_STRIDE - left };
    });
    return keyed.sort((a, b) => a.key - b.key).map(({ request }) => request);
  }

  /** Room that the sessions of each worker are expected to need beyond what they have. */
  expectGrowth(slots: readonly Slot[]): void {
    for (const slot of slots) {
      slot.growthTokens = 0;
      slot.runningTokens = 0;
      if (slot.sessions === 0) continue;
      for (const { spec, group, residentTokens } of slot.running) {
        if (spec.keepsKv !== true) continue;
        this.grow(slot, group);
        slot.runningTokens += residentTokens;
      }
    }
    if (this.paused.size + this.turns.size === 0) return;
    const slotOf = new Map(slots.map((slot) => [slot.workerId, slot]));
    for (const resident of [this.paused, this.turns]) {
      for (const { residentOn, group } of resident) {
        const slot = residentOn === null ? undefined : slotOf.get(residentOn);
        if (slot !== undefined) this.grow(slot, group);
      }
    }
  }

  /** A session of the group is on the worker. */
  grow(slot: Slot, group: Group): void {
    const growth = this.#outlook.growthTokens(group) * roomCost(slot);
    slot.growthTokens = (slot.growthTokens ?? 0) + growth;
  }

  /** Whether the session is expected back so soon that others wait. Nobody waits for a worker that runs nothing. */
  stays(request: RolloutRequest, slots: readonly Slot[], nowMs: number): boolean {
    const { residentOn, response, tool } = request;
    const slot = slots.find(({ workerId }) => workerId === residentOn);
    if (slot === undefined || slot.inFlight === 0) return false;
    const { backPart } = this.#outlook;
    const keepMs = this.returns.keepMs({ worthMs: worthMs(slot), backPart, tool });
    return nowMs - (response.finishedMs ?? 0) < keepMs;
  }

  /** Finished turns on the worker that make way until `tokens` tokens are free, the one finished longest ago first. */
  makeWay(workerId: WorkerId, tokens: number): RolloutRequest[] {
    const leaving: RolloutRequest[] = [];
    let short = tokens;
    for (const request of this.paused) {
      if (short <= 0) break;
      if (request.residentOn !== workerId) continue;
      this.paused.delete(request);
      leaving.push(request);
      short -= request.residentTokens;
    }
    return leaving;
  }
}

/** Time in which a worker computes its KV, where it is not known. */
const RECOMPUTE_MS = 1_000;

/**
 * How long a pause may keep its room at most, ms. With n requests that run, in steps as long as those of b + n rows, one
 * more saves b / (n (b + n + 1)) of the time. C tokens are the room of C / c requests that hold c tokens each; to get them
 * back costs C rows. So both are equal after the time of n c (b + n + 1) / b rows, whatever C is.
 */
function worthMs(slot: Slot): number {
  const { inFlight, baseRequests, kvTokens, rowMs, runningTokens = 0 } = slot;
  const isKnown = baseRequests > 0 && !Number.isNaN(rowMs);
  const steps = isKnown ? rowMs * (1 + (inFlight + 1) / baseRequests) : RECOMPUTE_MS / kvTokens;
  return steps * runningTokens * roomCost(slot);
}

/** Cost of getting KV back that made way, as a part of computing it. */
function roomCost({ sharesKv }: Slot): number {
  return sharesKv ? LOAD_COST : 1;
}
