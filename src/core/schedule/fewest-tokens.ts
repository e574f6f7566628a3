// Foretoken's own order: the request with the fewest tokens goes first. It needs no estimate: every response gets
// through its early tokens soon, so the ones that turn out long are found while there is still other work to run
// beside them, whatever their siblings did. (Estimates fail where they matter: on the response that is ten times as
// long as its group's others, which longest-group-first starts last. docs/SIMULATOR.md has the comparison.)

import type { Group, RolloutRequest } from "../request/buffer.ts";
import { PRIORITY_STRIDE } from "./policy.ts";

/** A prior is at most 2^20 tokens: this part of it is less than a token. */
const TIE = 2 ** -21;

/**
 * Among requests with equally many tokens, those go first whose prompt had the longest responses in the epoch before:
 * `priorOf`, null where that is not known. As a larger part of the key it costs more than it brings
 * (docs/experiments/history.md).
 */
export function byFewestTokens(priorOf: (group: Group) => number | null) {
  return (request: RolloutRequest): number =>
    request.priority * PRIORITY_STRIDE +
    request.response.length -
    (priorOf(request.group) ?? 0) * TIE;
}
