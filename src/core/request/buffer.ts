// The request buffer: every group and request that is not finished, and the state of each request.
// It owns the responses. It decides nothing.
//
// Request ids are never used twice, so a late message of a worker cannot be taken for another request's.
// Indexes are dense and used again: they index the heaps of the core.

import { assert, present } from "../base/assert.ts";
import { type GroupId, type RequestId, requestId, type WorkerId } from "../base/ids.ts";
import type { Attempts } from "./attempts.ts";
import { type DrawKey, drawKeys, type RequestSpec, type SamplingParams } from "./request.ts";
import { RolloutResponse } from "./response.ts";

export interface GroupSpec {
  readonly groupId: GroupId;
  readonly prompt: Int32Array;
  readonly size: number;
  readonly sampling: SamplingParams;
  /** See RequestSpec. Default: true. */
  readonly divisible?: boolean;
}

export interface Wanted {
  readonly sampling: SamplingParams;
  readonly draw: DrawKey;
  /** See RequestSpec. */
  readonly divisible: boolean;
  /** Lower is served earlier, as in vLLM; 0 is usual. */
  readonly priority: number;
  /** true: all tokens must be of one weight epoch, so the request restarts if the weights change. Default: false. */
  readonly isStrict?: boolean;
  /** How many epochs old the tokens of a strict request may be before it restarts. Default: 0. */
  readonly stalenessMax?: number;
  /** Absent: the request is no turn of a session, and responds to the group's prompt. */
  readonly turn?: SessionTurn;
  /** The tool whose output ends the prompt; null or absent: none, or not known. */
  readonly tool?: string | null;
}

/** The prompt of a turn of a session. The group's prompt is that of the first turn. */
export interface SessionTurn {
  /** Begins with the group's prompt. */
  readonly prompt: Int32Array;
  /** See RequestSpec. */
  readonly leadTokens: number;
}

export interface Group {
  readonly groupId: GroupId;
  readonly prompt: Int32Array;
  /** Indexes are dense; another group gets it once this one is removed. */
  readonly index: number;
  readonly requests: readonly RolloutRequest[];
  finished: number;
  /** The meter's number of the iteration in which the group's last request ended; null: not all have ended. */
  endedIn: number | null;
  isClosed: boolean;
  /** Workers that have computed its prompt. */
  readonly promptOn: Set<WorkerId>;
}

/** waiting: to be scheduled. moving: its KV is on the way. running: on `workerId`. finished: complete, or given up. */
export type RequestStatus = "waiting" | "moving" | "running" | "finished";

const NEXT: Readonly<Record<RequestStatus, readonly RequestStatus[]>> = {
  waiting: ["moving", "finished"],
  moving: ["running", "waiting", "finished"],
  running: ["waiting", "finished"],
  finished: [],
};

/** Where a request and its KV are. Only `core/rollout/dispatch.ts` changes it. */
export interface Whereabouts {
  status: RequestStatus;
  /** The worker that runs it, or ran its last chunk; null before the first. */
  workerId: WorkerId | null;
  /** The worker on which its KV is resident, running or parked. */
  residentOn: WorkerId | null;
  /** KV tokens that it takes on `residentOn`: reserved while it runs, held while it is parked. */
  residentTokens: number;
  /** Leading tokens that `workerId` computed in the session's turn before, whether or not their KV still exists. */
  computedTokens: number;
}

export interface RolloutRequest extends Readonly<Whereabouts> {
  readonly spec: RequestSpec;
  readonly group: Group;
  /** Indexes are dense; another request gets it once the group is removed. */
  readonly index: number;
  readonly priority: number;
  readonly isStrict: boolean;
  readonly stalenessMax: number;
  readonly promptTokens: number;
  readonly response: RolloutResponse;
  /** Number of turns of its session before this one. */
  turn: number;
  /** How many requests had ended when it joined (`context/turnover.ts`). */
  endedBefore: number;
  /** The tool that is expected to run after it: the one that it calls, else the last one of its session. */
  tool: string | null;
  /** Deaths of workers that were running it; null: none. */
  attempts: Attempts | null;
}

/** 1,000 groups of 16 are one iteration; a sidecar holds 16 of those at most. */
export const REQUESTS_MAX = 262_144;

interface OpenGroup extends Group {
  readonly requests: RolloutRequest[];
}

/** The buffer without the right to move requests. */
export type Requests = Omit<RequestBuffer, "move" | "whereabouts">;

export class RequestBuffer {
  readonly #groups = new Map<GroupId, OpenGroup>();
  readonly #groupAt: (OpenGroup | null)[] = [];
  readonly #groupHoles: number[] = [];
  readonly #requests = new Map<RequestId, RolloutRequest>();
  readonly #requestAt: (RolloutRequest | null)[] = [];
  readonly #requestHoles: number[] = [];
  #nextId = 0;
  #unfinished = 0;

  /** Adds a group with all of its `size` requests, and closes it. */
  add(spec: GroupSpec): Group {
    assert(spec.size >= 1, "a group has at least one request");
    const group = this.open(spec.groupId, spec.prompt);
    const { sampling, divisible = true } = spec;
    const drawAt = drawKeys(sampling.seed, spec.groupId);
    for (let index = 0; index < spec.size; index += 1) {
      this.join(group, { sampling, draw: drawAt(index), divisible, priority: 0 });
    }
    group.isClosed = true;
    return group;
  }

