// Splits a stream of server-sent events into the data of each event, wherever the network splits it. An event is one
// line, as vLLM writes them. Lines that arrive in one piece are not copied.

const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;
const DATA = Buffer.from("data:");

export class SseReader {
  readonly #bytesMax: number;
  /** The beginning of an incomplete line. */
  #rest: Buffer[] = [];
  #restBytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /**
   * Calls `event` with the data of each complete event, valid during the call only; `event` returns false to stop.
   * Returns false if a line exceeds the limit.
   */
  push(bytes: Buffer, event: (data: Buffer) => boolean): boolean {
    let from = 0;
    for (;;) {
      const end = bytes.indexOf(LINE_FEED, from);
      if (end < 0) break;
      const line = this.#take(bytes.subarray(from, end));
      from = end + 1;
      const data = dataOf(line);
      if (data !== null && !event(data)) return true;
    }
    if (from === bytes.length) return true;
    this.#restBytes += bytes.length - from;
    if (this.#restBytes > this.#bytesMax) return false;
    // The socket's buffer is used again: what outlives the call is copied.
    this.#rest.push(Buffer.from(bytes.subarray(from)));
    return true;
  }

  #take(tail: Buffer): Buffer {
    if (this.#rest.length === 0) return tail;
    const line = Buffer.concat([...this.#rest, tail]);
    this.#rest = [];
    this.#restBytes = 0;
    return line;
  }
}

/** The data of a line; null: it has none (a comment, an event's name, the empty line between events). */
function dataOf(line: Buffer): Buffer | null {
  if (line.length < DATA.length || line.compare(DATA, 0, DATA.length, 0, DATA.length) !== 0) {
    return null;
  }
  let from = DATA.length;
  let to = line.length;
  if (line[from] === 0x20) from += 1;
  if (line[to - 1] === CARRIAGE_RETURN) to -= 1;
  return line.subarray(from, to);
}
