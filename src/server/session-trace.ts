// What sessions did, as lines of the format that tpu-inference's benchmark of agents reads: lengths and times by
// trajectory, block hashes as in Mooncake's traces, and no text. It keeps the newest.

import { fold32 } from "../core/base/hash.ts";
import type { RolloutRequest } from "../core/request/buffer.ts";

/** One session: tokens of its first prompt, of each output and of what came before the next; seconds between them. */
export interface TraceLine {
  readonly group: string;
  readonly stream: number;
  readonly prompt_len: number;
  readonly out_lens: number[];
  readonly obs_lens: number[];
  readonly tool_times: number[];
  /** Numbers of the 512-token blocks of its whole text. Equal numbers mean equal tokens up to there. */
  hash_ids: readonly number[];
}

/** Block size of Mooncake's traces. */
const BLOCK_TOKENS = 512;
/** Limit of numbered blocks; the oldest are dropped first, and get a new number if they come again. */
const BLOCKS_MAX = 262_144;

/** Limit of lines: the requests of an iteration of 1,000 groups of 16. */
const LINES_MAX = 16_384;

export class SessionTrace {
  readonly #lines = new Set<TraceLine>();
  /** Number of each block, by the hash of all tokens up to its end. */
  readonly #blocks = new Map<number, number>();
  #blockCount = 0;

  begun({ group, spec }: RolloutRequest): TraceLine {
    const { groupId, sampleIndex: stream } = spec;
    const lists = { out_lens: [], obs_lens: [], tool_times: [], hash_ids: [] };
    const line = { group: groupId, stream, prompt_len: group.prompt.length, ...lists };
    this.#lines.add(line);
    for (const oldest of this.#lines) {
      if (this.#lines.size <= LINES_MAX) break;
      this.#lines.delete(oldest);
    }
    return line;
  }

  finished(line: TraceLine, { spec, response }: RolloutRequest): void {
    line.out_lens.push(response.length);
    const ids: number[] = [];
    let high = 1;
    let low = 2;
    let filled = 0;
    const fill = (): void => {
      ids.push(this.#numberOf((high & 0x1f_ffff) * 2 ** 32 + low));
      filled = 0;
    };
    for (const tokens of [spec.prompt, response.tokens()]) {
      for (const token of tokens) {
        high = fold32(high, token);
        low = fold32(low, token);
        filled += 1;
        if (filled === BLOCK_TOKENS) fill();
      }
    }
    if (filled > 0) fill();
    line.hash_ids = ids;
  }

  #numberOf(hash: number): number {
    const number = this.#blocks.get(hash) ?? this.#blockCount++;
    this.#blocks.delete(hash);
    this.#blocks.set(hash, number);
    const [oldest] = this.#blocks.keys();
    if (this.#blocks.size > BLOCKS_MAX && oldest !== undefined) this.#blocks.delete(oldest);
    return number;
  }

  /** Lines of sessions that have a finished turn. `groups`: of these groups alone; null: of all. */
  lines(groups: ReadonlySet<string> | null): TraceLine[] {
    return [...this.#lines].filter(
      ({ group, out_lens: outs }) => outs.length > 0 && (groups === null || groups.has(group)),
    );
  }
}
