// Journals of requests with an id in their body. A process that takes the place of this one has none of their clients: when
// one repeats its request, the responses continue with what was kept of them, and with the same random numbers. Until then
// nothing of them is generated. Both the number of journals and the time that they are kept have a bound.

import type { Later } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import type { HeldWeights } from "../../core/journal/held-weights.ts";
import type { SavedRun } from "../../core/journal/read.ts";
import { type RunFiles, RunJournal } from "../../core/journal/run-journal.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import { type DrawKey, expertsFrom, reportsPrompt } from "../../core/request/request.ts";
import type { Sidecar } from "../sidecar.ts";

export interface RequestJournalsOptions {
  readonly files: RunFiles;
  readonly sidecar: Sidecar;
  readonly held: () => HeldWeights;
  /** Time for which requests of an earlier process wait for their clients. */
  readonly graceMs: number;
  readonly later: Later;
}

/** Limit of requests with kept responses; further ones are served without a journal. */
const JOURNALS_MAX = 1024;

interface RequestKey {
  readonly path: string;
  readonly id: string;
  readonly digest: string;
}

interface Header extends HeldWeights, RequestKey {
  readonly format: 1;
  readonly kind: "request";
  /** Keys of the random numbers, by prompt and response. */
  readonly draws: readonly (readonly DrawKey[])[];
}

/** A request of an earlier process. */
export interface SavedRequest extends Header {
  readonly run: SavedRun;
}

/** The request that a journal holds; null: it is the journal of something else. */
export function savedRequest(run: SavedRun): SavedRequest | null {
  const header = run.header as Partial<Header>;
  if (header.kind !== "request") return null;
  const { format, path, id, digest, version, epoch, draws } = header;
  const texts = [path, id, digest, version].every((text) => typeof text === "string");
  const hasDraws = Array.isArray(draws) && draws.every((row) => Array.isArray(row));
  if (format === 1 && texts && Number.isInteger(epoch) && hasDraws) {
    return { ...(header as Header), run };
  }
  throw new AppError("invalid_config", `--journal: ${run.name} is no journal of a request`);
}

export class RequestJournals {
  readonly #options: RequestJournalsOptions;
  /** Requests of an earlier process, by path and id. */
  readonly #saved = new Map<string, SavedRequest>();
  readonly #live = new Set<RunJournal>();
  #isClosed = false;

  constructor(options: RequestJournalsOptions) {
    this.#options = options;
    const { sidecar, held, later, graceMs } = options;
    sidecar.observe({
      advanced: () => {
        for (const journal of this.#live) journal.advanced(held());
      },
    });
    later(() => {
      for (const saved of this.#saved.values()) this.#drop(saved);
    }, graceMs);
  }

  /** Takes over requests of an earlier process, which wait for their clients. */
  takeOver(saved: Iterable<SavedRequest>): void {
    for (const one of saved) this.#saved.set(nameOf(one), one);
  }

  /** Keys of the random numbers of a request's responses, where an earlier process began it; else empty. */
  drawsOf(key: RequestKey): SavedRequest["draws"] {
    const saved = this.#saved.get(nameOf(key));
    return saved?.digest === key.digest ? saved.draws : [];
  }

  /**
   * Journals the responses to each prompt of a request, which have just joined, and restores their saved output. null: no journal
   * is kept, because the request wants reports that journals do not have, or there are too many.
   */
  begin(key: RequestKey, responses: readonly (readonly RolloutRequest[])[]): RunJournal | null {
    if (this.#isClosed || this.#live.size >= JOURNALS_MAX) return null;
    const requests = responses.flat();
    // A journal keeps tokens and logprobs, but no reports on prompts or experts.
    const isReported = ({ spec: { sampling } }: RolloutRequest) =>
      reportsPrompt(sampling) || expertsFrom(sampling) !== null;
    if (requests.some(isReported)) return null;
    const earlier = this.#saved.get(nameOf(key)) ?? null;
    const isSame = earlier?.digest === key.digest && this.#isCurrent(earlier.run);
    if (earlier !== null && !isSame) this.#drop(earlier);
    this.#saved.delete(nameOf(key));
    const { files, held, sidecar } = this.#options;
    const run = isSame ? earlier.run : null;
    const journal: RunJournal = new RunJournal(files, run, () => this.#live.delete(journal));
    if (run === null) {
      const draws = responses.map((row) => row.map(({ spec }) => spec.draw));
      journal.describe({ kind: "request", ...key, draws, ...held() });
    }
    journal.resume(sidecar.rollout, requests);
    this.#live.add(journal);
    return journal;
  }

  #drop(saved: SavedRequest): void {
    this.#saved.delete(nameOf(saved));
    void new RunJournal(this.#options.files, saved.run).remove();
  }

  /** Closes the journals at the end of the process; the next process continues the requests. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([...this.#live].map((journal) => journal.close()));
  }

  #isCurrent({ last }: SavedRun): boolean {
    const { epoch, workers } = this.#options.sidecar.rollout;
    if (last === null) return true;
    const others = workers.some(({ weights = null }) => (weights ?? last.weights) !== last.weights);
    return last.epoch === epoch && (last.weights === null || !others);
  }
}

function nameOf({ path, id }: Pick<RequestKey, "path" | "id">): string {
  return `${path} ${id}`;
}
