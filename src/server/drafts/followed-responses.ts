// The responses of the rollout, as the sidecar's draft service reads them: without a copy, on whatever worker they run. So an
// engine drafts from siblings on engines without the plugin too, and from what was generated before it registered.

import type { GroupId } from "../../core/base/ids.ts";
import { SAMPLES_MAX } from "../../core/draft/service/limits.ts";
import type { ResponseSource } from "../../core/draft/service/server-groups.ts";
import type { Rollout } from "../../core/rollout/rollout.ts";
import type { PromptHistory } from "../history/prompt-history.ts";

/**
 * A response that restarted is another sample: engines have its first attempt under its own number. `history` null: there
 * are no responses of earlier epochs.
 */
export function followedResponses(rollout: Rollout, history: PromptHistory | null): ResponseSource {
  const past = (groupId: GroupId) => {
    const group = rollout.group(groupId);
    return group === null ? [] : (history?.past(group) ?? []);
  };
  return {
    ...(history && { past }),
    each(groupId, take) {
      for (const request of rollout.group(groupId)?.requests ?? []) {
        const { sampleIndex = SAMPLES_MAX } = rollout.drafts.source(request) ?? {};
        if (sampleIndex < SAMPLES_MAX) take(sampleIndex, request.response.column);
      }
    },
    find(groupId, sampleIndex) {
      const source = { groupId, sampleIndex };
      return rollout.drafts.ownerOf(source, (id) => rollout.group(id))?.response.column ?? null;
    },
  };
}
