// Journals of requests with an id in their body (retries.ts). A process that takes the place of this one has none of their clients: when one repeats
// its request, the responses continue with what was kept of them, and with the same random numbers. Until then nothing
// of them is generated. Both the number of journals and the time that they are kept have a bound.

import { AppError } from "../../core/base/errors.ts";
import type { HeldWeights } from "../../core/journal/held-weights.ts";
import type { SavedRun } from "../../core/journal/read.ts";
import { type RunFiles, RunJournal } from "../../core/journal/run-journal.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import {
  type DrawKey,
  expertsFrom,
  reportsPrompt,
  type SamplingParams,
} from "../../core/request/request.ts";
import { Repeats } from "../repeats.ts";
import type { Sidecar } from "../sidecar.ts";
import { nameOf, type RetryKey } from "./retries.ts";

export interface RequestJournalsOptions {
  readonly files: RunFiles;
  readonly sidecar: Sidecar;
  /** The weights in service. */
  readonly held: () => HeldWeights;
  /** Time for which requests of an earlier process wait for their clients. */
  readonly graceMs: number;
  readonly after: (ms: number, run: () => void) => () => void;
}

/** Limit of requests with kept responses; further ones are served without a journal. */
const JOURNALS_MAX = 1024;

/** First record of a request's journal. */
interface Header extends HeldWeights {
  readonly format: 1;
  readonly kind: "request";
  readonly path: string;
  readonly id: string;
  readonly digest: string;
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
  /** Requests of an earlier process, by `nameOf`. */
  readonly #saved = new Repeats<SavedRequest>({
    bytesMax: Number.POSITIVE_INFINITY,
    isFree: (_, isSame) => !isSame,
    dropped: ({ run }) => void new RunJournal(this.#options.files, run).remove(),
  });
  readonly #live = new Set<RunJournal>();
  #isClosed = false;

  constructor(options: RequestJournalsOptions) {
    this.#options = options;
    options.sidecar.observe({
      advanced: () => {
        for (const journal of this.#live) journal.advanced(options.held());
      },
    });
    options.after(options.graceMs, () => this.#saved.forget(() => true));
  }

  /** Takes over requests of an earlier process, which wait for their clients. */
  takeOver(saved: Iterable<SavedRequest>): void {
    for (const one of saved) {
      this.#saved.add(nameOf(one), one.digest, one);
      this.#saved.rest(nameOf(one), one, 0, Number.POSITIVE_INFINITY);
    }
  }

  /** The random numbers of a request that an earlier process began; null: they are new. */
  drawsOf({ path, id, digest }: RetryKey): Header["draws"] | null {
    const saved = this.#saved.get(nameOf({ path, id }));
    return saved?.digest === digest ? saved.draws : null;
  }

  /**
   * Journals the responses to each prompt, which have just joined, and restores their saved output. null: no journal is
   * kept, because the request has no id, wants reports that journals do not have, or there are too many.
   */
  begin(key: RetryKey, responses: readonly (readonly RolloutRequest[])[]): RunJournal | null {
    const { path, id, digest } = key;
    if (id === null || this.#isClosed || this.#live.size >= JOURNALS_MAX) return null;
    const requests = responses.flat();
    if (!requests.every(({ spec: { sampling } }) => isKept(sampling))) return null;
    const name = nameOf({ path, id });
    const earlier = this.#saved.find(name, digest);
    const saved = earlier !== null && this.#isCurrent(earlier.run) ? earlier : null;
    if (saved !== null) this.#saved.use(name);
    // Of earlier weights: it is dropped.
    this.#saved.forget((one) => one === earlier);
    const { files, held, sidecar } = this.#options;
    const journal: RunJournal = new RunJournal(files, saved?.run ?? null, () =>
      this.#live.delete(journal),
    );
    if (saved === null) {
      const draws = responses.map((row) => row.map(({ spec }) => spec.draw));
      journal.describe({ kind: "request", path, id, digest, draws, ...held() });
    }
    journal.follow(sidecar.rollout, requests);
    this.#live.add(journal);
    return journal;
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

/** Whether a journal can restore the request: it keeps tokens and logprobs, but no reports on prompts or experts. */
function isKept(sampling: SamplingParams): boolean {
  return !reportsPrompt(sampling) && expertsFrom(sampling) === null;
}
