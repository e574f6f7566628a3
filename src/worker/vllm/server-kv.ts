// KV as one server with a connector has it: when a request may be sent there, what is shown to it, what it stored, and
// what all that took. It decides no move (kv-share.ts) and opens no chunk's stream (worker.ts).
//
// vLLM 0.32's ExampleConnector ends its engine in cases that ordinary requests come into, so a request enters by the
// name that the connector will look for and the name that it will store (a line for each name), and leaves when its
// first token shows that it has done both:
// - of L = n * block + 1 tokens (an odd request) it looks for the first (n - 1) blocks, stores n, and counts what the
//   engine has beyond those that it finds as less than nothing (ValueError: Counters can only be incremented by
//   non-negative amounts). Such a request must not find anything: it enters when nobody is there who may store what it
//   looks for, and nobody who may enters after it.
// - it believes that what was there when it looked is there when it loads: a name is hidden when nobody is there.

import type { RequestId, WeightEpoch, WorkerId } from "../../base/ids.ts";
import { type Dialect, ENDPOINT_PATHS } from "./body.ts";
import type { TimerClock } from "./clock.ts";
import type { FoundConnector } from "./connectors.ts";
import type { HttpClient } from "./http.ts";
import { LinearCost, MoveJudge } from "./kv-cost.ts";
import { type KvFolder, storedName } from "./kv-folder.ts";
import type { Kept, KvShare } from "./kv-share.ts";
import type { VllmLimits } from "./limits.ts";
import { MoveCounts } from "./move-counts.ts";
import type { EventUsage } from "./stream-event.ts";

/** KV that the request's next chunk is to find. */
export interface Plan {
  readonly tokens: number;
  /** Of them, those that the server would have to compute without it. */
  readonly saved: number;
  /** null: it finds it by itself. */
  readonly kept: Kept | null;
}

/** One request of one chunk, while the server may be looking for its KV. */
interface Visit {
  readonly requestId: RequestId;
  readonly epoch: WeightEpoch;
  /** null: no folder. */
  readonly place: Place | null;
  readonly plan: Plan | null;
  readonly sentMs: number;
  firstMs: number | null;
  isIn: boolean;
  isJudged: boolean;
}

/** Where a request stands; the lines are one but for an odd request of more than one token. */
interface Place {
  readonly isOdd: boolean;
  /** Of the name that it looks for. */
  readonly looks: Line;
  /** Of the name that it stores. */
  readonly stores: Line;
  readonly storedTokens: number;
}

interface Waiter {
  readonly isOdd: boolean;
  readonly enter: () => void;
}

/** Those who are in, and those who wait, in order. `usual`: those who may store the name. */
interface Line {
  readonly name: string;
  usual: number;
  odd: number;
  /** Of them, those of an earlier epoch: what they store may be of the old weights, so nobody else enters. */
  stale: number;
  waiting: Waiter[];
  /** What the server finds under the name, if it was shown it. */
  shown: Kept | null;
}

export interface ServerKvParts {
  readonly workerId: WorkerId;
  readonly epoch: WeightEpoch;
  readonly found: FoundConnector;
  /** null: the connector has none. */
  readonly folder: KvFolder | null;
  readonly blockSize: number;
  readonly dialect: Dialect;
  readonly client: HttpClient;
  readonly clock: TimerClock;
  readonly limits: VllmLimits;
  readonly cacheSalt: string;
  readonly share: KvShare;
}

const PUBLISHES_MAX = 4;
/** Before everything else. */
const PUBLISH_PRIORITY = -(2 ** 31);

export class ServerKv {
  readonly workerId: WorkerId;
  readonly folder: KvFolder | null;
  readonly counts: MoveCounts;
  readonly judge = new MoveJudge();
  /** From sending a request to its first token: over the tokens computed, and over those loaded. */
  readonly prefillCost = new LinearCost();
  readonly loadCost = new LinearCost();
  /** Over the tokens published. */
  readonly publishCost = new LinearCost();
  readonly #parts: ServerKvParts;
  readonly #lines = new Map<string, Line>();
  readonly #visits = new Map<object, Visit>();
  /** Visits of requests that the server may be looking for, or storing. */
  readonly #inside = new Set<Visit>();
  readonly #plans = new Map<RequestId, Plan>();
  readonly #kept = new Map<string, Kept>();
  #epoch: WeightEpoch;
  #publishes = 0;
  #isClosed = false;
  #problem: string | null;

