// A TCP proxy that passes bytes on in small pieces and breaks connections after a set number of bytes,
// or stops reading. For tests of what a connection does to a protocol.

import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

export class CuttingProxy {
  readonly #server: Server;
  readonly #pairs = new Set<readonly [Socket, Socket]>();
  /** Bytes, both ways together, after which the next connections break; null: never. */
  cutAfterBytes: number | null = null;
  /** Connections broken because of it. */
  cuts = 0;
  /** Passes on one byte at a time. */
  dribbles = false;
  #isStalled = false;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async listen(targetPort: () => number): Promise<CuttingProxy> {
    const server = createServer();
    const proxy = new CuttingProxy(server);
    server.on("connection", (near) => proxy.#pass(near, connect(targetPort(), "127.0.0.1")));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Passes nothing on in either direction, and keeps it, as a network that is silent for a while. */
  stall(): void {
    this.#isStalled = true;
    for (const pair of this.#pairs) for (const socket of pair) socket.pause();
  }

  heal(): void {
    this.#isStalled = false;
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
    let left = this.cutAfterBytes;
    const end = () => {
      this.#pairs.delete(pair);
      for (const socket of pair) socket.destroy();
    };
    for (const [from, to] of [pair, [far, near] as const]) {
      from.setNoDelay(true);
      if (this.#isStalled) from.pause();
      from.on("error", end);
      from.on("close", end);
      from.on("data", (bytes: Buffer) => {
        const passed = left === null ? bytes : bytes.subarray(0, left);
        if (left !== null) left -= passed.length;
        if (this.dribbles) for (const byte of passed) to.write(Uint8Array.of(byte));
        else to.write(passed);
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
}