  /** Adds an empty group, which requests may join until it is closed. Its id must be free. */
  open(groupId: GroupId, prompt: Int32Array): Group {
    assert(!this.#groups.has(groupId), `group ${groupId} already exists`);
    const index = this.#groupHoles.pop() ?? this.#groupAt.length;
    const group: OpenGroup = {
      groupId,
      prompt,
      index,
      requests: [],
      finished: 0,
      endedIn: null,
      isClosed: false,
      promptOn: new Set(),
    };
    this.#groupAt[index] = group;
    this.#groups.set(groupId, group);
    return group;
  }

  join(to: Group, wanted: Wanted): RolloutRequest {
    const group = present(this.#groups.get(to.groupId), "the group is in the buffer");
    assert(group === to && !group.isClosed, "a group is open when a request joins it");
    assert(this.#requests.size < REQUESTS_MAX, `at most ${REQUESTS_MAX} requests`);
    const { sampling, draw, divisible, priority, turn } = wanted;
    const { isStrict = false, stalenessMax = 0 } = wanted;
    const prompt = turn?.prompt ?? group.prompt;
    const lead = prompt.subarray(prompt.length - (turn?.leadTokens ?? 0));
    const id = requestId(this.#nextId);
    this.#nextId += 1;
    const index = this.#requestHoles.pop() ?? this.#requestAt.length;
    const request: RolloutRequest = {
      spec: {
        requestId: id,
        groupId: group.groupId,
        sampleIndex: group.requests.length,
        prompt,
        sampling,
        draw,
        divisible,
        ...(turn && { leadTokens: lead.length, keepsKv: true }),
      },
      group,
      index,
      priority,
      isStrict,
      stalenessMax,
      promptTokens: prompt.length,
      response: new RolloutResponse(sampling.tokensMax, sampling.topLogprobs, lead),
      status: "waiting",
      workerId: null,
      residentOn: null,
      residentTokens: 0,
      computedTokens: 0,
      turn: 0,
      endedBefore: 0,
      tool: wanted.tool ?? null,
      attempts: null,
    };
    group.requests.push(request);
    this.#requestAt[index] = request;
    this.#requests.set(id, request);
    this.#unfinished += 1;
    return request;
  }

  /** Forgets a group all of whose requests are finished. */
  remove(group: Group): void {
    assert(group.finished === group.requests.length, "a removed group has nothing left to do");
    assert(this.#groups.delete(group.groupId), "the group is in the buffer");
    this.#groupAt[group.index] = null;
    this.#groupHoles.push(group.index);
    for (const request of group.requests) {
      this.#requests.delete(request.spec.requestId);
      this.#requestAt[request.index] = null;
      this.#requestHoles.push(request.index);
    }
  }

  get groups(): Iterable<Group> {
    return this.#groups.values();
  }

  get requests(): Iterable<RolloutRequest> {
    return this.#requests.values();
  }

  get unfinished(): number {
    return this.#unfinished;
  }

  group(id: GroupId): Group | null {
    return this.#groups.get(id) ?? null;
  }

  /** null: the request was removed with its group, or never existed. */
  request(id: RequestId): RolloutRequest | null {
    return this.#requests.get(id) ?? null;
  }

  groupAt(index: number): Group {
    return present(this.#groupAt[index], "the group of the index is in the buffer");
  }

  requestAt(index: number): RolloutRequest {
    return present(this.#requestAt[index], "the request of the index is in the buffer");
  }

  /** Changes a request's status: nothing else does. A finished one has freed its KV, or keeps it for the next turn. */
  move(request: RolloutRequest, to: RequestStatus): void {
    const from = request.status;
    assert(NEXT[from].includes(to), "a request goes from status to status as the table says");
    this.whereabouts(request).status = to;
    if (to === "finished") {
      this.#unfinished -= 1;
      request.group.finished += 1;
    }
  }

  /** The writable side of a request. */
  whereabouts(request: RolloutRequest): Whereabouts {
    return request;
  }
}

export function isComplete(group: Group): boolean {
  return group.isClosed && group.finished === group.requests.length;
}

/** Whether the request is a turn of a session after the first. */
export function isLaterTurn({ spec, group }: RolloutRequest): boolean {
  return spec.keepsKv === true && spec.prompt.length > group.prompt.length;
}

/** Whether the request begins a session: it has no KV yet that its next turns would come back to. */
export function isFirstTurn(request: RolloutRequest): boolean {
  const { spec, response } = request;
  return spec.keepsKv === true && response.length === 0 && !isLaterTurn(request);
}

/** Whether the request may have caused the death of a worker: see `Attempts`. */
export function isSuspect(request: RolloutRequest): boolean {
  return request.attempts?.isSuspect === true;
}

/** Prompt + output tokens: what the request's KV holds when nothing is missing. */
export function contextTokens(request: RolloutRequest): number {
  return request.promptTokens + request.response.length;
}
