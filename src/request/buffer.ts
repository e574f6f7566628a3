// The request buffer: every group and request of one iteration, and where each request stands.
// It owns the responses. It decides nothing.

import { assert, present } from "../base/assert.ts";
import { type GroupId, type RequestId, requestId, type WorkerId } from "../base/ids.ts";
import type { RequestSpec, SamplingParams } from "./request.ts";
import { Response } from "./response.ts";

/** One prompt and how many responses to it are wanted. */
export interface GroupSpec {
  readonly groupId: GroupId;
  readonly prompt: Int32Array;
  readonly size: number;
  readonly sampling: SamplingParams;
}

export interface Group {
  readonly spec: GroupSpec;
  /** Position in the iteration; indexes the group heaps. */
  readonly index: number;
  readonly requests: readonly Request[];
  finished: number;
}

/**
 * waiting: in the buffer, to be scheduled. moving: scheduled, its KV is on the way.
 * running: on `workerId`. finished: complete.
 */
export type RequestStatus = "waiting" | "moving" | "running" | "finished";

export interface Request {
  readonly spec: RequestSpec;
  readonly group: Group;
  readonly response: Response;
  status: RequestStatus;
  /** The worker that runs it, or ran its last chunk; null before the first. */
  workerId: WorkerId | null;
  /** The worker on which its KV is resident, running or parked. */
  residentOn: WorkerId | null;
  /** KV tokens that its residence counts for: reserved while it runs, held while it is parked. */
  residentTokens: number;
}

/** 1,000 groups of 16 are one iteration; a sidecar holds 16 of those at most. */
export const REQUESTS_MAX = 262_144;

export class RequestBuffer {
  readonly groups: readonly Group[];
  readonly requests: readonly Request[];
  #finished = 0;

  constructor(specs: readonly GroupSpec[]) {
    const groups: Group[] = [];
    const requests: Request[] = [];
    for (const spec of specs) {
      assert(spec.size >= 1, "a group has at least one request");
      assert(requests.length + spec.size <= REQUESTS_MAX, `at most ${REQUESTS_MAX} requests`);
      const members: Request[] = [];
      const group: Group = { spec, index: groups.length, requests: members, finished: 0 };
      for (let sampleIndex = 0; sampleIndex < spec.size; sampleIndex += 1) {
        const request: Request = {
          spec: {
            requestId: requestId(requests.length),
            groupId: spec.groupId,
            sampleIndex,
            prompt: spec.prompt,
            sampling: spec.sampling,
          },
          group,
          response: new Response(spec.sampling.tokensMax),
          status: "waiting",
          workerId: null,
          residentOn: null,
          residentTokens: 0,
        };
        members.push(request);
        requests.push(request);
      }
      groups.push(group);
    }
    this.groups = groups;
    this.requests = requests;
  }

  get finishedCount(): number {
    return this.#finished;
  }

  request(id: RequestId): Request {
    return present(this.requests[id], `request ${id} is not in the buffer`);
  }

  /** Marks the request finished; returns true when its group is complete. */
  finish(request: Request): boolean {
    assert(request.status !== "finished", "a request finishes once");
    request.status = "finished";
    request.residentOn = null;
    request.residentTokens = 0;
    this.#finished += 1;
    request.group.finished += 1;
    return request.group.finished === request.group.requests.length;
  }
}

/** Prompt + output tokens: what the request's KV holds when nothing is missing. */
export function contextTokens(request: Request): number {
  return request.spec.prompt.length + request.response.length;
}
