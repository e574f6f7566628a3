// The last iterations, for the page and for whoever compares them: in memory, or in an SQLite file that outlives the
// server. A file that cannot be read is an error at the start; one that cannot be written costs the record alone.

import { Database } from "bun:sqlite";
import { mkdirSync } from "node:fs";
import { dirname } from "node:path";
import { AppError, errorText } from "../../core/base/errors.ts";
import type { Figures } from "../../core/rollout/figures.ts";
import type { LastFinished } from "./waited-for.ts";

/**
 * The figures of the table, counted in the iteration, and values derived from them. Rates per second; shares 0 to 1.
 */
export interface IterationRecord extends Readonly<Figures> {
  /** Unix time of its end, seconds. */
  readonly ended_at_s: number;
  readonly weight_epoch: number;
  readonly wall_s: number;
  readonly tail_s: number;
  readonly tokens_per_s: number;
  readonly mean_acceptance_length: number;
  /** Share of the estimates after a fifth of the time whose range held the end; null: none were made. */
  readonly eta_inside: number | null;
}

/** The part of one iteration that is read on its own: larger than its figures. */
export interface IterationDetail {
  /** Samples in the form of Samples.columns. */
  readonly samples: object;
  readonly workers: readonly { worker: number; name: string; slots: number }[];
  readonly waited_for: readonly LastFinished[];
}

export const ITERATIONS_KEPT = 50;

export class IterationStore {
  readonly #database: Database;
  #last: number;

  /** `path` null: in memory. @throws AppError invalid_config: the file is no database, or cannot be written. */
  constructor(path: string | null) {
    try {
      if (path !== null) mkdirSync(dirname(path), { recursive: true });
      this.#database = new Database(path ?? ":memory:", { create: true });
      this.#database.run("PRAGMA busy_timeout = 1000");
      // The server waits for each commit: two waits for the disk in place of four.
      this.#database.run("PRAGMA journal_mode = TRUNCATE");
      this.#database.run("PRAGMA synchronous = NORMAL");
      this.#database.run(
        "CREATE TABLE IF NOT EXISTS iterations (number INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT NOT NULL)",
      );
      this.#database.run(
        "CREATE TABLE IF NOT EXISTS details (number INTEGER PRIMARY KEY, detail TEXT NOT NULL)",
      );
      this.#last = this.all().at(-1)?.number ?? 0;
    } catch (cause) {
      throw new AppError("invalid_config", `the iterations file ${path}: ${errorText(cause)}`, {
        cause,
      });
    }
  }

  /** Number of the last iteration that was added; 0: none. */
  get last(): number {
    return this.#last;
  }

  add(record: IterationRecord, detail: IterationDetail): void {
    const database = this.#database;
    database.transaction(() => {
      const insert = "INSERT INTO iterations (record) VALUES (?)";
      const number = Number(database.run(insert, [JSON.stringify(record)]).lastInsertRowid);
      const text = JSON.stringify(detail);
      database.run("INSERT OR REPLACE INTO details VALUES (?, ?)", [number, text]);
      for (const table of ["iterations", "details"]) {
        database.run(`DELETE FROM ${table} WHERE number <= ?`, [number - ITERATIONS_KEPT]);
      }
      this.#last = number;
    })();
  }

  /** null: it is not kept. */
  detail(number: number): IterationDetail | null {
    const row = this.#database
      .query<{ detail: string }, [number]>("SELECT detail FROM details WHERE number = ?")
      .get(number);
    return row === null ? null : JSON.parse(row.detail);
  }

  /** The figures of those that are kept: the oldest first, each with its number. */
  all(): (IterationRecord & { readonly number: number })[] {
    const rows = this.#database
      .query<{ number: number; record: string }, []>(
        "SELECT number, record FROM iterations ORDER BY number",
      )
      .all();
    return rows.map(({ number, record }) => ({ number, ...JSON.parse(record) }));
  }

  close(): void {
    this.#database.close();
  }
}
