// The HTTP server of a stand-in, which can break every connection and come back at the same port.

import http, { type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { EngineOptions, StandInEngine } from "./engine.ts";
import { type Fault, type FaultPlan, NO_FAULTS } from "./faults.ts";

export type Answer = (request: IncomingMessage, response: ServerResponse, text: string) => void;

const KEEP_ALIVE_MS = 5_000;
const ATTEMPT_MS = 20;
const ATTEMPTS_MAX = 3_000;

export class StandInServer {
  readonly #answer: Answer;
  #server: http.Server;
  /** Whether it is down, and comes back. */
  isRestarting = false;
  #port = 0;
  isStopped = false;

  /** `answer` is called with each request and its whole body. */
  constructor(answer: Answer) {
    this.#answer = answer;
    this.#server = this.#newServer();
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** A port that was given up for a restart may be that of another process's connection for a while. */
  async listen(port: number): Promise<void> {
    for (let attempt = 1; !(await this.#listens(port)); attempt += 1) {
      if (attempt === ATTEMPTS_MAX) throw new Error(`port ${port} stays in use`);
      await new Promise<void>((resolve) => setTimeout(resolve, ATTEMPT_MS));
      if (this.isStopped) return;
      this.#server = this.#newServer();
    }
    this.#port = (this.#server.address() as AddressInfo).port;
  }

  #listens(port: number): Promise<boolean> {
    return new Promise((resolve) => {
      this.#server.once("error", () => resolve(false));
      this.#server.listen(port, "127.0.0.1", () => {
        this.isRestarting = false;
        resolve(true);
      });
    });
  }

  async stop(): Promise<void> {
    this.isStopped = true;
    await this.#break();
  }

  async restart(downMs: number): Promise<void> {
    this.isRestarting = true;
    await this.#break();
    await new Promise<void>((resolve) => setTimeout(resolve, downMs));
    if (this.isStopped) return;
    this.#server = this.#newServer();
    await this.listen(this.#port);
  }

  async #break(): Promise<void> {
    const server = this.#server;
    server.closeAllConnections();
    await new Promise<void>((resolve) => server.close(() => resolve()));
  }

  #newServer(): http.Server {
    const server = http.createServer((request, response) => {
      request.on("error", () => {});
      response.on("error", () => {});
      const parts: Buffer[] = [];
      request.on("data", (part: Buffer) => parts.push(part));
      request.on("end", () => this.#answer(request, response, Buffer.concat(parts).toString()));
    });
    server.keepAliveTimeout = KEEP_ALIVE_MS;
    return server;
  }
}

/** Base of stand-ins for engines of any kind: a server, an engine that restarts with it, and the requests received. */
export abstract class StandIn<O extends StandInBase> {
  readonly options: O;
  engine: StandInEngine;
  /** Bodies of the requests for tokens that came, newest last; the first 10,000. */
  readonly bodies: Body[] = [];
  /** Faults shown, by kind. */
  readonly shown = new Map<string, number>();
  restarts = 0;
  /** Requests for tokens so far. */
  protected arrivals = 0;
  readonly #server = new StandInServer((...call) => this.answer(...call));

  protected constructor(options: O) {
    this.options = options;
    this.engine = this.newEngine();
  }

  protected async listen(port = 0): Promise<this> {
    await this.#server.listen(port);
    return this;
  }

  get url(): string {
    return this.#server.url;
  }

  get isStopped(): boolean {
    return this.#server.isStopped;
  }

  async stop(): Promise<void> {
    await this.#server.stop();
  }

  /** Breaks every connection, forgets everything, and comes back after `downMs`, at the same port, unless it is down. */
  async restart(): Promise<void> {
    if (this.#server.isRestarting) return;
    this.restarts += 1;
    this.engine = this.newEngine();
    this.forget();
    await this.#server.restart(this.options.downMs);
  }

  protected abstract answer(request: IncomingMessage, response: ServerResponse, text: string): void;
  protected abstract newEngine(): StandInEngine;
  /** Clears the further state that a restart loses. */
  protected abstract forget(): void;

  protected kept(body: Body): void {
    if (this.bodies.length < 10_000) this.bodies.push(body);
  }

  /** The fault of the request that arrives now. */
  protected nextFault(prompt: readonly number[]): Fault | null {
    const fault = this.options.faults(this.arrivals, prompt);
    this.arrivals += 1;
    return fault;
  }

  protected count({ kind }: Fault): void {
    this.shown.set(kind, (this.shown.get(kind) ?? 0) + 1);
  }

  /** Shows a fault that comes before any token; false: it is none of those. */
  protected refuses(
    response: ServerResponse,
    fault: Fault | null,
    errorOf: (status: number, message: string) => unknown,
  ): boolean {
    if (fault === null || !EARLY.includes(fault.kind)) return false;
    this.count(fault);
    switch (fault.kind) {
      case "unavailable":
        response.setHeader("retry-after", "0");
        send(response, 503, errorOf(503, "the stand-in is not available"));
        break;
      case "full":
        // vLLM has begun the answer where a stream is asked for: the error is within.
        if (this.arrivals % 2 === 0) send(response, 503, errorOf(503, QUEUE_FULL));
        else {
          response.writeHead(200, { "content-type": "text/event-stream" });
          response.end(`data: ${JSON.stringify(errorOf(503, QUEUE_FULL))}\n\ndata: [DONE]\n\n`);
        }
        break;
      case "broken":
        send(response, 500, errorOf(500, "the stand-in is broken"));
        break;
      case "restart":
        void this.restart();
        break;
    }
    return true;
  }
}

const QUEUE_FULL =
  "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.";
const EARLY: readonly string[] = ["unavailable", "full", "broken", "hang", "restart"];

export type Body = Readonly<Record<string, unknown>>;

export interface StandInBase extends EngineOptions {
  readonly faults: FaultPlan;
  /** How long it is silent when a request is "preempted", and down when it restarts, ms. */
  readonly silenceMs: number;
  readonly downMs: number;
}

export const BASE_DEFAULTS: StandInBase = {
  slots: 64,
  blocks: 4096,
  blockSize: 16,
  contextTokens: 4096,
  stepMs: 0,
  faults: NO_FAULTS,
  silenceMs: 20,
  downMs: 10,
};

/** JSON; bytes as they are. */
export function send(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(body instanceof Uint8Array ? body : JSON.stringify(body));
}

export function sendText(response: ServerResponse, status: number, text: string): void {
  response.writeHead(status, { "content-type": "text/plain" });
  response.end(text);
}
