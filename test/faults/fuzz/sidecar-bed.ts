// A whole sidecar in this process. Its engine computes nothing and accepts every control call.

import type { RunningServer } from "../../../src/compose/options.ts";
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

/** How a connection ended before its client closed it. */
interface Closed {
  readonly code: number;
  readonly reason: string;
}

export class SidecarBed {
  readonly #sidecar: RunningServer;
  /** Errors that are the sidecar's own. */
  readonly #failures: unknown[];

  private constructor(sidecar: RunningServer, failures: unknown[]) {
    this.#sidecar = sidecar;
    this.#failures = failures;
  }

  static async open(): Promise<SidecarBed> {
    const failures: unknown[] = [];
    return new SidecarBed(await startServer(bedOptions(failures)), failures);
  }

  async request(path: string, init: RequestInit = {}): Promise<Response> {
    return await fetch(this.#sidecar.url.origin + path, init);
  }

  async connect(path: string): Promise<WebSocket> {
    const socket = new WebSocket(`ws://${this.#sidecar.url.host}${path}`);
    await new Promise((resolve) => socket.addEventListener("open", resolve));
    return socket;
  }

  /** Sends frames on a connection of their own, then ends it. null: the server left that to its client. */
  async talk(path: string, frames: readonly (string | Uint8Array)[]): Promise<Closed | null> {
    const socket = await this.connect(path);
    const closed = new Promise<Closed>((resolve) => {
      socket.onclose = resolve;
    });
    for (const frame of frames) {
      socket.send(typeof frame === "string" ? frame : new Uint8Array(frame));
    }
    socket.close(NORMAL);
    const { code, reason } = await closed;
    return code === NORMAL ? null : { code, reason };
  }

  /** @throws the first error that the sidecar reported as its own since the last call. */
  check(): void {
    const [first] = this.#failures.splice(0);
    if (first !== undefined) throw new Error("the sidecar reported an error", { cause: first });
  }

  async close(): Promise<void> {
    await this.#sidecar.stop();
  }
}

const NORMAL = 1000;
/** One response in this many has several tokens. */
const LONG = 16;

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