  constructor(parts: ServerKvParts) {
    this.#parts = parts;
    this.workerId = parts.workerId;
    this.folder = parts.folder;
    this.#epoch = parts.epoch;
    this.#problem = parts.found.problem;
    this.counts = new MoveCounts(parts.found.className);
    if (parts.share.join(this)) this.#problem = "another server has the same folder";
  }

  /** Why no KV moves from or to this server; null: it does. */
  get problem(): string | null {
    return this.#problem;
  }

  get epoch(): WeightEpoch {
    return this.#epoch;
  }

  /** Its keys may not tell weights apart, and what it holds is out of reach: the server itself must drop it. */
  get needsReset(): boolean {
    return this.folder === null && this.#parts.found.row?.hasSalt !== true;
  }

  /** All that is computed is found by the others, without a word. */
  get savesOutput(): boolean {
    return this.#parts.found.savesOutput && this.folder === null;
  }

  get canPublish(): boolean {
    return this.#publishes < PUBLISHES_MAX;
  }

  takesFrom(source: ServerKv): boolean {
    const { found, blockSize } = this.#parts;
    const isOfAKind =
      found.className === source.#parts.found.className && blockSize === source.#parts.blockSize;
    return isOfAKind && this.#problem === null && source.#problem === null && source !== this;
  }

  wholeBlocks(tokens: number): number {
    const { blockSize } = this.#parts;
    return Math.floor(tokens / blockSize) * blockSize;
  }

  /** Tokens that can be loaded of a text of `length`: whole blocks, and at least one token is computed. */
  loadable(length: number): number {
    if (this.folder === null) return this.wholeBlocks(Math.max(0, length - 1));
    return this.#isOdd(length) ? 0 : this.wholeBlocks(Math.max(0, length - 2));
  }

  nameOf(tokens: Int32Array, count: number): string | null {
    return this.folder === null ? null : storedName(tokens, count);
  }

  kept(name: string): Kept | null {
    return this.#kept.get(name) ?? null;
  }

  add(kept: Kept): void {
    this.#kept.set(kept.kv.name, kept);
  }

