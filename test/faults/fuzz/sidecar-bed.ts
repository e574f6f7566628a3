// A whole sidecar in this process whose requests need no sockets: the handlers that it gives to Bun.serve are called
// with requests and frames directly. Its engine computes nothing and accepts every control call.

import type { RunningServer, ServeOptions } from "../../../src/compose/options.ts";
import { present } from "../../../src/core/base/assert.ts";
import type { ControlAnswer, EngineOperation } from "../../../src/core/rollout/operation.ts";
import type { WorkerCommand } from "../../../src/core/rollout/worker.ts";
import { collecting, serveOptions, startServer } from "../../suite/serve-fixture.ts";
import { SimulatedWorker } from "../simulated/worker.ts";

/** Makes tokens as long as something runs, one step per turn of the event loop. */
class SteppingWorker extends SimulatedWorker {
  #isStepping = false;

  override send(commands: readonly WorkerCommand[]): void {
    super.send(commands);
    if (!this.#isStepping) this.#stepSoon();
  }

  override async perform(_operation: EngineOperation): Promise<ControlAnswer> {
    return { status: 200, body: { world_size: 1, is_sleeping: false } };
  }

  #stepSoon(): void {
    this.#isStepping = !this.isDead && !this.isIdle;
    if (!this.#isStepping) return;
    setImmediate(() => {
      this.step();
      this.#stepSoon();
    });
  }
}

interface Handlers {
  readonly fetch: (request: Request, server: object) => Promise<Response | undefined>;
  readonly websocket: {
    readonly open: (socket: FuzzSocket) => void;
    readonly message: (socket: FuzzSocket, data: string | Uint8Array) => void;
    readonly close: (socket: FuzzSocket) => void;
  };
}

/** Replaces Bun's ServerWebSocket. */
export class FuzzSocket {
  readonly data: unknown;
  closed: { readonly code: number; readonly reason: string } | null = null;
  /** Frames that it was sent. */
  frames = 0;

  constructor(data: unknown) {
    this.data = data;
  }

  send(data: string | Uint8Array): number {
    this.frames += 1;
    return data.length;
  }

  getBufferedAmount(): number {
    return 0;
  }

  close(code: number, reason: string): void {
    this.closed ??= { code, reason };
  }
}

export class SidecarBed {
  readonly sidecar: RunningServer;
  readonly #handlers: Handlers;
  /** Errors that are the sidecar's own. */
  readonly #failures: unknown[];

  private constructor(sidecar: RunningServer, handlers: Handlers, failures: unknown[]) {
    this.sidecar = sidecar;
    this.#handlers = handlers;
    this.#failures = failures;
  }

  /** `given`: in place of the options of `bedOptions`. */
  static open(given: Partial<ServeOptions> = {}): Promise<SidecarBed> {
    // One after the other: methods of others are replaced meanwhile.
    const opened = opening.then(() => SidecarBed.#open(given));
    opening = opened.catch(() => {});
    return opened;
  }

  static async #open(given: Partial<ServeOptions>): Promise<SidecarBed> {
    const failures: unknown[] = [];
    const options = { ...bedOptions(failures), ...given };
    const { handlers, sidecar } = await captured(() => startServer(options));
    return new SidecarBed(sidecar, handlers, failures);
  }

  async request(path: string, init: RequestInit = {}): Promise<Response> {
    const request = new Request(`http://127.0.0.1${path}`, init);
    const answer = await this.#handlers.fetch(request, UNCONNECTED);
    return present(answer, "a request that opens no socket is answered");
  }

  /** A socket on the path, as if a client had connected. */
  async socket(path: string): Promise<FuzzSocket> {
    let data: unknown = null;
    const upgrade = (_request: Request, options: { data: unknown }) => {
      data = options.data;
      return true;
    };
    const request = new Request(`http://127.0.0.1${path}`);
    await this.#handlers.fetch(request, { ...UNCONNECTED, upgrade });
    const socket = new FuzzSocket(data);
    this.#handlers.websocket.open(socket);
    return socket;
  }

  frame(socket: FuzzSocket, data: string | Uint8Array): void {
    if (socket.closed === null) this.#handlers.websocket.message(socket, data);
  }

  hangUp(socket: FuzzSocket): void {
    this.#handlers.websocket.close(socket);
  }

  /** @throws the first error that the sidecar reported as its own since the last call. */
  check(): void {
    const [first] = this.#failures.splice(0);
    if (first !== undefined) throw new Error("the sidecar reported an error", { cause: first });
  }

  async close(): Promise<void> {
    await this.sidecar.stop();
  }
}

/** One response in this many has several tokens. */
const LONG = 16;

const UNCONNECTED = { timeout: () => {}, requestIP: () => null, upgrade: () => false };

function bedOptions(failures: unknown[]) {
  return serveOptions({
    sources: [
      {
        name: "simulated",
        keepsWeights: true,
        open: async ({ workerId, epoch }) =>
          new SteppingWorker({
            workerId,
            capacity: { slots: 64, kvTokens: 65_536, contextTokens: 2_000, kvBytesPerToken: 8 },
            epoch,
            // Short, so that most of the time goes into parsing.
            lengthOf: ({ requestId }) => (requestId % LONG === 0 ? 5 : 1),
          }),
      },
    ],
    // An input that asks for more is refused, which is quick.
    limits: { requestsMax: 256, groupsMax: 64, keptBytesMax: 2 ** 20 },
    weightsTimeoutMs: 2_000,
    events: collecting(failures),
  });
}

let opening: Promise<unknown> = Promise.resolve();

/** The handlers that `start` gives to Bun.serve. */
async function captured<S>(start: () => Promise<S>): Promise<{ handlers: Handlers; sidecar: S }> {
  const { serve } = Bun;
  let handlers = null as Handlers | null;
  Bun.serve = ((options: Parameters<typeof serve>[0]) => {
    handlers = options as unknown as Handlers;
    return serve(options);
  }) as typeof serve;
  try {
    const sidecar = await start();
    return { handlers: present(handlers, "the sidecar serves over Bun.serve"), sidecar };
  } finally {
    Bun.serve = serve;
  }
}
