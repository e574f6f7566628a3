// A file's groups, as often as they are wanted. A replay at a given number of drafted tokens reads them
// several times: a file that fits is parsed once and kept, a larger one is read again each time.

import type { TraceGroup } from "./trace.ts";

/** 64 M tokens take 256 MiB. */
const KEPT_TOKENS_MAX = 64 * 1024 * 1024;

export interface SourceOptions {
  /** Reads the file from the start. */
  readonly open: () => AsyncIterable<TraceGroup>;
  /** Only the first groups; null: all. */
  readonly groupsMax: number | null;
  /** Most tokens kept in memory between readings. */
  readonly keptTokensMax?: number;
}

export class TraceSource {
  readonly #options: SourceOptions;
  #kept: readonly TraceGroup[] | null = null;

  constructor(options: SourceOptions) {
    this.#options = options;
  }

  async *groups(): AsyncGenerator<TraceGroup> {
    if (this.#kept !== null) {
      yield* this.#kept;
      return;
    }
    const { open, groupsMax, keptTokensMax = KEPT_TOKENS_MAX } = this.#options;
    let kept: TraceGroup[] | null = [];
    let tokens = 0;
    let count = 0;
    for await (const group of open()) {
      if (groupsMax !== null && count === groupsMax) break;
      count += 1;
      tokens += tokensIn(group);
      if (tokens > keptTokensMax) kept = null;
      kept?.push(group);
      yield group;
    }
    this.#kept = kept;
  }

  /** Every `stride`-th group, the first one among them. */
  async *sample(stride: number): AsyncGenerator<TraceGroup> {
    let number = 0;
    for await (const group of this.groups()) {
      if (number % stride === 0) yield group;
      number += 1;
    }
  }
}

function tokensIn(group: TraceGroup): number {
  let tokens = group.prompt.length;
  for (const response of group.responses) tokens += response.length;
  return tokens;
}
