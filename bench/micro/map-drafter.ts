// A baseline for the core's benches: what most would write, a drafter of n-grams in a JavaScript Map. Every
// suffix of 2 to 8 tokens is a string key that leads to counts of next tokens; a draft takes the longest
// suffix that is there. Not for use.

const ORDER_MIN = 2;
const ORDER_MAX = 8;

export class MapDrafter {
  readonly #next = new Map<string, Map<number, number>>();
  readonly #texts: number[][] = [];

  append(sequence: number, token: number): void {
    while (this.#texts.length <= sequence) this.#texts.push([]);
    const text = this.#texts[sequence] ?? [];
    for (let order = ORDER_MIN; order <= Math.min(ORDER_MAX, text.length); order += 1) {
      const key = text.slice(-order).join(" ");
      let counts = this.#next.get(key);
      if (counts === undefined) {
        counts = new Map();
        this.#next.set(key, counts);
      }
      counts.set(token, (counts.get(token) ?? 0) + 1);
    }
    text.push(token);
  }

  /** Tokens of the most frequent continuation of the longest suffix that has one. */
  path(sequence: number, tokensMax: number, probabilityMin: number): number[] {
    const text = (this.#texts[sequence] ?? []).slice(-ORDER_MAX);
    const out: number[] = [];
    let p = 1;
    while (out.length < tokensMax) {
      const [token, share] = this.#best(text);
      p *= share;
      if (token < 0 || p < probabilityMin) break;
      out.push(token);
      text.push(token);
    }
    return out;
  }

  #best(text: readonly number[]): [number, number] {
    for (let order = Math.min(ORDER_MAX, text.length); order >= ORDER_MIN; order -= 1) {
      const counts = this.#next.get(text.slice(-order).join(" "));
      if (counts === undefined) continue;
      let [best, most, total] = [-1, 0, 0];
      for (const [token, count] of counts) {
        total += count;
        if (count > most) [best, most] = [token, count];
      }
      return [best, most / total];
    }
    return [-1, 0];
  }
}
