// A TCP proxy between the sidecar and one worker process, whose connections can be cut, held and slowed. Bytes keep their
// order, and none is changed.

import { createServer, connect as dial, type Server, type Socket } from "node:net";
import { assert } from "../../../src/core/base/assert.ts";

/** One direction of one connection. */
class Pipe {
  readonly #to: Socket;
  readonly #queue: { readonly bytes: Uint8Array; readonly dueMs: number }[] = [];
  #timer: ReturnType<typeof setTimeout> | null = null;
  isHeld: boolean;

  constructor(to: Socket, isHeld: boolean) {
    this.#to = to;
    this.isHeld = isHeld;
  }

  push(bytes: Uint8Array, latencyMs: number): void {
    const dueMs = performance.now() + latencyMs;
    const last = this.#queue.at(-1);
    this.#queue.push({ bytes, dueMs: Math.max(dueMs, last?.dueMs ?? 0) });
    this.flush();
  }

  /** Sends what is due, and comes back for the rest. */
  flush(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    if (this.isHeld) return;
    for (;;) {
      const [first] = this.#queue;
      if (first === undefined) return;
      const waitMs = first.dueMs - performance.now();
      if (waitMs > 0) {
        this.#timer = setTimeout(() => this.flush(), waitMs);
        return;
      }
      this.#queue.shift();
      this.#to.write(first.bytes);
    }
  }

  end(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#queue.length = 0;
  }
}

interface Connection {
  readonly sockets: readonly Socket[];
  readonly pipes: readonly Pipe[];
}

export class LinkProxy {
  readonly #server: Server;
  readonly #targetPort: number;
  readonly #connections = new Set<Connection>();
  #isRefusing = false;
  #isHeld = false;
  #latencyMs = 0;

  /** Use `listen`. */
  constructor(server: Server, targetPort: number) {
    this.#server = server;
    this.#targetPort = targetPort;
    server.on("connection", (socket) => this.#accept(socket));
  }

  static async listen(targetPort: number): Promise<LinkProxy> {
    const server = createServer();
    const proxy = new LinkProxy(server, targetPort);
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(0, "127.0.0.1", resolve);
    });
    return proxy;
  }

  get port(): number {
    const address = this.#server.address();
    assert(address !== null && typeof address === "object", "a proxy that listens has a port");
    return address.port;
  }

  /** Nothing passes: it is cut or held. */
  get isBroken(): boolean {
    return this.#isRefusing || this.#isHeld;
  }

  /** Ends every connection, and refuses new ones until `heal`. */
  cut(): void {
    this.#isRefusing = true;
    for (const { sockets } of [...this.#connections]) for (const one of sockets) one.destroy();
  }

  /** Holds every byte until `heal`. */
  hold(): void {
    this.#isHeld = true;
    for (const { pipes } of this.#connections) for (const pipe of pipes) pipe.isHeld = true;
  }

  /** Bytes that come from now on are late. */
  slow(latencyMs: number): void {
    this.#latencyMs = latencyMs;
  }

  heal(): void {
    this.#isRefusing = false;
    this.#isHeld = false;
    this.#latencyMs = 0;
    for (const { pipes } of this.#connections) {
      for (const pipe of pipes) {
        pipe.isHeld = false;
        pipe.flush();
      }
    }
  }

  async close(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #accept(client: Socket): void {
    if (this.#isRefusing) {
      client.destroy();
      return;
    }
    const worker = dial(this.#targetPort, "127.0.0.1");
    const up = new Pipe(worker, this.#isHeld);
    const down = new Pipe(client, this.#isHeld);
    const connection = { sockets: [client, worker], pipes: [up, down] };
    this.#connections.add(connection);
    client.on("data", (bytes: Uint8Array) => up.push(bytes, this.#latencyMs));
    worker.on("data", (bytes: Uint8Array) => down.push(bytes, this.#latencyMs));
    const end = () => {
      this.#connections.delete(connection);
      for (const pipe of connection.pipes) pipe.end();
      for (const socket of connection.sockets) socket.destroy();
    };
    for (const socket of connection.sockets) {
      socket.setNoDelay(true);
      // What it means is reported by `close`, which follows.
      socket.on("error", () => undefined);
      socket.on("close", end);
    }
  }
}
