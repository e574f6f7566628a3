// The stand-in's engine: it computes nothing. It admits requests by slots and KV blocks, makes a token for each
// running one in every step, keeps a prefix cache of block hashes, and preempts as vLLM does (by recomputation).

import { fold32, hashString } from "../../../src/core/base/hash.ts";
import { EOS, StandInText } from "./tokens.ts";

/** A store that several stand-ins ask, by blocks' hashes (salted), as MooncakeStoreConnector does. */
export interface StandInPool {
  readonly blocks: Set<number>;
  /** `save_decode_cache`: generated tokens' blocks too. */
  readonly savesOutput: boolean;
}

export type StandInFinish = "stop" | "length" | "abort";

export interface Made {
  /** null: none (an abort). */
  readonly token: number | null;
  /** null: more follows. */
  readonly finish: StandInFinish | null;
  /** The stop token that ended it; null for the end of the sequence. */
  readonly stop: number | null;
  /** Prompt tokens that were found in the prefix cache. */
  readonly cached: number;
}

export interface EngineRequest {
  /** The request's id in the server's answers: "generate-tokens-<id>". */
  readonly id: string;
  readonly prompt: readonly number[];
  readonly sample: number;
  readonly tokensMax: number;
  readonly tokensMin: number;
  readonly stopTokenIds: readonly number[];
  readonly ignoreEos: boolean;
  /**
   * Only the length ends the response; before `tokensMin` stop tokens and EOS are not drawn even so. SGLang's
   * `ignore_eos`.
   */
  readonly ignoresStops?: boolean;
  readonly cacheSalt: string;
  /** Lower runs first. */
  readonly priority: number;
  /** Called within a step. */
  readonly made: (made: Made) => void;
}

interface Running extends EngineRequest {
  readonly arrival: number;
  readonly text: StandInText;
  readonly stops: ReadonlySet<number>;
  /** Tokens that are not drawn before `tokensMin`. */
  readonly banned: ReadonlySet<number>;
  /** Blocks' hashes of the text so far: each of all tokens up to its end. */
  readonly blocks: number[];
  hash: number;
  length: number;
  output: number;
  cached: number;
}

export interface EngineOptions {
  readonly slots: number;
  readonly blocks: number;
  readonly blockSize: number;
  readonly contextTokens: number;
  /** Time of a step; 0: as little as it takes. */
  readonly stepMs: number;
}

export interface EngineCounters {
  steps: number;
  promptTokens: number;
  generationTokens: number;
  preemptions: number;
}

export class StandInEngine {
  readonly options: EngineOptions;
  readonly counters: EngineCounters = {
    steps: 0,
    promptTokens: 0,
    generationTokens: 0,
    preemptions: 0,
  };
  /** abort and wait take nothing new; keep stops. */
  pauseMode: "abort" | "wait" | "keep" | null = null;
  readonly #running = new Map<string, Running>();
  #waiting: Running[] = [];
  readonly #cache = new Set<number>();
  #arrivals = 0;
  #isStepping = false;

  readonly #pool: StandInPool | null;
  /** Tokens that came through a connector. */
  externalTokens = 0;
  /** Called when it ends as a real engine would. */
  readonly #ended: () => void;

  constructor(options: EngineOptions, pool: StandInPool | null, ended: () => void) {
    this.options = options;
    this.#pool = pool;
    this.#ended = ended;
  }

