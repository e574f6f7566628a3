// The data plane behind a real HTTP server, over simulated workers that a test steps: every token that comes
// out is known beforehand.

import { onTestFinished } from "bun:test";
import { ADAPTER_DATA, ADAPTER_SESSION_HEADERS } from "../../../src/adapters/list.ts";
import type { Later } from "../../../src/core/base/clock.ts";
import type { RequestSpec } from "../../../src/core/request/request.ts";
import { type HttpServer, serveHttp } from "../../../src/server/http.ts";
import { DataPlane, dataRoutes } from "../../../src/server/openai/data-plane.ts";
import type { DataPlaneLimits } from "../../../src/server/openai/plan.ts";
import { bound } from "../../../src/server/route.ts";
import { SESSION_ROUTES } from "../../../src/server/trajectories/routes.ts";
import { Trajectories } from "../../../src/server/trajectories/trajectories.ts";
import { WorkerRegistry } from "../../../src/server/worker-registry.ts";
import { ManualTimers } from "../../suite/manual-clock.ts";
import { Bed, untilSettled } from "../../suite/sidecar-bed.ts";
import { eventsOf } from "../../suite/sse.ts";
import { EOS, TinyText, tinyEncoder, VOCABULARY } from "./tiny-text.ts";

const WAIT_MS_MAX = 120_000;

export interface FixtureOptions {
  /** Output tokens after which a response stops by itself; default: 5 + its number modulo 7. */
  readonly lengthOf?: (request: RequestSpec) => number;
  readonly limits?: Partial<DataPlaneLimits>;
  readonly contextTokens?: number;
  readonly requestsMax?: number;
  readonly chunkTokens?: number;
  readonly trajectoryBytesMax?: number;
  /** Default: the server asks for none. */
  readonly apiToken?: string;
  /** The workers take responses in one piece only. */
  readonly whole?: boolean;
}

function noSource(): never {
  throw new Error("no worker joins");
}

/** A fixture that its test closes at the end. */
export function ownFixture(options: FixtureOptions): PlaneFixture {
  const fixture = new PlaneFixture(options);
  onTestFinished(() => fixture.close());
  return fixture;
}

/** One server with two workers. */
export class PlaneFixture extends Bed {
  readonly #http: HttpServer;
  readonly #encoder = tinyEncoder();
  readonly #timers = new ManualTimers();
  readonly failures: unknown[] = [];
  /** Statuses of all answers so far. */
  readonly statuses: number[] = [];

  constructor(options: FixtureOptions = {}) {
    const { contextTokens = 4096, requestsMax = 10_000, chunkTokens = 4 } = options;
    super({
      ...{ workers: 2, slots: 64, kvTokens: 65_536, contextTokens, chunkTokens },
      ...{ vocabularySize: VOCABULARY, isWhole: options.whole ?? false, limits: { requestsMax } },
      lengthOf: options.lengthOf ?? (({ requestId }) => 5 + (requestId % 7)),
    });
    const trajectories = new Trajectories({
      bytesMax: options.trajectoryBytesMax ?? 2 ** 30,
      msMax: 600_000,
      nowMs: () => this.clock.nowMs(),
      version: (of) => `step-${of}`,
      iteration: () => this.sidecar.rollout.meter.iteration,
    });
    const later: Later = (run, ms) => this.#timers.later(run, this.clock.nowMs() + ms);
    const registry = new WorkerRegistry({ sourceOf: noSource, hasFixed: true, drainMs: 0 });
    this.#http = serveHttp({
      host: "127.0.0.1",
      port: 0,
      routes: [
        ...registry.routes(),
        ...bound(SESSION_ROUTES, {
          sidecar: this.sidecar,
          trajectories,
          later,
        }),
        ...dataRoutes(
          new DataPlane({
            sidecar: this.sidecar,
            text: new TinyText(),
            encoder: this.#encoder,
            modelNames: ["tiny"],
            trajectories,
            eosTokenIds: [EOS],
            version: (of) => `step-${of}`,
            sessionHeaders: ADAPTER_SESSION_HEADERS,
            later,
            ...(options.limits === undefined ? {} : { limits: options.limits }),
          }),
          ADAPTER_DATA,
        ),
      ],
      sockets: {},
      apiToken: options.apiToken ?? null,
      bodyBytesMax: 1_000_000,
      frameBytesMax: 1_000_000,
      answered: ({ status }) => this.statuses.push(status),
      failed: (error) => this.failures.push(error),
    });
  }

  get url(): string {
    return this.#http.url.origin;
  }

  /** Sends a request; nothing is generated until the workers are stepped. */
  post(path: string, body: unknown, init: RequestInit = {}): Promise<Response> {
    const headers = { "content-type": "application/json", ...(init.headers ?? {}) };
    const text = typeof body === "string" ? body : JSON.stringify(body);
    return fetch(this.url + path, { ...init, method: "POST", headers, body: text });
  }

  /** Steps the workers until the promise is settled. */
  async until<T>(promise: Promise<T>): Promise<T> {
    return await untilSettled(promise, () => this.step());
  }

  /** Waits for a condition while nothing is stepped. */
  async when(isTrue: () => boolean): Promise<void> {
    const startMs = performance.now();
    while (!isTrue()) {
      if (performance.now() - startMs > WAIT_MS_MAX) throw new Error("the condition never held");
      await new Promise<void>((resolve) => setImmediate(resolve));
    }
  }

  override async step(count = 1): Promise<void> {
    for (let i = 0; i < count; i += 1) {
      for (const worker of this.workers) if (!worker.isIdle) worker.step();
      this.clock.advance(1);
      await new Promise<void>((resolve) => setImmediate(resolve));
    }
  }

  async json(path: string, body: unknown, init: RequestInit = {}): Promise<unknown> {
    const response = await this.until(this.post(path, body, init));
    return await response.json();
  }

  /** All events of a stream, as JSON, and whether it ended with [DONE]. */
  async events(path: string, body: unknown): Promise<{ events: unknown[]; isDone: boolean }> {
    const text = await this.until(this.post(path, body).then((response) => response.text()));
    return eventsOf(text);
  }

  /** Lets the grace and stall times pass. */
  pass(ms: number): void {
    this.clock.advance(ms);
    this.#timers.run(this.clock.nowMs());
  }

  async close(): Promise<void> {
    await this.#http.stop();
    this.#encoder.close();
  }
}
