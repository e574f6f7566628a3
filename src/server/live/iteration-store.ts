// The last iterations, for the page and for whoever compares them: in memory, or in an SQLite file that outlives the
// server. A file that cannot be read is an error at the start; one that cannot be written costs the record alone.

import { Database } from "bun:sqlite";
import { mkdirSync } from "node:fs";
import { dirname } from "node:path";
import { AppError, errorText } from "../../base/errors.ts";

/** Rates per second; shares 0 to 1. */
export interface IterationRecord {
  /** Unix time of its end, seconds. */
  readonly ended_at_s: number;
  readonly weight_epoch: number;
  readonly requests: number;
  readonly output_tokens: number;
  readonly wall_s: number;
  readonly tail_s: number;
  readonly tokens_per_s: number;
  readonly migrations: number;
  readonly preemptions: number;
  readonly mean_acceptance_length: number;
  /** Of the estimates after a fifth of the time, those that held the end; null: none were made. */
  readonly eta_inside: number | null;
}

export const ITERATIONS_KEPT = 50;

export class IterationStore {
  readonly #database: Database;

  /** `path` null: in memory. @throws AppError invalid_config: the file is no database, or cannot be written. */
  constructor(path: string | null) {
    try {
      if (path !== null) mkdirSync(dirname(path), { recursive: true });
      this.#database = new Database(path ?? ":memory:", { create: true });
      this.#database.run("PRAGMA busy_timeout = 1000");
      this.#database.run(
        "CREATE TABLE IF NOT EXISTS iterations (number INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT NOT NULL)",
      );
    } catch (cause) {
      throw new AppError("invalid_config", `--iterations ${path}: ${errorText(cause)}`, { cause });
    }
  }

  add(record: IterationRecord): void {
    this.#database.run("INSERT INTO iterations (record) VALUES (?)", [JSON.stringify(record)]);
    this.#database.run(
      "DELETE FROM iterations WHERE number <= (SELECT max(number) FROM iterations) - ?",
      [ITERATIONS_KEPT],
    );
  }

  /** The oldest first, each with its number. */
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
