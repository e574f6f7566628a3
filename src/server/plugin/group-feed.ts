// Where the sidecar's draft service has tokens from beside the engines themselves: the responses of the rollout. So
// an engine drafts from siblings on engines that have no plugin, and from what was made before it asked. It copies
// nothing until somebody asks, and holds no group that the rollout has let go.

import type { GroupId } from "../../base/ids.ts";
import { SAMPLES_MAX } from "../../draft/service/limits.ts";
import type { LogSource } from "../../draft/service/server.ts";
import type { Group, Request } from "../../request/buffer.ts";
import type { Sidecar } from "../sidecar.ts";

export class GroupFeed implements LogSource {
  readonly #groups = new Map<GroupId, Group>();
  /** Their responses began anew: replicas have another beginning of them, and keep it. */
  readonly #restarted = new WeakSet<Request>();

  /** The sidecar must not have taken a request yet. */
  constructor(sidecar: Sidecar) {
    sidecar.observe({
      joined: ({ group }) => this.#groups.set(group.groupId, group),
      restarted: (request) => this.#restarted.add(request),
      groupFinished: (group) => this.#groups.delete(group.groupId),
    });
  }

  lacking(
    groupId: GroupId,
    have: (sampleIndex: number) => number,
    take: (sampleIndex: number, offset: number, tokens: Int32Array) => void,
  ): void {
    for (const request of this.#groups.get(groupId)?.requests ?? []) {
      const { sampleIndex } = request.spec;
      // In ascending order: replicas have no room for the others either.
      if (sampleIndex >= SAMPLES_MAX) return;
      const offset = have(sampleIndex);
      if (offset >= request.response.length || this.#restarted.has(request)) continue;
      take(sampleIndex, offset, request.response.tokens(offset));
    }
  }
}
