// Foretoken's own order: where KV is short, the request with the fewest tokens goes first. It needs no estimate: every
// response gets through its early tokens soon, so the ones that turn out long are found while there is still other work to
// run beside them, whatever their siblings did. (Estimates fail where they matter: on the response that is ten times as
// long as its group's others, which longest-group-first starts last. docs/SIMULATOR.md has the comparison.)
//
// Elsewhere it is first come, first served. Where slots limit what runs, each request that makes way leaves KV empty that
// its successor does not need; and KV that no other worker can load is computed again. Nor does a large request make way:
// of these few fit into a worker, and if all came to the end together, one would run after the other beside empty KV.

import type { ContextManager } from "../context/context.ts";
import { contextTokens, type RolloutRequest } from "../request/buffer.ts";
import { KeyedPolicy } from "./keyed.ts";
import type { Slot } from "./placement.ts";
import { PRIORITY_STRIDE } from "./policy.ts";

/** A prior is at most 2^20 tokens: this part of it is less than a token. */
const TIE = 2 ** -21;
/** A request is large from this part of a worker's KV on. */
const LARGE_PART = 1 / 16;

export class FewestTokensPolicy extends KeyedPolicy {
  #slots: readonly Slot[] = [];
  #largeTokens = Number.POSITIVE_INFINITY;

  constructor(parts: ConstructorParameters<typeof KeyedPolicy>[0] & { context: ContextManager }) {
    // Of equally many tokens, those go first whose prompt had the longest responses in the epoch before. As a larger part of
    // the key that costs more than it brings (docs/DRAFTING.md).
    super(parts, (request) => {
      const { group, priority, response, spec } = request;
      const prior = (parts.context.prior(group) ?? 0) * TIE;
      const isLarge = contextTokens(request) > this.#largeTokens;
      const place = isLarge ? spec.requestId - PRIORITY_STRIDE / 2 : response.length - prior;
      return priority * PRIORITY_STRIDE + place;
    });
  }

  begin(slots: readonly Slot[]): void {
    this.#slots = slots;
    this.#largeTokens = LARGE_PART * Math.max(...slots.map(({ kvTokens }) => kvTokens));
  }

  /** null: none goes ahead of those that came first. */
  override peek(): RolloutRequest | null {
    return isShort(this.#slots) ? super.peek() : null;
  }
}

/** Whether no larger part of the KV is free than of the slots, and KV that leaves comes back. */
function isShort(workers: readonly Slot[]): boolean {
  let spare = 0;
  for (const { sharesKv, kvTokens, kvTokensFree, slots, inFlight } of workers) {
    if (!sharesKv) return false;
    spare += (Math.max(0, kvTokensFree) / kvTokens) * slots - (slots - inFlight);
  }
  return spare <= 0;
}
