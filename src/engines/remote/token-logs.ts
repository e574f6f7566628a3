// Outputs that a host remembers, so that a run sends only what the host lacks. Both sides keep one and
// do the same to it in the same order, so the sidecar knows what the host has. Bounded by the sidecar,
// which says what is forgotten.

import type { RequestId } from "../../core/base/ids.ts";

interface Log {
  tokens: Int32Array;
  length: number;
}

const TOKENS_MIN = 64;
/** So few are written faster one by one than by a call. */
const FEW = 16;

export class TokenLogs {
  /** The one begun longest ago first. */
  readonly #logs = new Map<RequestId, Log>();
  #tokens = 0;

  get size(): number {
    return this.#logs.size;
  }

  /** Tokens kept, over all requests. */
  get tokens(): number {
    return this.#tokens;
  }

  length(id: RequestId): number {
    return this.#logs.get(id)?.length ?? 0;
  }

  /** How many of the first tokens of `output` are in the log. */
  commonPrefix(id: RequestId, output: Int32Array): number {
    const log = this.#logs.get(id);
    if (log === undefined) return 0;
    const end = Math.min(log.length, output.length);
    let at = 0;
    while (at < end && log.tokens[at] === output[at]) at += 1;
    return at;
  }

  /** A run begins: the output is the stored one up to `from`, then `rest`. false: less is stored. */
  begin(id: RequestId, from: number, rest: Int32Array): boolean {
    const log = this.#logs.get(id) ?? { tokens: new Int32Array(TOKENS_MIN), length: 0 };
    if (from > log.length) return false;
    this.#tokens += from - log.length;
    log.length = from;
    this.#logs.delete(id);
    this.#logs.set(id, log);
    this.#write(log, from, rest);
    return true;
  }

  /** Tokens of the run, by offset; after a hole they are not kept. */
  append(id: RequestId, offset: number, tokens: Int32Array): void {
    const log = this.#logs.get(id);
    if (log === undefined || offset > log.length) return;
    this.#write(log, offset, tokens);
  }

  /** A copy of the whole output. */
  output(id: RequestId): Int32Array {
    const log = this.#logs.get(id);
    return log === undefined ? new Int32Array(0) : log.tokens.slice(0, log.length);
  }

  forget(id: RequestId): void {
    this.#tokens -= this.length(id);
    this.#logs.delete(id);
  }

  /** In the order in which their last runs began. */
  ids(): Iterable<RequestId> {
    return this.#logs.keys();
  }

  #write(log: Log, offset: number, tokens: Int32Array): void {
    const end = offset + tokens.length;
    if (end > log.tokens.length) {
      const grown = new Int32Array(Math.max(end, 2 * log.tokens.length));
      grown.set(log.tokens.subarray(0, log.length));
      log.tokens = grown;
    }
    if (tokens.length > FEW) log.tokens.set(tokens, offset);
    else for (let i = 0; i < tokens.length; i += 1) log.tokens[offset + i] = tokens[i] ?? 0;
    if (end <= log.length) return;
    this.#tokens += end - log.length;
    log.length = end;
  }
}
