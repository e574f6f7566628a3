// Where the sidecar's draft service has tokens from beside the engines themselves: the responses of the rollout. So
// an engine drafts from siblings on engines that have no plugin, and from what was made before it asked. It copies
// nothing until somebody asks, and holds no group that the rollout has let go.

import type { GroupId } from "../../base/ids.ts";
import { SAMPLES_MAX } from "../../draft/service/limits.ts";
import type { LogSource } from "../../draft/service/server.ts";
import type { Group } from "../../request/buffer.ts";
import type { Sidecar } from "../sidecar.ts";

export class GroupFeed implements LogSource {
  readonly #groups = new Map<GroupId, Group>();
  readonly #sidecar: Sidecar;

  /** The sidecar must not have taken a request yet. */
  constructor(sidecar: Sidecar) {
    this.#sidecar = sidecar;
    sidecar.observe({
      joined: ({ group }) => this.#groups.set(group.groupId, group),
      groupFinished: (group) => this.#groups.delete(group.groupId),
    });
  }

  lacking(
    groupId: GroupId,
    have: (sampleIndex: number) => number,
    take: (sampleIndex: number, offset: number, tokens: Int32Array) => void,
  ): void {
    for (const request of this.#groups.get(groupId)?.requests ?? []) {
      if (request.response.length === 0) continue;
      // Not its own number after it began anew: engines know another beginning under that.
      const { sampleIndex = SAMPLES_MAX } = this.#sidecar.rollout.draftSource(request) ?? {};
      if (sampleIndex >= SAMPLES_MAX) continue;
      const offset = have(sampleIndex);
      if (offset >= request.response.length) continue;
      take(sampleIndex, offset, request.response.tokens(offset));
    }
  }
}
