// A server as vLLM is, without a model: slots, blocks of KV that stay in a prefix cache until others need them, the one
// used longest ago first, and preemption of the newest request. A step takes as long as on the host that it models.

import { fold32 } from "../../../src/core/base/hash.ts";
import { LOAD_COST } from "../../../src/core/schedule/placement.ts";
import { type Host, stepMs } from "./hosts.ts";

export interface ServerSizes {
  readonly slots: number;
  readonly kvBlocks: number;
  readonly blockTokens: number;
  readonly host: Host;
}

/** One request to a server. It has its tokens so far, and `next` gives what it says; null: it has ended. */
export interface ModelledRequest {
  readonly tokens: number[];
  readonly next: (tokens: readonly number[]) => number | null;
  readonly said: (token: number) => void;
  readonly ended: () => void;
}

interface Running extends ModelledRequest {
  /** Hashes of the full blocks that it holds; one more block is not full. */
  held: number[];
}

export class ModelledServer {
  readonly sizes: ServerSizes;
  promptTokens = 0;
  computedTokens = 0;
  preemptions = 0;
  /** Of each step. */
  readonly rows: number[] = [];
  outputTokens = 0;
  #waiting: Running[] = [];
  readonly #running: Running[] = [];
  /** How many requests hold each block; 0: it is cached, and the first of these goes first. */
  readonly #blocks = new Map<number, number>();
  #free = 0;

  /** Full blocks that servers with a shared pool have computed; null: they have none. */
  readonly #pool: Set<number> | null;

  constructor(sizes: ServerSizes, pool: Set<number> | null) {
    this.sizes = sizes;
    this.#pool = pool;
    this.#free = sizes.kvBlocks;
  }

  get inFlight(): number {
    return this.#waiting.length + this.#running.length;
  }

  add(request: ModelledRequest): ModelledRequest {
    const running = { ...request, held: [] };
    this.#waiting.push(running);
    this.promptTokens += request.tokens.length;
    return running;
  }

  drop(request: ModelledRequest): void {
    this.#waiting = this.#waiting.filter((one) => one !== request);
    const at = (this.#running as ModelledRequest[]).indexOf(request);
    for (const one of at < 0 ? [] : this.#running.splice(at, 1)) this.#release(one);
  }

  /** One step; returns its time, and what tells of its tokens once that has passed. 0: nothing runs. */
  step(): { ms: number; tell: () => void } {
    const { blockTokens, host } = this.sizes;
    let rows = 0;
    for (const request of [...this.#running]) {
      if (!this.#running.includes(request)) continue;
      if (request.tokens.length % blockTokens === 0) this.#grow(request);
      rows += 1;
    }
    rows += this.#admit();
    const made = this.#running.map((request) => ({ request, token: request.next(request.tokens) }));
    const tell = (): void => {
      for (const { request, token } of made) {
        // It may have been dropped during the step.
        const at = this.#running.indexOf(request);
        if (at < 0) continue;
        if (token !== null) {
          request.tokens.push(token);
          this.outputTokens += 1;
          request.said(token);
        }
        if (token !== null && request.next(request.tokens) !== null) continue;
        this.#running.splice(at, 1);
        this.#release(request);
        request.ended();
      }
    };
    if (rows > 0) this.rows.push(rows);
    return { ms: rows === 0 ? 0 : stepMs(host, rows), tell };
  }

  /** Rows that the admitted requests compute. */
  #admit(): number {
    const { slots, blockTokens } = this.sizes;
    let rows = 0;
    for (;;) {
      const [request] = this.#waiting;
      if (request === undefined || this.#running.length >= slots) return rows;
      const hashes = hashesOf(request.tokens, blockTokens);
      const known = (hash: number): boolean => this.#blocks.has(hash) || !!this.#pool?.has(hash);
      const misses = hashes.findIndex((hash) => !known(hash));
      // The last token is always computed.
      const found = Math.min(
        misses < 0 ? hashes.length : misses,
        Math.floor((request.tokens.length - 1) / blockTokens),
      );
      const loaded = hashes.slice(0, found).filter((hash) => !this.#blocks.has(hash)).length;
      const cached = [...this.#blocks.values()].filter((count) => count === 0).length;
      const kept = hashes.slice(0, found).filter((hash) => this.#blocks.get(hash) === 0).length;
      if (this.#free + cached - kept < hashes.length - found + loaded + 1) return rows;
      this.#waiting.shift();
      // Cached blocks are held before new ones are taken: taking one may evict what is not held.
      for (const hash of hashes.slice(0, found)) if (this.#blocks.has(hash)) this.#hold(hash);
      for (const hash of hashes.slice(0, found)) {
        if (this.#blocks.has(hash)) continue;
        this.#take();
        this.#hold(hash);
      }
      for (const hash of hashes.slice(found)) {
        if (!this.#blocks.has(hash)) this.#take();
        this.#hold(hash);
      }
      this.#take();
      request.held = hashes;
      this.#running.push(request);
      this.computedTokens += request.tokens.length - found * blockTokens;
      rows += request.tokens.length - found * blockTokens + loaded * blockTokens * LOAD_COST;
    }
  }

  /** Block for the next token of a request whose last one is full. */
  #grow(request: Running): void {
    const hash = hashesOf(request.tokens, this.sizes.blockTokens).at(-1) ?? 0;
    request.held.push(hash);
    // A block with the same tokens is shared.
    if (this.#blocks.has(hash)) this.#free += 1;
    this.#hold(hash);
    while (!this.#take()) {
      const newest = this.#running.pop() ?? request;
      // The request itself is preempted: its next block was not taken.
      if (newest === request) this.#free -= 1;
      this.#release(newest);
      this.#waiting.unshift(newest);
      this.preemptions += 1;
      if (newest === request) return;
    }
  }

  #hold(hash: number): void {
    this.#pool?.add(hash);
    const count = this.#blocks.get(hash) ?? 0;
    this.#blocks.delete(hash);
    this.#blocks.set(hash, count + 1);
  }

  /** A free block, or that of the cached ones which was used longest ago. */
  #take(): boolean {
    if (this.#free === 0) {
      const oldest = this.#blocks.entries().find(([, count]) => count === 0);
      if (oldest === undefined) return false;
      this.#blocks.delete(oldest[0]);
      this.#free += 1;
    }
    this.#free -= 1;
    return true;
  }

  /** Blocks stay cached, the last one to go first. */
  #release(request: Running): void {
    this.#free += 1;
    for (const hash of request.held.toReversed()) {
      const count = (this.#blocks.get(hash) ?? 1) - 1;
      this.#blocks.delete(hash);
      this.#blocks.set(hash, count);
    }
    request.held = [];
  }
}

function hashesOf(tokens: readonly number[], blockTokens: number): number[] {
  const hashes: number[] = [];
  let hash = 0;
  for (const [i, token] of tokens.entries()) {
    hash = fold32(hash, token);
    if ((i + 1) % blockTokens === 0) hashes.push(hash);
  }
  return hashes;
}