  get running(): number {
    return this.#running.size;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  get blocksUsed(): number {
    let used = 0;
    for (const { length } of this.#running.values()) used += this.#blocksOf(length);
    return used;
  }

  add(wanted: EngineRequest): void {
    this.#arrivals += 1;
    const text = new StandInText(wanted.sample);
    text.read(wanted.prompt);
    const stops = new Set(wanted.stopTokenIds);
    if (!wanted.ignoreEos) stops.add(EOS);
    const banned = wanted.ignoresStops === true ? new Set([...stops, EOS]) : stops;
    const request: Running = {
      ...wanted,
      arrival: this.#arrivals,
      text,
      stops: wanted.ignoresStops === true ? new Set() : stops,
      banned,
      blocks: [],
      hash: hashString(wanted.cacheSalt),
      length: 0,
      output: 0,
      cached: 0,
    };
    for (const token of wanted.prompt) this.#grow(request, token);
    this.#waiting.push(request);
    this.#wake();
  }

  /** `silently`: its client is gone, nobody hears of it. */
  abort(id: string, silently: boolean): boolean {
    const request = this.#running.get(id) ?? this.#waiting.find((other) => other.id === id);
    if (request === undefined) return false;
    this.#running.delete(id);
    this.#waiting = this.#waiting.filter((other) => other !== request);
    if (!silently)
      request.made({ token: null, finish: "abort", stop: null, cached: request.cached });
    return true;
  }

  abortAll(): number {
    const ids = [...this.#running.keys(), ...this.#waiting.map((request) => request.id)];
    for (const id of ids) this.abort(id, false);
    return ids.length;
  }

  pause(mode: "abort" | "wait" | "keep"): void {
    this.pauseMode = mode;
    if (mode === "abort") this.abortAll();
  }

  resume(): void {
    this.pauseMode = null;
    this.#wake();
  }

  clearCache(): void {
    this.#cache.clear();
  }

  #wake(): void {
    if (this.#isStepping) return;
    this.#isStepping = true;
    const { stepMs } = this.options;
    const later = stepMs === 0 ? setImmediate : (step: () => void) => setTimeout(step, stepMs);
    later(() => {
      this.#isStepping = false;
      try {
        this.#step();
      } catch {
        this.#running.clear();
        this.#waiting = [];
        this.#ended();
        return;
      }
      const canWork = this.#running.size > 0 || this.#waiting.length > 0;
      if (canWork && this.pauseMode === null) this.#wake();
      else if (this.#running.size > 0 && this.pauseMode === "wait") this.#wake();
    });
  }

  #step(): void {
    if (this.pauseMode === "keep") return;
    if (this.pauseMode === null) this.#admit();
    this.#makeRoom();
    if (this.#running.size > 0) this.counters.steps += 1;
    for (const request of [...this.#running.values()]) this.#decode(request);
  }

  #admit(): void {
    this.#waiting.sort((a, b) => a.priority - b.priority || a.arrival - b.arrival);
    while (this.#running.size < this.options.slots) {
      const next = this.#waiting[0];
      if (next === undefined) return;
      if (this.blocksUsed + this.#blocksOf(next.length + 1) > this.options.blocks) return;
      this.#waiting.shift();
      let found = 0;
      // The last token is always computed: its logits are wanted.
      const whole = Math.floor((next.length - 1) / this.options.blockSize);
      while (found < whole && this.#cache.has(next.blocks[found] ?? 0)) found += 1;
      next.cached = found * this.options.blockSize;
      while (found < whole && this.#pool?.blocks.has(next.blocks[found] ?? 0)) {
        found += 1;
        next.cached += this.options.blockSize;
        this.externalTokens += this.options.blockSize;
      }
      for (const block of next.blocks) this.#pool?.blocks.add(block);
      this.counters.promptTokens += next.length;
      for (const block of next.blocks) this.#cache.add(block);
      this.#running.set(next.id, next);
    }
  }

  #makeRoom(): void {
    const needed = () => {
      let blocks = 0;
      for (const { length } of this.#running.values()) blocks += this.#blocksOf(length + 1);
      return blocks;
    };
    while (needed() > this.options.blocks && this.#running.size > 1) {
      const victim = [...this.#running.values()].reduce((a, b) =>
        a.priority > b.priority || (a.priority === b.priority && a.arrival > b.arrival) ? a : b,
      );
      this.#running.delete(victim.id);
      this.#waiting.unshift(victim);
      this.counters.preemptions += 1;
    }
  }

  #decode(request: Running): void {
    const token = request.text.draw(request.output < request.tokensMin ? request.banned : null);
    this.#grow(request, token);
    request.output += 1;
    this.counters.generationTokens += 1;
    const isStop = request.stops.has(token);
    const isLong =
      request.output >= request.tokensMax || request.length >= this.options.contextTokens;
    const finish = isStop ? "stop" : isLong ? "length" : null;
    if (finish !== null) this.#running.delete(request.id);
    for (const block of request.blocks.slice(-1)) {
      this.#cache.add(block);
      if (this.#pool?.savesOutput) this.#pool.blocks.add(block);
    }
    // An end of sequence has no stop reason; a stop token is its own.
    const stop = isStop && request.stopTokenIds.includes(token) ? token : null;
    request.made({ token, finish, stop, cached: request.cached });
  }

  #grow(request: Running, token: number): void {
    request.hash = fold32(request.hash, token);
    request.length += 1;
    if (request.length % this.options.blockSize === 0) request.blocks.push(request.hash);
  }

  #blocksOf(tokens: number): number {
    return Math.ceil(tokens / this.options.blockSize);
  }
}
