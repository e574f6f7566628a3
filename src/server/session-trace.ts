// What sessions did, as lines of the format that tpu-inference's benchmark of agents reads: lengths and times by
// trajectory, and no text. It keeps the newest.

import type { Request } from "../core/request/buffer.ts";

/** One session: tokens of its first prompt, of each output and of what came before the next; seconds between them. */
export interface TraceLine {
  readonly group: string;
  /** Number among the group's sessions. */
  readonly stream: number;
  readonly prompt_len: number;
  readonly out_lens: number[];
  readonly obs_lens: number[];
  readonly tool_times: number[];
}

/** As many as the requests of an iteration of 1,000 groups of 16. */
const LINES_MAX = 16_384;

export class SessionTrace {
  readonly #lines = new Set<TraceLine>();

  begun({ group, spec }: Request): TraceLine {
    const { groupId, sampleIndex: stream } = spec;
    const lists = { out_lens: [], obs_lens: [], tool_times: [] };
    const line = { group: groupId, stream, prompt_len: group.prompt.length, ...lists };
    this.#lines.add(line);
    for (const oldest of this.#lines) {
      if (this.#lines.size <= LINES_MAX) break;
      this.#lines.delete(oldest);
    }
    return line;
  }

  /** Lines of sessions that have a finished turn. `groups`: of these groups alone; null: of all. */
  lines(groups: ReadonlySet<string> | null): TraceLine[] {
    return [...this.#lines].filter(
      ({ group, out_lens: outs }) => outs.length > 0 && (groups === null || groups.has(group)),
    );
  }
}
