// Lengths of the responses to a prompt in earlier weight epochs, as a prior for the group's length before any response of
// this epoch has finished. Owns two numbers a prompt; the prompt used longest ago goes first.

interface Lengths {
  epoch: number;
  /** Longest of this epoch's finished responses. */
  longest: number;
  /** Longest of the prompt's previous epoch; 0: none. */
  before: number;
}

export const PROMPTS_MAX = 65_536;

export class LengthHistory {
  /** Lengths by the prompt's key; the least recently used prompt comes first. */
  readonly #prompts = new Map<number, Lengths>();
  #epoch = 0;

  /** Advances the weight epoch of responses recorded from now on by `epochs`. */
  advance(epochs = 1): void {
    this.#epoch += epochs;
  }

  /** Records a response of this epoch that has finished with `tokens` output tokens. */
  finished(key: number, tokens: number): void {
    const lengths = this.#prompts.get(key) ?? { epoch: this.#epoch, longest: 0, before: 0 };
    if (lengths.epoch < this.#epoch) {
      lengths.before = lengths.longest;
      lengths.longest = 0;
      lengths.epoch = this.#epoch;
    }
    lengths.longest = Math.max(lengths.longest, tokens);
    this.#use(key, lengths);
  }

  /** The longest response of the latest earlier epoch in which the prompt occurred; null: none is known. */
  prior(key: number): number | null {
    const lengths = this.#prompts.get(key);
    if (lengths === undefined) return null;
    this.#use(key, lengths);
    const tokens = lengths.epoch < this.#epoch ? lengths.longest : lengths.before;
    return tokens > 0 ? tokens : null;
  }

  /** The longest response of each prompt's latest epoch, the least recently used prompt first. */
  *latest(): Generator<{ readonly key: number; readonly epoch: number; readonly tokens: number }> {
    for (const [key, { epoch, longest }] of this.#prompts) yield { key, epoch, tokens: longest };
  }

  #use(key: number, lengths: Lengths): void {
    this.#prompts.delete(key);
    this.#prompts.set(key, lengths);
    if (this.#prompts.size <= PROMPTS_MAX) return;
    for (const oldest of this.#prompts.keys()) {
      this.#prompts.delete(oldest);
      return;
    }
  }
}
