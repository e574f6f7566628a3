// Which draft server keeps a group: rendezvous (highest random weight) hashing, so that every client
// agrees without talking, and a server more or less moves only its own share of the groups
// (Thaler and Ravishankar, IEEE/ACM ToN 6(1), 1998).

import { assert } from "../../base/assert.ts";
import { hashString } from "../../base/hash.ts";
import type { GroupId } from "../../base/ids.ts";

/** Index of the server; `names` is not empty and names each server alike in every client, in any order. */
export function shardOf(groupId: GroupId, names: readonly string[]): number {
  assert(names.length > 0, "a group needs a draft server");
  let best = 0;
  let bestWeight = -1;
  for (let i = 0; i < names.length; i += 1) {
    const name = names[i] ?? "";
    const weight = hashString(groupId, hashString(name));
    // Ties break on the name, so that the order of the list decides nothing.
    const isBetter = weight > bestWeight || (weight === bestWeight && name < (names[best] ?? ""));
    if (!isBetter) continue;
    best = i;
    bestWeight = weight;
  }
  return best;
}
