// A server with the page and the routes that it reads, on an iteration that is computed by nobody: groups of responses
// with lengths from a seed, which grow with every tick. It measures and shows the page without engines on the machine.

import { weightEpoch } from "../../src/core/base/ids.ts";
import { Random } from "../../src/core/base/random.ts";
import { NO_FIGURES, SHOWN_FIGURES } from "../../src/core/rollout/figures.ts";
import type { LiveAnswer } from "../../src/server/live/view.ts";
import { PAGE_HTML } from "../../src/server/page/html.ts";

export interface FeedOptions {
  readonly groups: number;
  readonly size: number;
  readonly workers: number;
  readonly seed: number;
  /** Between two messages; /v1/stream sends four a second. */
  readonly tickMs?: number;
  /** Iterations before this one. */
  readonly earlier?: number;
}

interface Made {
  readonly request: number;
  readonly group: string;
  readonly index: number;
  readonly target: number;
  worker: number;
  offset: number;
  isDone: boolean;
}

/** Length of one iteration, in ticks, if every request ran from the beginning. */
const TICKS = 240;
const SLOTS_SHARE = 0.5;
const MEDIAN_TOKENS = 400;

export class PageFeed {
  readonly url: URL;
  readonly #options: FeedOptions;
  readonly #server: ReturnType<typeof Bun.serve>;
  readonly #made: Made[] = [];
  readonly #timer: ReturnType<typeof setInterval>;
  readonly #samples: object[] = [];
  #ticks = 0;

  constructor(options: FeedOptions) {
    this.#options = options;
    this.#make();
    const handle = (request: Request) => this.#answer(request);
    this.#server = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      fetch: handle,
      websocket: {
        open: (socket) => {
          socket.subscribe("progress");
          socket.send(
            JSON.stringify({ ...this.#frame(), joined: this.#made, finished: this.#finished() }),
          );
        },
        message: () => {},
      },
    });
    this.url = this.#server.url;
    this.#timer = setInterval(() => this.tick(), options.tickMs ?? 250);
  }

