// An answer that comes in one piece, as the events of a stream that it stands for, and what a stream does not bring:
// logprobs of the prompt, which are cut out and not read.

import type { PromptReport } from "../../core/request/response.ts";
import type { ChunkRun } from "./chunk-run.ts";
import { type Cut, cutField } from "./cut-field.ts";
import type { StreamEvent } from "./event.ts";

/** Collects an answer's bytes. */
export class WholeReader {
  readonly #bytesMax: number;
  readonly #parts: Buffer[] = [];
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** false: it exceeds the limit. */
  push(bytes: Buffer): boolean {
    this.#bytes += bytes.length;
    if (this.#bytes > this.#bytesMax) return false;
    // The socket's buffer is used again.
    this.#parts.push(Buffer.from(bytes));
    return true;
  }

  all(): Buffer {
    return Buffer.concat(this.#parts);
  }
}

export interface WholeAnswer {
  readonly events: readonly StreamEvent[];
  readonly report: PromptReport;
}

const DONE: StreamEvent = { kind: "done" };

export function wholeAnswer(data: Buffer, read: (data: Buffer) => StreamEvent): WholeAnswer {
  const byRank = cutField(data, "prompt_logprobs");
  const byToken = cutField(byRank?.rest ?? data, "prompt_token_id_logprobs");
  const event = read(byToken?.rest ?? byRank?.rest ?? data);
  const report = { logprobs: copyOf(byRank), tokenIdLogprobs: copyOf(byToken) };
  if (event.kind !== "piece") return { events: [event], report };
  const { usage } = event;
  const counted: StreamEvent[] = usage === null ? [] : [{ kind: "usage", usage }];
  return { events: [event, ...counted, DONE], report };
}

/** A copy: the whole answer is not kept for a part of it. */
function copyOf(cut: Cut | null): Uint8Array | null {
  return cut === null ? null : Uint8Array.from(cut.value);
}

/** Cuts the experts of a run out of an event: base64 of an .npy file, which JSON does not have to be read for. */
export function withoutExperts(
  { expertsFrom }: Pick<ChunkRun, "expertsFrom">,
  data: Buffer,
): { experts: Uint8Array | null; rest: Buffer } {
  const cut = expertsFrom === null ? null : cutField(data, "routed_experts");
  if (cut === null) return { experts: null, rest: data };
  const text = cut.value.subarray(1, -1).toString("latin1");
  return { experts: new Uint8Array(Buffer.from(text, "base64")), rest: cut.rest };
}
