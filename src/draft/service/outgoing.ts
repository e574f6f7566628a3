// What a draft client puts into its next frames: tokens not yet sent, and what it has of each group.
// Both fit the frame they are for; the rest waits.

import type { GroupId } from "../../base/ids.ts";
import type { ClientGroup, ClientSample } from "./client-groups.ts";
import {
  COUNT_BYTES,
  DELTA_OVERHEAD_BYTES,
  FRAME_OVERHEAD_BYTES,
  GROUP_OVERHEAD_BYTES,
  idBytes,
  TOKEN_BYTES,
} from "./limits.ts";
import type { CacheState, GroupDelta, SampleDelta } from "./message.ts";

export interface Unsent {
  readonly groups: readonly GroupDelta[];
  /** The samples taken from, and what `sent` of each was before. */
  readonly taken: readonly (readonly [ClientSample, number])[];
  readonly tokens: number;
}

/** As much as fits in a frame; it counts as sent. Samples with nothing to send leave `dirty`. */
export function takeUnsent(
  dirty: Set<ClientSample>,
  options: { frameBytesMax: number; nowMs: number },
): Unsent {
  const byGroup = new Map<GroupId, SampleDelta[]>();
  const taken: [ClientSample, number][] = [];
  let room = options.frameBytesMax - FRAME_OVERHEAD_BYTES;
  let tokens = 0;
  for (const sample of dirty) {
    const { group, sampleIndex, log, sent } = sample;
    // A group that is being registered names what it has to send when it is.
    if (log.length <= sent || group.state !== "ready") {
      dirty.delete(sample);
      continue;
    }
    if (sample.sendAtMs > options.nowMs) continue;
    const known = byGroup.get(group.groupId);
    room -= DELTA_OVERHEAD_BYTES;
    if (known === undefined) room -= idBytes(group.groupId) + GROUP_OVERHEAD_BYTES;
    const count = Math.min(log.length - sent, Math.floor(room / TOKEN_BYTES));
    if (count <= 0) break;
    const deltas = known ?? [];
    if (known === undefined) byGroup.set(group.groupId, deltas);
    deltas.push({ sampleIndex, offset: sent, tokens: log.view(sent, sent + count) });
    taken.push([sample, sent]);
    sample.sent = sent + count;
    room -= count * TOKEN_BYTES;
    tokens += count;
  }
  const groups = [...byGroup].map(([groupId, deltas]) => ({ groupId, deltas }));
  return { groups, taken, tokens };
}

/** What is here of each group, beginning with the group at `turn`, as many as fit in a frame. */
export function cacheStates(
  ready: readonly ClientGroup[],
  turn: number,
  frameBytesMax: number,
): CacheState[] {
  const states: CacheState[] = [];
  let room = frameBytesMax - FRAME_OVERHEAD_BYTES;
  for (let i = 0; i < ready.length; i += 1) {
    const group = ready[(turn + i) % ready.length];
    if (group === undefined) break;
    const { groupId, samples } = group;
    room -= idBytes(groupId) + GROUP_OVERHEAD_BYTES + samples.length * COUNT_BYTES;
    if (room < 0) break;
    const have: number[] = [];
    for (const sample of samples) {
      have.push(sample?.log.length ?? 0);
      if (sample !== null) sample.sentAtFetch = sample.sent;
    }
    states.push({ groupId, have });
  }
  return states;
}
