// What earlier text knows of the tokens that a response has next. `CopiedText`: how many of them have followed its last
// token, in this order, in the text of its group: what a draft copied from the best place has. It is a suffix automaton
// (Blumer et al. 1985) of texts that grow at the same time, shares nothing with the core's, and need not be as fast.
// `FollowedTokens`: how many have each followed the token before them in any text: no earlier text offers the next one.

/** Where texts may have come to: all that end in the state's strings. */
interface State {
  /** Of its longest string. */
  readonly length: number;
  /** The state of that string's longest suffix that is elsewhere too; null: this is the root. */
  link: State | null;
  readonly next: Map<number, State>;
}

export class CopiedText {
  /** The end of the prompt: where every response begins. */
  readonly begin: State;
  readonly #root: State = { length: 0, link: null, next: new Map() };

  /** `past`: earlier responses to the prompt. */
  constructor(prompt: Int32Array, past: readonly Int32Array[]) {
    this.begin = this.append(this.#root, prompt);
    for (const response of past) this.append(this.begin, response);
  }

  /** Appends tokens to the text that ends at `end`; returns its new end. */
  append(end: State, tokens: Int32Array): State {
    let state = end;
    for (const token of tokens) state = this.#extend(state, token);
    return state;
  }

  /** How many of `tokens`, from the first on, have followed `last` somewhere; undefined: have come anywhere. */
  reach(last: number | undefined, tokens: Int32Array): number {
    let state = last === undefined ? this.#root : this.#root.next.get(last);
    let count = 0;
    for (const token of tokens) {
      state = state?.next.get(token);
      if (state === undefined) break;
      count += 1;
    }
    return count;
  }

  #extend(last: State, token: number): State {
    const known = last.next.get(token);
    if (known !== undefined) return exact(last, token, known);
    const state: State = { length: last.length + 1, link: this.#root, next: new Map() };
    for (let from: State | null = last; from !== null; from = from.link) {
      const target = from.next.get(token);
      if (target !== undefined) {
        state.link = exact(from, token, target);
        break;
      }
      from.next.set(token, state);
    }
    return state;
  }
}

/** The state of the longest string of `from` with `token`: `target`, or a part of it that is split off. */
function exact(from: State, token: number, target: State): State {
  const length = from.length + 1;
  if (target.length === length) return target;
  const state: State = { length, link: target.link, next: new Map(target.next) };
  target.link = state;
  for (let s: State | null = from; s?.next.get(token) === target; s = s.link) {
    s.next.set(token, state);
  }
  return state;
}

/** The followers of each token in all texts. */
export class FollowedTokens {
  readonly #followers = new Map<number | undefined, Set<number>>();

  /** `before`: the token before the first; undefined: the text begins. */
  append(before: number | undefined, tokens: Int32Array): void {
    let last = before;
    for (const token of tokens) {
      this.#followers.getOrInsertComputed(last, () => new Set()).add(token);
      last = token;
    }
  }

  /** How many of `tokens`, from the first on. */
  reach(before: number | undefined, tokens: Int32Array): number {
    const isNew = (token: number, i: number) =>
      this.#followers.get(i === 0 ? before : tokens[i - 1])?.has(token) !== true;
    const count = tokens.findIndex(isNew);
    return count < 0 ? tokens.length : count;
  }
}
