// A log of frames in numbered files; at a bound the oldest file is deleted. Each process begins a new file. A log that
// cannot be written is deleted, so that nobody takes its beginning for the whole.

import { readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { JournalFile } from "./journal-file.ts";

export interface SegmentedLogOptions {
  readonly folder: string;
  /** The files are `name-1`, `name-2`, ... */
  readonly name: string;
  /** Limit of all files together. */
  readonly bytesMax: number;
  /** Called once, after a failure, when the log has been deleted. */
  readonly failed: (error: unknown) => void;
}

interface Segment {
  readonly path: string;
  bytes: number;
  /** null: an earlier process has written it. */
  readonly file: JournalFile | null;
}

/** Files of a full log: deleting one loses a small part only. */
const FILES = 8;

export class SegmentedLog {
  readonly #options: SegmentedLogOptions;
  /** The oldest first. */
  readonly #segments: Segment[] = [];
  #number: number;
  #file: JournalFile | null = null;
  #frames: Uint8Array[] = [];
  #closing: Promise<unknown> = Promise.resolve();
  #hasFailed = false;
  /** Nothing is written any more. */
  #isOver = false;

  constructor(options: SegmentedLogOptions) {
    this.#options = options;
    const prefix = `${options.name}-`;
    const numbers = readdirSync(options.folder)
      .filter((name) => name.startsWith(prefix) && /^\d+$/.test(name.slice(prefix.length)))
      .map((name) => Number(name.slice(prefix.length)))
      .sort((a, b) => a - b);
    for (const number of numbers) {
      const path = this.#pathOf(number);
      this.#segments.push({ path, bytes: statSync(path).size, file: null });
    }
    this.#number = numbers.at(-1) ?? 0;
  }

  /** The contents of the files, oldest first. */
  *read(): Generator<Uint8Array> {
    for (const { path } of [...this.#segments]) yield readFileSync(path);
  }

  append(frame: Uint8Array): void {
    if (this.#isOver) return;
    const last = this.#segments.at(-1);
    const isFull = (last?.bytes ?? 0) + frame.byteLength > this.#options.bytesMax / FILES;
    if (this.#file === null || isFull) this.#begin();
    this.#frames.push(frame);
    const segment = this.#segments.at(-1);
    if (segment !== undefined) segment.bytes += frame.byteLength;
    this.#file?.touch();
  }

  /** Resolves when everything has been written; what comes later is not kept. */
  async close(): Promise<void> {
    this.#isOver = true;
    this.#end();
    // A file that cannot be closed well takes the others with it.
    for (let waited: unknown = null; waited !== this.#closing; ) {
      waited = this.#closing;
      await waited;
    }
  }

  #begin(): void {
    this.#end();
    this.#number += 1;
    const path = this.#pathOf(this.#number);
    this.#frames = [];
    const frames = this.#frames;
    const file = new JournalFile({
      path,
      log: {
        get hasNews() {
          return frames.length > 0;
        },
        take: () => Buffer.concat(frames.splice(0)),
        stop: () => frames.splice(0),
      },
      keptBytes: 0,
      failed: (error) => this.#fail(error),
    });
    this.#file = file;
    this.#segments.push({ path, bytes: 0, file });
    let total = this.#segments.reduce((sum, { bytes }) => sum + bytes, 0);
    while (this.#segments.length > 1 && total > this.#options.bytesMax * (1 - 1 / FILES)) {
      const oldest = this.#segments.shift();
      total -= oldest?.bytes ?? 0;
      if (oldest !== undefined) this.#delete(oldest);
    }
  }

  #end(): void {
    const file = this.#file;
    if (file === null) return;
    this.#file = null;
    this.#closing = Promise.all([this.#closing, file.close()]);
  }

  #fail(error: unknown): void {
    if (this.#hasFailed) return;
    this.#hasFailed = true;
    this.#isOver = true;
    for (const segment of this.#segments) this.#delete(segment);
    this.#options.failed(error);
  }

  #delete({ path, file }: Segment): void {
    if (file !== null) {
      // It may not be open yet, and would be made anew.
      this.#closing = Promise.all([this.#closing, file.remove()]);
      return;
    }
    try {
      rmSync(path, { force: true });
    } catch (error) {
      this.#fail(error);
    }
  }

  #pathOf(number: number): string {
    return join(this.#options.folder, `${this.#options.name}-${number}`);
  }
}
