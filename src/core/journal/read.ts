// Reads a journal back: the run's description, and the output of each response.

import { AppError, errorText } from "../base/errors.ts";
import { type WeightEpoch, type WeightsId, weightEpoch, workerId } from "../base/ids.ts";
import { OutputColumns } from "../request/columns.ts";
import type { FinishReason } from "../request/request.ts";
import type { Chunk, Refusal, SavedOutput } from "../request/response.ts";
import { isOwnBeginning, scanFrame } from "./frame.ts";
import {
  type ChangeRecord,
  type EpochRecord,
  isCount,
  type OutputRecord,
  readRecords,
  type StreamRecord,
} from "./records.ts";

export interface SavedRun {
  readonly name: string;
  /** Argument of `RunJournal.describe`. */
  readonly header: Readonly<Record<string, unknown>>;
  readonly outputs: ReadonlyMap<number, SavedOutput>;
  /** Streams in the order in which they finished. */
  readonly finished: readonly number[];
  /** Weights of the last chunk; null: no chunk has begun. */
  readonly last: { readonly epoch: WeightEpoch; readonly weights: WeightsId | null } | null;
  /** Weight epochs that began during the run. */
  readonly epochs: readonly EpochRecord[];
  /** Arguments of `RunJournal.change`, in order. */
  readonly changes: readonly unknown[];
  /** End of the last whole frame; bytes after it are cut off. */
  readonly bytes: number;
}

interface Stream {
  /** null: there are no tokens yet, so whether they have alternatives is not known. */
  columns: OutputColumns | null;
  chunks: Omit<Chunk, "tokens">[];
  finish: FinishReason | null;
  refusal: Refusal | null;
}

/**
 * Reads a journal; null: there is no whole record in it. `name`: the journal's name for messages.
 * @throws AppError journal_damaged: a record before the last is damaged, or it is no journal.
 */
export function readJournal(bytes: Uint8Array, name: string): SavedRun | null {
  const reader = new RunReader(name);
  let at = 0;
  for (let frame = 0; ; frame += 1) {
    const scan = scanFrame(bytes, at);
    if (scan.kind === "torn" && at === 0 && !isOwnBeginning(bytes)) {
      throw damaged(`${name}: is no journal of this release; it is left as it is`);
    }
    if (scan.kind === "end" || scan.kind === "torn") break;
    const where = `${name}: record ${frame} at byte ${at}`;
    if (scan.kind === "damaged") {
      throw damaged(`${where} is damaged; the next whole one begins at byte ${scan.next}`);
    }
    try {
      for (const record of readRecords(scan.payload)) reader.take(record);
    } catch (error) {
      throw damaged(`${where} does not fit to what comes before it: ${errorText(error)}`);
    }
    at = scan.end;
  }
  return reader.run(at);
}

class RunReader {
  readonly #name: string;
  #header: Record<string, unknown> | null = null;
  readonly #streams = new Map<number, Stream>();
  readonly #finished: number[] = [];
  #last: SavedRun["last"] = null;
  readonly #epochs: EpochRecord[] = [];
  readonly #changes: unknown[] = [];

  constructor(name: string) {
    this.#name = name;
  }

  take(record: OutputRecord | object): void {
    if (this.#header === null) {
      this.#header = { ...record };
      return;
    }
    const known = knownRecord(record);
    if (known.type === "epoch") {
      this.#epochs.push(known);
      return;
    }
    if (known.type === "change") {
      this.#changes.push(known.change);
      return;
    }
    const stream = this.#stream(known);
    if (known.type === "output") this.#output(stream, known);
    else if (known.type === "chunk") {
      const { worker, offset, weights } = known;
      const epoch = weightEpoch(known.epoch);
      stream.chunks.push({ workerId: workerId(worker), epoch, weights, offset });
      this.#last = { epoch, weights };
    } else {
      stream.finish = known.reason;
      stream.refusal = known.refusal;
      this.#finished.push(known.stream);
    }
  }

  run(bytes: number): SavedRun | null {
    if (this.#header === null) return null;
    const outputs = new Map<number, SavedOutput>();
    for (const [number, { columns, chunks, finish, refusal }] of this.#streams) {
      const tokens = columns?.tokens() ?? new Int32Array(0);
      this.#checkChunks(number, chunks, tokens.length);
      outputs.set(number, {
        tokens,
        logprobs: columns?.logprobs() ?? new Float32Array(0),
        top: columns?.topLogprobs() ?? null,
        chunks: chunks.map((chunk, i) => ({
          ...chunk,
          tokens: (chunks[i + 1]?.offset ?? tokens.length) - chunk.offset,
        })),
        finish,
        refusal,
      });
    }
    return {
      name: this.#name,
      header: this.#header,
      outputs,
      finished: this.#finished,
      last: this.#last,
      epochs: this.#epochs,
      changes: this.#changes,
      bytes,
    };
  }

  /** Checks that chunks begin in order, and none after the response's last token. @throws AppError journal_damaged. */
  #checkChunks(stream: number, chunks: Stream["chunks"], length: number): void {
    const ends = [...chunks.slice(1).map(({ offset }) => offset), length];
    const wrong = chunks.findIndex(({ offset }, i) => offset > (ends[i] ?? length));
    if (wrong < 0) return;
    const what = `chunk ${wrong} of response ${stream} begins at ${chunks[wrong]?.offset}`;
    throw damaged(`${this.#name}: ${what}, behind the end of its ${length} tokens or of the next`);
  }

  #stream(record: StreamRecord): Stream {
    const empty = () => ({ columns: null, chunks: [], finish: null, refusal: null });
    return this.#streams.getOrInsertComputed(record.stream, empty);
  }

  #output(stream: Stream, { offset, tokens, logprobs, top }: OutputRecord): void {
    if (tokens.length === 0) {
      stream.columns?.clear();
      stream.chunks = [];
      return;
    }
    stream.columns ??= new OutputColumns(Number.POSITIVE_INFINITY, top?.count ?? 0);
    const { length } = stream.columns;
    if (offset !== length) throw new RangeError(`tokens from ${offset} on follow ${length} tokens`);
    stream.columns.appendFrom(tokens, logprobs, top, 0);
  }
}

/** Fields of each type of record that are counts. */
const COUNTS: ReadonlyMap<unknown, readonly string[]> = new Map([
  ["epoch", ["epoch"]],
  ["change", []],
  ["output", ["stream"]],
  ["chunk", ["stream", "worker", "epoch", "offset"]],
  ["finish", ["stream"]],
]);

/** Checks a record's type and counts. @throws RangeError: no run writes such a record. */
function knownRecord(record: object): StreamRecord | EpochRecord | ChangeRecord {
  const counts = COUNTS.get(Reflect.get(record, "type"));
  if (counts === undefined) throw new RangeError("a record is of no known type");
  const wrong = counts.find((field) => !isCount(Reflect.get(record, field)));
  if (wrong !== undefined) throw new RangeError(`the ${wrong} of a record is no whole number`);
  return record as StreamRecord | EpochRecord | ChangeRecord;
}

function damaged(message: string): AppError {
  return new AppError("journal_damaged", message);
}
