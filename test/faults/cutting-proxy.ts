// A TCP proxy whose connections can be cut, refused, held and slowed, which breaks them after a set number of bytes, or
// passes bytes on one by one. Bytes keep their order, and none is changed. For tests of what a connection does to a
// protocol, and for chaos runs.

import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

export class CuttingProxy {
  readonly #server: Server;
  readonly #pairs = new Set<readonly [Socket, Socket]>();
  /** Bytes, both ways together, after which the next connections break, or what draws them for each; null: never. */
  cutAfterBytes: number | (() => number) | null = null;
  /** So many connections break because of it; later ones do not. */
  cutsMax = Number.POSITIVE_INFINITY;
  /** Connections broken because of it. */
  cuts = 0;
  /** Passes on one byte at a time. */
  dribbles = false;
  #isStalled = false;
  #isRefusing = false;
  #latencyMs = 0;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async listen(targetPort: () => number): Promise<CuttingProxy> {
    const server = createServer();
    const proxy = new CuttingProxy(server);
    server.on("connection", (near) => {
      if (proxy.#isRefusing) near.destroy();
      else proxy.#pass(near, connect(targetPort(), "127.0.0.1"));
    });
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(0, "127.0.0.1", resolve);
    });
    return proxy;
  }

  /** A proxy before the server of this address. */
  static before(url: string): Promise<CuttingProxy> {
    const port = Number(new URL(url).port);
    return CuttingProxy.listen(() => port);
  }

  /** The proxy as the address of a WebSocket. */
  get url(): string {
    return `ws://127.0.0.1:${this.port}`;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Whether connections are refused or stalled. */
  get isBroken(): boolean {
    return this.#isRefusing || this.#isStalled;
  }

  /** Passes nothing on in either direction, and keeps it, as a network that is silent for a while. */
  stall(): void {
    this.#isStalled = true;
    for (const pair of this.#pairs) for (const socket of pair) socket.pause();
  }

  /** Ends every connection, and refuses new ones until `heal`. */
  refuse(): void {
    this.#isRefusing = true;
    this.cut();
  }

  /** Bytes that come from now on are late. */
  slow(latencyMs: number): void {
    this.#latencyMs = latencyMs;
  }

  heal(): void {
    this.#isStalled = false;
    this.#isRefusing = false;
    this.#latencyMs = 0;
    for (const pair of this.#pairs) for (const socket of pair) socket.resume();
  }

  cut(): void {
    for (const pair of this.#pairs) for (const socket of pair) socket.destroy();
    this.#pairs.clear();
  }

  async close(): Promise<void> {
    this.cut();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }

  #pass(near: Socket, far: Socket): void {
    const pair = [near, far] as const;
    this.#pairs.add(pair);
    const { cutAfterBytes } = this;
    const drawn = typeof cutAfterBytes === "function" ? cutAfterBytes() : cutAfterBytes;
    let left = this.cuts < this.cutsMax ? drawn : null;
    const end = () => {
      this.#pairs.delete(pair);
      for (const socket of pair) socket.destroy();
    };
    for (const [from, to] of [pair, [far, near] as const]) {
      const send = this.#sender(to);
      from.setNoDelay(true);
      if (this.#isStalled) from.pause();
      from.on("error", end);
      from.on("close", end);
      from.on("data", (bytes: Buffer) => {
        const passed = left === null ? bytes : bytes.subarray(0, left);
        if (left !== null) left -= passed.length;
        if (this.dribbles) for (const byte of passed) to.write(Uint8Array.of(byte));
        else send(passed);
        // Ends gracefully, so that what was passed on is read before the end is seen.
        if (left !== null && left <= 0 && this.#pairs.has(pair)) {
          this.#pairs.delete(pair);
          this.cuts += 1;
          to.end();
          from.destroy();
        }
      });
    }
  }

  /** Writes at once, or after the latency; what comes behind bytes that are late is late as well. */
  #sender(to: Socket): (bytes: Uint8Array) => void {
    const late: Uint8Array[] = [];
    let dueMs = 0;
    return (bytes) => {
      if (this.#latencyMs === 0 && late.length === 0) {
        to.write(bytes);
        return;
      }
      late.push(bytes);
      const nowMs = performance.now();
      dueMs = Math.max(dueMs, nowMs + this.#latencyMs);
      // Each timer sends the first, whichever timer that is: the order stays.
      setTimeout(() => {
        const first = late.shift();
        if (first !== undefined && !to.destroyed) to.write(first);
      }, dueMs - nowMs);
    };
  }
}
