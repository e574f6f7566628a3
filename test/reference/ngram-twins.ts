// The slow, obvious twins of the core's n-gram caches (assembly/draft/ngram-*). Contexts share slots and checks by the
// core's hash, since a small program may already have two contexts in one slot.

export const NONE = -1;
const TOKEN_BITS_MAX = 2 ** 21 - 1;

function hashed(hash: number, token: number): number {
  return Math.imul(((hash << 15) | (hash >>> 17)) + token, 0x9e3779b1) >>> 0;
}

/** A distance in tokens by powers of two. */
const octaves = (distance: number, most: number): number =>
  Math.min(31 - Math.clz32(distance + 1), most);

export function countClass(count: number): number {
  if (count < 4) return count;
  return count < 6 ? 4 : count < 10 ? 5 : count < 21 ? 6 : 7;
}

interface Follower {
  token: number;
  earlier: number;
  run: number;
}

interface Slot {
  readonly check: number;
  follower: Follower;
  /** Of a pair: the follower of the token that came next. */
  skip: Follower | null;
}

export type SequenceContext = "two" | "one" | "skip";

export class SequenceNgramsTwin {
  readonly #singles = new Map<number, Slot>();
  readonly #pairs = new Map<number, Slot>();
  /** A single's place is kept when another context takes its slot's follower. */
  readonly #written = new Map<number, number>();

  static key(serial: number, index: number): number {
    return hashed(hashed(serial, index), index);
  }