  get elapsedS(): number {
    return (this.#ticks * 250) / 1000;
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.#server.stop(true);
  }

  /** Another quarter of a second of the iteration, to everyone who listens. */
  tick(): void {
    const { workers } = this.#options;
    const slots = this.#slots;
    const lengths: object[] = [];
    const finished: object[] = [];
    const running = new Array<number>(workers).fill(0);
    this.#ticks += 1;
    for (const one of this.#made) {
      const at = one.request % workers;
      if (one.isDone || (running[at] ?? 0) >= slots) continue;
      running[at] = (running[at] ?? 0) + 1;
      one.worker = at;
      one.offset = Math.min(one.target, one.offset + Math.ceil((8 * MEDIAN_TOKENS) / TICKS));
      one.isDone = one.offset === one.target;
      const { request, offset: length } = one;
      if (one.isDone) finished.push({ request, length, finish_reason: "stop", weight_epoch: 3 });
      else lengths.push({ request, length });
    }
    if (this.#ticks % 4 === 0) this.#samples.push(this.#progress());
    const frame = { ...this.#frame(), lengths, finished };
    this.#server.publish("progress", JSON.stringify(frame));
  }

  #finished(): object[] {
    const done = this.#made.filter(({ isDone }) => isDone);
    return done.map(({ request, offset: length }) => ({
      request,
      length,
      finish_reason: "stop",
      weight_epoch: 3,
    }));
  }

  get #slots(): number {
    const { groups, size, workers } = this.#options;
    return Math.ceil((groups * size * SLOTS_SHARE) / workers);
  }

  #make(): void {
    const { groups, size, seed } = this.#options;
    const random = new Random(seed, "lengths");
    for (let group = 0; group < groups; group += 1) {
      const shared = random.normal();
      for (let index = 0; index < size; index += 1) {
        const target = Math.ceil(MEDIAN_TOKENS * Math.exp(0.7 * shared + 0.5 * random.normal()));
        const request = this.#made.length;
        const name = `g${group}:prompt-${group}`;
        this.#made.push({
          request,
          group: name,
          index,
          target,
          worker: 0,
          offset: 0,
          isDone: false,
        });
      }
    }
  }

  #frame() {
    return { subscription: "progress", progress: this.#progress() };
  }

  #progress() {
    const { groups, workers } = this.#options;
    const done = this.#made.filter(({ isDone }) => isDone).length;
    const running = Array.from({ length: workers }, () => 0);
    const kv = Array.from({ length: workers }, () => 0);
    for (const { isDone, offset, worker } of this.#made) {
      if (isDone || offset === 0) continue;
      running[worker] = (running[worker] ?? 0) + 1;
      kv[worker] = (kv[worker] ?? 0) + offset;
    }
    const left = this.#made.length - done;
    const longest = Math.max(
      0,
      ...this.#made.map((one) => (one.isDone ? 0 : one.target - one.offset)),
    );
    const leftS = (longest * TICKS) / (8 * MEDIAN_TOKENS) / 4;
    const all = running.reduce((sum, one) => sum + one, 0);
    return {
      iteration: 4,
      is_tail: left > 0 && left <= Math.ceil(this.#made.length / 10),
      elapsed_s: this.elapsedS,
      groups_done: 0,
      groups,
      requests_done: done,
      requests: this.#made.length,
      output_tokens: this.#made.reduce((sum, { offset }) => sum + offset, 0),
      tokens_per_s: all * 4 * Math.ceil((8 * MEDIAN_TOKENS) / TICKS),
      running: all,
      waiting: left - all,
      migrations: this.#ticks * 3,
      preemptions: 0,
      mean_acceptance_length: 1.8,
      eta_s: left === 0 ? null : leftS,
      eta_low_s: left === 0 ? null : leftS * 0.7,
      eta_high_s: left === 0 ? null : leftS * (1.2 + 12 / (this.#ticks + 8)),
      weight_epoch: 3,
      workers: running.map((count, worker) => ({
        worker,
        running: count,
        slots: this.#slots,
        kv_tokens_used: kv[worker] ?? 0,
        kv_tokens: this.#slots * MEDIAN_TOKENS * 2,
      })),
    };
  }

  #answer(request: Request): Response | undefined {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === "/")
      return new Response(PAGE_HTML, { headers: { "content-type": "text/html" } });
    if (pathname === "/v1/stream" && this.#server.upgrade(request, { data: undefined }))
      return undefined;
    if (pathname === "/foretoken/workers") return Response.json({ workers: this.#workers() });
    if (pathname === "/foretoken/live")
      return Response.json(this.#live(searchParams.get("samples") !== "false"));
    return new Response(null, { status: 404 });
  }

  #workers(): object[] {
    const rest = {
      reason: null,
      weights: "bf16-0123456789abcdef",
      weight_version: null,
      stale: false,
    };
    return Array.from({ length: this.#options.workers }, (_, worker) => ({
      worker,
      name: `http://10.0.0.${worker + 1}:8000`,
      state: "ready",
      ...rest,
    }));
  }

  #live(withSamples: boolean): LiveAnswer {
    const groups = new Map<string, number>();
    for (const { group, isDone, offset } of this.#made) {
      if (isDone) groups.set(group, Math.max(offset, groups.get(group) ?? 0));
    }
    const { earlier = 3, workers } = this.#options;
    return {
      state: "serving",
      reason: null,
      state_s: 100,
      iteration: 4,
      weight_epoch: weightEpoch(3),
      ...(withSamples
        ? {
            samples: {
              at_s: [],
              tail: [],
              tokens_per_s: [],
              eta_low_s: [],
              eta_high_s: [],
              workers: {},
            },
          }
        : {}),
      estimates: { groups: [...groups.keys()], tokens: [...groups.values()] },
      figures: SHOWN_FIGURES.map((figure) => ({ ...figure, value: this.#ticks })),
      iterations: Array.from({ length: earlier }, (_, i) => ({
        ...NO_FIGURES,
        number: i + 1,
        ended_at_s: 0,
        weight_epoch: i,
        mean_acceptance_length: 1.8,
        requests: this.#made.length,
        wall_s: 100 - 8 * i,
        tail_s: 30 - 5 * i,
        tokens_per_s: 9000 + 900 * i,
        eta_inside: 0.8 + i / 20,
      })),
      waited_for: [],
      stragglers: this.#made
        .filter(({ isDone, offset }) => !isDone && offset > 0)
        .sort((a, b) => b.offset - a.offset)
        .slice(0, 5)
        .map(({ request, group, index, offset, worker }) => ({
          request,
          group,
          index,
          length: offset,
          siblings_median: 400,
          worker,
          beside: 3,
          tokens_per_s: 50,
          reason: `${(offset / 400).toFixed(1)} times its siblings' median, with 3 others on http://10.0.0.${worker + 1}:8000`,
        })),
      drafts: Array.from({ length: workers }, (_, worker) => ({
        worker,
        drafted_tokens: 900 * this.#ticks,
        accepted_tokens: 500 * this.#ticks,
        mean_acceptance_length: 1.8,
        drafting_s: this.#ticks / 90,
        saved_s: worker % 2 === 0 ? null : this.#ticks / 30 - 5,
        saved_s_max: this.#ticks / 20,
      })),
    };
  }
}
