// What is known of the workers that died while they ran one request. A death names no culprit, so a request that was
// there is a suspect, until it makes a token that it did not have before: then it was not what that worker died of.
//
//   (none) --death--> suspect, on probation --token beyond the mark--> cleared
//                        |                                               ^
//                        | undivided: its first token                   |
//                        +----> suspect --------token beyond the mark---+

/** One death of a worker, shared by all requests that were running there. */
export interface Death {
  /** Requests that were running there and are not cleared yet. */
  suspects: number;
  /** A request was given up before it was cleared of the death. */
  isUnknown: boolean;
}

/** Deaths without a new token after which the probation of an undivided request lasts until it makes one. */
const SHORT_PROBATIONS = 4;

export class Attempts {
  /** Deaths since the request was last cleared. */
  #deaths: Death[] = [];
  /** The workers' last messages, truncated. */
  #reports: string[] = [];
  /** Output tokens that it ever had, at most: tokens up to here prove nothing. */
  #mark = 0;
  #isOnProbation = false;
  /** The number of output tokens beyond which `progressed` is to be called. */
  watermark = Number.POSITIVE_INFINITY;
  /** Deaths over the request's life. */
  total = 0;

  get isSuspect(): boolean {
    return this.#deaths.length > 0;
  }

  /** No other suspect may run where it runs: if that worker dies, it was this one. */
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
   * A worker died while it ran the request, which had `tokens` output tokens. An undivided one makes all of them
   * again, and other suspects would wait long for that: its first token ends the probation, unless it was there often.
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

  /** The request has `tokens` output tokens, more than the watermark. Returns the deaths that it is cleared of. */
  progressed(tokens: number): readonly Death[] {
    this.#isOnProbation = false;
    if (tokens > this.#mark) return this.cleared();
    this.watermark = this.#mark;
    return [];
  }

  /** The workers did not die of the request. Returns the deaths. */
  cleared(): readonly Death[] {
    const deaths = this.#deaths;
    this.#deaths = [];
    this.#reports = [];
    this.#isOnProbation = false;
    this.watermark = Number.POSITIVE_INFINITY;
    return deaths;
  }
}