  /** Token number `at`; `before` are the three tokens that precede it, the latest first. */
  update(key: number, before: readonly number[], token: number, at: number): void {
    const [first = 0, second = 0, third = 0] = before;
    const hash = hashed(key, first);
    put(this.#singles, hash >>> 17, hash, token);
    this.#written.set(hash >>> 17, at);
    const skipHash = hashed(hashed(key, second), third);
    const skipped = seen(this.#pairs, skipHash >>> 16, skipHash);
    if (skipped !== null) skipped.skip = raised(skipped.skip, token);
    const two = hashed(hash, second);
    put(this.#pairs, two >>> 16, two, token);
  }

  follower(key: number, before: readonly number[], context: SequenceContext): Follower | null {
    const [first = 0, second = 0, third = 0] = before;
    const hash = hashed(key, first);
    if (context === "one") return seen(this.#singles, hash >>> 17, hash)?.follower ?? null;
    const pair = context === "two" ? hashed(hash, second) : hashed(hashed(key, second), third);
    const slot = seen(this.#pairs, pair >>> 16, pair);
    return (context === "two" ? slot?.follower : slot?.skip) ?? null;
  }

  age(key: number, first: number, length: number): number {
    return octaves(length - (this.#written.get(hashed(key, first) >>> 17) ?? 0), 7);
  }

  lastUse(key: number, first: number, token: number, length: number): number {
    if (token === first) return 2;
    const hash = hashed(key, token);
    if (seen(this.#singles, hash >>> 17, hash) === null) return 1;
    return 2 + octaves(length - (this.#written.get(hash >>> 17) ?? 0), 15);
  }
}

function seen(table: Map<number, Slot>, place: number, hash: number): Slot | null {
  const slot = table.get(place);
  return slot !== undefined && slot.check === (hash & 0xffff) ? slot : null;
}

function put(table: Map<number, Slot>, place: number, hash: number, token: number): void {
  const slot = seen(table, place, hash);
  if (slot !== null) slot.follower = raised(slot.follower, token);
  else {
    const follower = raised(null, token);
    table.set(place, { check: hash & 0xffff, follower, skip: null });
  }
}

function raised(found: Follower | null, token: number): Follower {
  if (found === null) return { token, earlier: NONE, run: 1 };
  if (found.token === token) return { ...found, run: Math.min(found.run + 1, 63) };
  return { token, earlier: found.token, run: 1 };
}

/** 0 new; 1-4 the last follower, 5-8 the one before, 9-12 neither of one, 13-16 neither of two; by the run. */
export function followerClass(found: Follower | null, token: number): number {
  if (found === null) return 0;
  const run = Math.min(found.run, 4);
  if (found.token === token) return run;
  return (found.earlier === token ? 4 : found.earlier === NONE ? 8 : 12) + run;
}

/** A context of the cross-request cache: its occurrences, and its most frequent tokens with theirs. */
interface Context {
  check: number;
  count: number;
  tokens: { token: number; count: number }[];
}

export class CrossNgramsTwin {
  readonly #singles = new Map<number, Context>();
  /** A pair's own context and three of triples that end with it. */
  readonly #lines = new Map<number, Context[]>();

  update(before: readonly number[], token: number): void {
    if (token > TOKEN_BITS_MAX) return;
    const [first = 0, second = 0, third = 0] = before;
    const one = hashed(0, first);
    raiseContext(this.#single(one), one & 0xffff, token);
    const two = hashed(one, second);
    const line = this.#line(two);
    raiseContext(line[0] as Context, two & 0xffff, token);
    const three = hashed(two, third) & 0xffff;
    raiseContext(tripleOf(line, three), three, token);
  }

  /** The context of `order` tokens; null if it is new. */
  context(before: readonly number[], order: number): Context | null {
    const [first = 0, second = 0, third = 0] = before;
    const one = hashed(0, first);
    const two = hashed(one, second);
    const three = hashed(two, third) & 0xffff;
    if (order === 1) return known(this.#single(one), one & 0xffff);
    const line = this.#line(two);
    if (order === 2) return known(line[0] as Context, two & 0xffff);
    return known(tripleOf(line, three), three);
  }

  #single(hash: number): Context {
    const place = hash >>> 19;
    const context = this.#singles.get(place) ?? blank();
    this.#singles.set(place, context);
    return context;
  }

  #line(hash: number): Context[] {
    const place = hash >>> 17;
    const line = this.#lines.get(place) ?? [blank(), blank(), blank(), blank()];
    this.#lines.set(place, line);
    return line;
  }
}

const blank = (): Context => ({ check: 0, count: 0, tokens: [] });

function known(context: Context, check: number): Context | null {
  return context.check === check && context.count !== 0 ? context : null;
}

function tripleOf(line: readonly Context[], check: number): Context {
  const triples = line.slice(1);
  const found = triples.find((triple) => triple.check === check);
  if (found !== undefined) return found;
  return triples.reduce((least, triple) => (triple.count < least.count ? triple : least));
}

function halve(context: Context): void {
  context.count >>= 1;
  for (const one of context.tokens) one.count >>= 1;
}

function raiseContext(context: Context, check: number, token: number): void {
  if (context.check !== check || context.count === 0) {
    if (context.count > 2) {
      halve(context);
      return;
    }
    Object.assign(context, { check, count: 1, tokens: [{ token, count: 1 }] });
    return;
  }
  if (context.count === 255) halve(context);
  context.count += 1;
  const { tokens } = context;
  let place = tokens.findIndex((one) => one.count === 0 || one.token === token);
  if (place < 0 && tokens.length === 3) {
    const last = tokens[2];
    if (last !== undefined) last.count -= 1;
    return;
  }
  if (place < 0) place = tokens.length;
  const count = (tokens[place]?.count ?? 0) + 1;
  tokens[place] = { token, count };
  for (; place > 0 && (tokens[place - 1]?.count ?? 0) < count; place -= 1) {
    const other = tokens[place - 1];
    if (other === undefined) break;
    tokens[place - 1] = { token, count };
    tokens[place] = other;
  }
}

/** The token at `place` of a context, NONE if it is missing or rare. */
export function crossToken(context: Context | null, place: number): number {
  const found = context?.tokens[place];
  if (context === null || found === undefined || found.count === 0) return NONE;
  return place !== 0 && found.count * 16 <= context.count ? NONE : found.token;
}

export function crossFrequency(context: Context | null): number {
  return context === null ? 0 : (context.tokens[0]?.count ?? 0) / context.count;
}

export function crossClass(context: Context | null, token: number): number {
  if (context === null) return 0;
  const count = context.tokens.find((one) => one.token === token)?.count ?? 0;
  if (count === 0) return 1 + Math.min(6, countClass(context.count));
  if (count >= context.count) return 8 + countClass(count);
  const ratio = Math.fround(context.count / count);
  const exponent = Math.floor(Math.log2(ratio));
  const quarters = 4 * exponent + Math.floor((ratio / 2 ** exponent - 1) * 4);
  return 8 + ((1 + Math.min(8, quarters)) << 3) + countClass(count);
}
