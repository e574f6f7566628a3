// The deaths of workers that were running one request. A death does not say which request caused it, so every request that
// was running is a suspect, until it makes a token that it did not have before: then it was not the cause.
//
//   (none) --death--> suspect, on probation --token beyond the mark--> cleared
//                        |                                               ^
//                        | undivided: its first token                   |
//                        +----> suspect --------token beyond the mark---+

/** The death of a worker, shared by all requests that it was running. */
export interface Death {
  /** Requests that the worker was running and that are not cleared yet. */
  suspects: number;
  /** A suspect was given up before it was cleared: the cause remains unknown. */
  isUnknown: boolean;
}

/** Deaths without a new token after which the probation of an undivided request lasts until it makes one. */
const SHORT_PROBATIONS = 4;

export class Attempts {
  /** Deaths since the request was last cleared. */
  #deaths: Death[] = [];
  /** The workers' last messages, truncated. */
  #reports: string[] = [];
  /** The most output tokens that the request ever had: making these again proves nothing. */
  #mark = 0;
  #isOnProbation = false;
  /** Call `progressed` once the request has more output tokens than this. */
  watermark = Number.POSITIVE_INFINITY;
  /** Deaths over the request's life. */
  total = 0;

  get isSuspect(): boolean {
    return this.#deaths.length > 0;
  }

  /** On probation it shares its worker with no other suspect: if that worker dies, this request was the cause. */
  get isOnProbation(): boolean {
    return this.#isOnProbation;
  }

  get deaths(): number {
    return this.#deaths.length;
  }

  get reports(): readonly string[] {
    return this.#reports;
  }

  /**
   * Records that a worker died while it ran the request, which had `tokens` output tokens. An undivided request makes all
   * of them again, and other suspects would wait long: its first token ends the probation, for the first few deaths.
   */
  died(death: Death, about: { tokens: number; divisible: boolean; report: string }): void {
    this.#deaths.push(death);
    this.#reports.push(about.report);
    this.total += 1;
    this.#mark = Math.max(this.#mark, about.tokens);
    this.#isOnProbation = true;
    const isShort = !about.divisible && this.#deaths.length < SHORT_PROBATIONS;
    this.watermark = isShort ? 0 : this.#mark;
  }

  /** Records that the request has more output tokens than the watermark. Returns the deaths that it is cleared of. */
  progressed(tokens: number): readonly Death[] {
    this.#isOnProbation = false;
    if (tokens > this.#mark) return this.cleared();
    this.watermark = this.#mark;
    return [];
  }

  cleared(): readonly Death[] {
    const deaths = this.#deaths;
    this.#deaths = [];
    this.#reports = [];
    this.#isOnProbation = false;
    this.watermark = Number.POSITIVE_INFINITY;
    return deaths;
  }
}
