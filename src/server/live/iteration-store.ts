// The last iterations, for the page and other readers: in memory, and in a file that outlives the server. A
// file that cannot be read is an error at the start; one that cannot be written costs the record there alone.

import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import * as v from "valibot";
import { AppError, errorText } from "../../core/base/errors.ts";
import type { Figures } from "../../core/rollout/figures.ts";
import type { RunFigure } from "../../observe/picture/figure.ts";
import type { LastFinished } from "./waiting.ts";

/** An iteration's figures (core/rollout/figures.ts), and values derived from them. Rates are per second, shares 0 to 1. */
export interface IterationRecord extends Readonly<Figures> {
  /** Unix time of its end, seconds. */
  readonly ended_at_s: number;
  readonly weight_epoch: number;
  readonly wall_s: number;
  readonly tail_s: number;
  readonly tokens_per_s: number;
  readonly mean_acceptance_length: number;
}

/** The part of an iteration that is fetched separately, because it is larger than its figures. */
export interface IterationDetail {
  /** The picture's data; absent: an earlier version recorded the iteration. */
  readonly figure?: RunFigure;
  readonly waited_for: readonly LastFinished[];
}

export const ITERATIONS_KEPT = 50;

interface Kept {
  readonly record: IterationRecord & { readonly number: number };
  readonly detail: IterationDetail;
}

/** Schema of the file, strict enough to refuse files of other programs. */
const KEPT = v.array(
  v.looseObject({ record: v.looseObject({ number: v.number() }), detail: v.looseObject({}) }),
);

export class IterationStore {
  readonly #path: string | null;
  #kept: readonly Kept[];

  /** `path` null: iterations are kept in memory. @throws AppError invalid_config: the file is unreadable, or none of ours. */
  constructor(path: string | null) {
    this.#path = path;
    try {
      if (path !== null) mkdirSync(dirname(path), { recursive: true });
      const text = path !== null && existsSync(path) ? readFileSync(path, "utf8") : "[]";
      this.#kept = v.parse(KEPT, JSON.parse(text)) as unknown as Kept[];
    } catch (cause) {
      const problem = `the iterations file ${path}: ${errorText(cause)}`;
      throw new AppError("invalid_config", problem, { cause });
    }
  }

  /** Number of the last iteration that was added; 0: none. */
  get last(): number {
    return this.#kept.at(-1)?.record.number ?? 0;
  }

  /** Adds an iteration, and drops the oldest beyond the limit. @throws Error: the file cannot be written. */
  add(record: IterationRecord, detail: IterationDetail): void {
    const kept = { record: { number: this.last + 1, ...record }, detail };
    this.#kept = [...this.#kept, kept].slice(-ITERATIONS_KEPT);
    if (this.#path === null) return;
    writeFileSync(`${this.#path}.new`, JSON.stringify(this.#kept));
    renameSync(`${this.#path}.new`, this.#path);
  }

  /** The iteration with this number; null: it is not kept. */
  find(number: number): Kept | null {
    return this.#kept.find(({ record }) => record.number === number) ?? null;
  }

  all(): Kept["record"][] {
    return this.#kept.map(({ record }) => record);
  }
}
