// The HTTP server of a stand-in, which can break every connection and come back at the same port.

import http, { type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export type Answer = (request: IncomingMessage, response: ServerResponse, text: string) => void;

const KEEP_ALIVE_MS = 5_000;

export class StandInServer {
  readonly #answer: Answer;
  #server: http.Server;
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

  async listen(port: number): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(port, "127.0.0.1", resolve));
    this.#port = (this.#server.address() as AddressInfo).port;
  }

  async stop(): Promise<void> {
    this.isStopped = true;
    await this.#break();
  }

  async restart(downMs: number): Promise<void> {
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