  /** Off the disk, as soon as no server is shown it any more. */
  remove(kept: Kept): void {
    if (this.#kept.get(kept.kv.name) === kept) this.#kept.delete(kept.kv.name);
    if (kept.isDropped && kept.shown === 0) this.folder?.discard(kept.kv.path);
  }

  plan(requestId: RequestId, plan: Plan): void {
    this.#plans.set(requestId, plan);
  }

  unplan(requestId: RequestId): void {
    if (this.#plans.delete(requestId)) this.judge.missed();
  }

  /**
   * The request may be sent now (null); else `again` is called when it may be, and the result takes it out of the
   * line. `visitor` stands for it until `left`.
   */
  enter(
    visitor: object,
    request: { requestId: RequestId; tokens: Int32Array },
    again: () => void,
  ): (() => void) | null {
    const { requestId, tokens } = request;
    const place = this.#placeOf(tokens);
    const line = place === null ? null : closedTo(place);
    if (place !== null && line !== null) {
      const waiter: Waiter = { isOdd: place.isOdd && line === place.looks, enter: again };
      line.waiting.push(waiter);
      this.#close(line === place.looks ? place.stores : place.looks);
      return () => this.#unwait(line, waiter);
    }
    if (place !== null) {
      place.stores.usual += 1;
      if (place.isOdd) {
        place.looks.odd += 1;
        this.folder?.hide(place.looks.name);
      }
    }
    const plan = this.#planFor(requestId, place);
    if (plan === null) this.#showOwn(place);
    const visit = {
      requestId,
      epoch: this.#epoch,
      place,
      plan,
      sentMs: this.#parts.clock.nowMs(),
      firstMs: null,
      isIn: true,
      isJudged: plan === null,
    };
    this.#visits.set(visitor, visit);
    this.#inside.add(visit);
    return null;
  }

  /** Its first token came: the server has looked and stored. */
  first(visitor: object): void {
    const visit = this.#visits.get(visitor);
    if (visit === undefined || visit.firstMs !== null) return;
    visit.firstMs = this.#parts.clock.nowMs() - visit.sentMs;
    this.#leave(visit, { isWanted: true });
  }

  /** What it cost is known, and whether its KV was found: in the server's own words. */
  used(visitor: object, { promptTokens, cachedTokens }: EventUsage): void {
    const visit = this.#visits.get(visitor);
    if (visit?.firstMs == null) return;
    const { plan, firstMs } = visit;
    if (plan !== null && cachedTokens !== null && cachedTokens >= plan.tokens) {
      visit.isJudged = true;
      this.loadCost.observe(plan.tokens, firstMs);
      this.judge.arrived();
      this.counts.arrived(plan.saved);
      return;
    }
    if (cachedTokens !== null) this.prefillCost.observe(promptTokens - cachedTokens, firstMs);
    this.#miss(visit);
  }

  /** Its stream is over, or was never opened. */
  left(visitor: object): void {
    const visit = this.#visits.get(visitor);
    if (visit === undefined) return;
    this.#visits.delete(visitor);
    this.#miss(visit);
    if (!visit.isIn) return;
    this.#parts.clock.after(this.#parts.limits.leaveMs, () =>
      this.#leave(visit, { isWanted: false }),
    );
  }

  /** The worker has computed so much of the request's text; what it has of it later is whole blocks of that. */
  computed(requestId: RequestId, tokens: number): void {
    this.#parts.share.computed(requestId, this.workerId, tokens);
  }

  /** The request is done with. */
  forget(requestId: RequestId): void {
    this.#parts.share.forget(requestId);
  }

  /** See KvShare.prepare. */
  prepare(requestId: RequestId, tokens: Int32Array): Promise<void> | null {
    return this.#parts.share.prepare({ requestId, to: this.workerId, tokens });
  }

  /**
   * Has the server store the first `tokens` of the request's text. undefined: it did not. null: it is stored where
   * the connector puts it.
   */
  async publish(
    requestId: RequestId,
    text: Int32Array,
    tokens: number,
  ): Promise<Kept | null | undefined> {
    const { clock } = this.#parts;
    // Two tokens more: the shortest text whose first `tokens` the connector both looks for and stores.
    const sent = this.folder === null ? text : text.subarray(0, tokens + 2);
    const epoch = this.#epoch;
    const visitor = {};
    this.#publishes += 1;
    try {
      await this.#entered(visitor, { requestId, tokens: sent });
      const startMs = clock.nowMs();
      const isDone = await this.#send(sent, epoch);
      const visit = this.#visits.get(visitor);
      if (!isDone || visit === undefined || this.#epoch !== epoch) return undefined;
      this.first(visitor);
      const ms = clock.nowMs() - startMs;
      this.publishCost.observe(tokens, ms);
      this.counts.published(tokens, ms);
      if (this.folder === null) return null;
      const kept = visit.place === null ? null : this.kept(visit.place.stores.name);
      return kept !== null && kept.epoch === epoch && this.folder.isWhole(kept.kv)
        ? kept
        : undefined;
    } finally {
      this.#publishes -= 1;
      this.left(visitor);
    }
  }

  /** Weights of `epoch` now. Returns why KV of older ones may be left; null: none is. */
  advance(epoch: WeightEpoch): string | null {
    this.#epoch = epoch;
    for (const { place } of this.#inside)
      if (place !== null) place.stores.stale = place.stores.usual;
    for (const requestId of [...this.#plans.keys()]) this.unplan(requestId);
    this.#parts.share.clear(this);
    const problem = this.folder?.clear() ?? null;
    for (const line of this.#lines.values()) this.#noLongerShown(line);
    return problem;
  }

  close(): void {
    this.#isClosed = true;
    this.#parts.share.leave(this);
    this.folder?.clear();
    for (const line of this.#lines.values()) this.#noLongerShown(line);
  }

  #isOdd(length: number): boolean {
    return length % this.#parts.blockSize === 1;
  }

  #planFor(requestId: RequestId, place: Place | null): Plan | null {
    const plan = this.#plans.get(requestId) ?? null;
    this.#plans.delete(requestId);
    if (plan === null || plan.kept === null) return plan;
    const { kept } = plan;
    const isRight = place !== null && !place.isOdd && kept.kv.name === place.looks.name;
    if (isRight && this.#show(place.looks, kept)) return plan;
    this.judge.missed();
    this.counts.missed(plan.saved);
    return null;
  }

  /** What this server has stored itself before need not be stored again. */
  #showOwn(place: Place | null): void {
    if (place === null || place.isOdd) return;
    const own = this.kept(place.looks.name);
    if (own !== null) this.#show(place.looks, own);
  }

  /** Whether the server finds it now, or the same from somewhere else. */
  #show(line: Line, kept: Kept): boolean {
    if (line.shown !== null || this.folder?.isShown(line.name) === true) return true;
    const isRight = kept.epoch === this.#epoch && !kept.isDropped;
    if (!isRight || this.folder?.show(kept.kv) !== true) return false;
    line.shown = kept;
    kept.shown += 1;
    return true;
  }

  #noLongerShown(line: Line): void {
    const kept = line.shown;
    if (kept === null) return;
    line.shown = null;
    kept.shown -= 1;
    if (kept.isDropped) kept.server.remove(kept);
  }

  #miss(visit: Visit): void {
    if (visit.isJudged || visit.plan === null) return;
    visit.isJudged = true;
    this.judge.missed();
    this.counts.missed(visit.plan.saved);
  }

  #leave(visit: Visit, options: { isWanted: boolean }): void {
    if (!visit.isIn || this.#isClosed) return;
    visit.isIn = false;
    this.#inside.delete(visit);
    const { place } = visit;
    if (place === null) return;
    const { looks, stores } = place;
    stores.usual -= 1;
    if (place.isOdd) looks.odd -= 1;
    const isStale = visit.epoch !== this.#epoch;
    if (isStale) stores.stale -= 1;
    const isWanted = options.isWanted && !isStale;
    if (stores.usual === 0) this.#sweep(visit.requestId, place, { isWanted });
    this.#next(stores);
    if (looks !== stores) this.#next(looks);
  }

  /** Takes what the server stored, or hides what it was shown. */
  #sweep(requestId: RequestId, place: Place, { isWanted }: { isWanted: boolean }): void {
    const { name } = place.stores;
    const taken = this.folder?.take(name, place.storedTokens) ?? null;
    if (taken === null) {
      this.folder?.hide(name);
      this.#noLongerShown(place.stores);
    } else if (isWanted && this.#problem === null) this.#parts.share.keep(this, requestId, taken);
    else this.folder?.discard(taken.path);
  }

  #placeOf(tokens: Int32Array): Place | null {
    if (this.folder === null) return null;
    const { length } = tokens;
    const looks = this.#lineOf(storedName(tokens, this.wholeBlocks(Math.max(0, length - 2))));
    const isOdd = this.#isOdd(length);
    const storedTokens = this.wholeBlocks(length - 1);
    const stores = isOdd ? this.#lineOf(storedName(tokens, storedTokens)) : looks;
    return { isOdd, looks, stores, storedTokens };
  }

  #lineOf(name: string): Line {
    const line = this.#lines.get(name) ?? {
      name,
      usual: 0,
      odd: 0,
      stale: 0,
      waiting: [],
      shown: null,
    };
    this.#lines.set(name, line);
    return line;
  }

  #unwait(line: Line, waiter: Waiter): void {
    line.waiting = line.waiting.filter((one) => one !== waiter);
    this.#next(line);
  }

  /** Lets in whoever may come in now. */
  #next(line: Line): void {
    const { waiting } = line;
    line.waiting = [];
    // Each enters, or joins the line again.
    for (const { enter } of waiting) enter();
    this.#close(line);
  }

  /** A line in which nobody is is forgotten. */
  #close(line: Line): void {
    const isOver = line.usual + line.odd + line.waiting.length === 0;
    if (isOver && this.#lines.get(line.name) === line) this.#lines.delete(line.name);
  }

  #entered(visitor: object, request: { requestId: RequestId; tokens: Int32Array }): Promise<void> {
    return new Promise((resolve) => {
      const attempt = () => {
        if (this.enter(visitor, request, attempt) === null) resolve();
      };
      attempt();
    });
  }

  async #send(tokens: Int32Array, epoch: WeightEpoch): Promise<boolean> {
    const { client, dialect, cacheSalt, limits } = this.#parts;
    const isGenerate = dialect.endpoint === "generate";
    const params = { max_tokens: 1, temperature: 0, ignore_eos: true };
    const body = {
      model: dialect.model,
      cache_salt: `${cacheSalt}-w${epoch}`,
      ...(dialect.hasPriorities ? { priority: PUBLISH_PRIORITY } : {}),
      ...(isGenerate
        ? { sampling_params: { ...params, detokenize: false } }
        : { ...params, add_special_tokens: false }),
    };
    const ids = `"${isGenerate ? "token_ids" : "prompt"}":[${tokens.join(",")}]`;
    const answer = await client.answer(
      {
        method: "POST",
        path: ENDPOINT_PATHS[dialect.endpoint],
        body: `{${ids},${JSON.stringify(body).slice(1)}`,
      },
      limits.checkMsMax,
    );
    return answer.kind === "answer" && answer.status === 200;
  }
}

/** The line in which a request has to wait; null: it may enter. */
function closedTo({ isOdd, looks, stores }: Place): Line | null {
  const isShut = (line: Line) =>
    line.stale > 0 || line.odd > 0 || line.waiting.some((one) => one.isOdd);
  if (!isOdd) return isShut(stores) ? stores : null;
  if (looks.usual > 0 || (looks === stores && looks.odd > 0)) return looks;
  return looks !== stores && isShut(stores) ? stores : null;
}
