// The slow, obvious twin of src/core/draft/history.ts: one flat list of responses in the order of their prompts'
// last use, cut to its bounds after every change.

interface Entry {
  readonly prompt: string;
  readonly epoch: number;
  readonly tokens: readonly number[];
}

const LOG_BYTES = 128;
const GENERATIONS = 2;
const RESPONSES = 8;

export class HistoryTwin {
  readonly #limitBytes: number;
  /** Within a prompt in the order filed. */
  #entries: Entry[] = [];
  #epoch = 0;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  get bytes(): number {
    return this.#entries.reduce((sum, { tokens }) => sum + LOG_BYTES + 4 * tokens.length, 0);
  }

  get prompts(): number {
    return new Set(this.#entries.map(({ prompt }) => prompt)).size;
  }

  get responses(): number {
    return this.#entries.length;
  }

  advance(): void {
    this.#epoch += 1;
  }

  past(prompt: string): number[][] {
    this.#use(prompt);
    const epochs = this.#epochsOf(prompt).filter((epoch) => epoch < this.#epoch);
    return epochs.flatMap((epoch) => this.#of(prompt, epoch).map(({ tokens }) => [...tokens]));
  }

  put(prompt: string, responses: readonly (readonly number[])[]): void {
    const written = responses.filter(({ length }) => length > 0);
    for (const tokens of written) this.#entries.push({ prompt, epoch: this.#epoch, tokens });
    if (written.length === 0) return;
    this.#use(prompt);
    for (const [age, epoch] of this.#epochsOf(prompt).entries()) {
      const kept = age < GENERATIONS ? Math.max(1, RESPONSES >> age) : 0;
      const all = this.#of(prompt, epoch);
      const gone = new Set(all.toSorted((a, b) => b.tokens.length - a.tokens.length).slice(kept));
      this.#entries = this.#entries.filter((entry) => !gone.has(entry));
    }
    while (this.bytes > this.#limitBytes) {
      const first = this.#entries[0]?.prompt ?? "";
      const oldest = this.#epochsOf(first).at(-1);
      this.#entries = this.#entries.filter((e) => e.prompt !== first || e.epoch !== oldest);
    }
  }

  #use(prompt: string): void {
    const others = this.#entries.filter((entry) => entry.prompt !== prompt);
    this.#entries = [...others, ...this.#entries.filter((entry) => entry.prompt === prompt)];
  }

  #of(prompt: string, epoch: number): Entry[] {
    return this.#entries.filter((entry) => entry.prompt === prompt && entry.epoch === epoch);
  }

  /** Latest first. */
  #epochsOf(prompt: string): number[] {
    const epochs = this.#entries.filter((e) => e.prompt === prompt).map(({ epoch }) => epoch);
    return [...new Set(epochs)].toSorted((a, b) => b - a);
  }
}
