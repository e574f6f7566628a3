// How many tokens a chunk has where nobody has set it: a small part of the KV, so that what runs is balanced and ordered
// anew in time, but so many that the chunk's end costs little of it. It owns no clock: who runs chunks tells the times.
// A cost is counted in tokens that the request would have made meanwhile: other load on the machine delays both alike.

import { quantileOf } from "../base/quantile.ts";
import type { RolloutRequest } from "../request/buffer.ts";

const TOKENS_MIN = 64;
/** Chunks of 512 end a simulated iteration at most 3 % sooner, and move four times the KV (docs/SIMULATOR.md). */
const TOKENS_MAX = 2048;
const KV_PART = 1 / 256;
/** A chunk is this many times longer than what going on costs. */
const COST_MULTIPLE = 32;
/** Chunks whose costs are known, at most; and at least, before they count. */
const COSTS_KEPT = 32;
const COSTS_MIN = 8;

/** A chunk that runs and is not its response's first. */
interface Resumed {
  readonly startMs: number;
  readonly offset: number;
  firstMs: number;
  /** Tokens that came first, all at once; 0: none yet. */
  firstTokens: number;
}

interface ChunkWorkers {
  readonly kvTokens: number;
  readonly blockTokens: number;
  /** false: KV that has made way is gone. Default: true. */
  readonly sharesKv?: boolean;
}

export class ChunkLength {
  readonly #fixed: number | null;
  readonly #resumed = new WeakMap<RolloutRequest, Resumed>();
  /** Costs of the last chunks, in tokens; a ring. */
  readonly #costs: number[] = [];
  #next = 0;
  #costTokens = 0;

  /** `fixed`: length of all chunks. null: lengths are chosen. */
  constructor(fixed: number | null) {
    this.#fixed = fixed;
  }

  get isFixed(): boolean {
    return this.#fixed !== null;
  }

  /** Tokens of the next chunk of a request with `context` tokens, on workers with so much KV in blocks of that size. */
  tokens(context: number, worker: ChunkWorkers): number {
    if (this.#fixed !== null) return this.#fixed;
    const cost = Math.max(worker.kvTokens * KV_PART, this.#costTokens * COST_MULTIPLE);
    // Without a pool what others take the room of is computed again: no more of it than the chunk makes.
    const wanted = worker.sharesKv === false ? Math.max(cost, context) : cost;
    const tokens = Math.floor(Math.min(TOKENS_MAX, Math.max(TOKENS_MIN, wanted)));
    // The last token has no KV before the request goes on. What is in a block that is not full is computed again then.
    const beyond = (context - 1 + tokens) % worker.blockTokens;
    return beyond < tokens ? tokens - beyond : tokens;
  }

  /** A chunk of the request begins. */
  began(request: RolloutRequest, nowMs: number): void {
    const offset = request.response.length;
    if (this.#fixed !== null || offset === 0) return;
    this.#resumed.set(request, { startMs: nowMs, offset, firstMs: 0, firstTokens: 0 });
  }

  /** The first tokens of the chunk have been appended to the response. */
  continued(request: RolloutRequest, nowMs: number): void {
    const chunk = this.#resumed.get(request);
    if (chunk === undefined || chunk.firstTokens > 0) return;
    chunk.firstMs = nowMs;
    chunk.firstTokens = request.response.length - chunk.offset;
  }

  /** The chunk is over. */
  ended(request: RolloutRequest, nowMs: number): void {
    const chunk = this.#resumed.get(request);
    if (chunk === undefined) return;
    this.#resumed.delete(request);
    const { startMs, firstMs, firstTokens, offset } = chunk;
    const tokens = request.response.length - offset - firstTokens;
    if (firstTokens === 0 || tokens === 0 || nowMs <= firstMs) return;
    const tokenMs = (nowMs - firstMs) / tokens;
    this.#costs[this.#next] = Math.max(0, (firstMs - startMs) / tokenMs - firstTokens);
    this.#next = (this.#next + 1) % COSTS_KEPT;
    if (this.#costs.length >= COSTS_MIN) this.#costTokens = quantileOf(this.#costs, 1 / 2) ?? 0;
  }
}
