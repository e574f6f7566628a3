// Options of a sidecar for tests: loopback, a free port, the tiny tokenizer, wide limits, and events that nothing reads.

import type { OperatorLog } from "../../src/compose/operator-log.ts";
import type { RunningServer, ServeOptions } from "../../src/compose/options.ts";
import { BoundServer } from "../../src/compose/server.ts";
import { AppError } from "../../src/core/base/errors.ts";
import type { VllmLimits } from "../../src/engines/vllm/limits.ts";
import { openVllmWorker } from "../../src/engines/vllm/open.ts";
import type { WorkerSource } from "../../src/fleet/engines.ts";
import type { WorkerRegistryOptions } from "../../src/server/worker-registry.ts";
import { EOS } from "../faults/stand-in/tokens.ts";
import { openTinyThread, TinyText } from "../golden/requests/tiny-text.ts";

/** Every event does nothing. */
const NO_EVENTS = new Proxy({}, { get: () => () => {} }) as OperatorLog;

const NONE_JOINS: WorkerRegistryOptions = {
  sourceOf: () => {
    throw new AppError("forbidden", "this server takes no workers after its start");
  },
  hasFixed: true,
  drainMs: 0,
};

/** `eosTokenId`: of the model that the workers simulate. Default: that of the stand-ins for vLLM. */
type Given = Partial<Omit<ServeOptions, "events" | "model">> &
  Pick<ServeOptions, "sources"> & {
    readonly events?: Partial<OperatorLog>;
    readonly eosTokenId?: number;
    /** Default: that of the stand-ins, with a tokenizer of bytes. */
    readonly model?: Partial<ServeOptions["model"]>;
  };

export function serveOptions({ events, eosTokenId = EOS, model, ...given }: Given): ServeOptions {
  return {
    host: "127.0.0.1",
    port: 0,
    apiToken: null,
    policy: "seer",
    draft: "grouped",
    chunkTokens: 8,
    poolMemoryBytes: 0,
    retryGraceMs: 0,
    weightsTimeoutMs: 10_000,
    version: "0",
    joining: NONE_JOINS,
    ...given,
    model: {
      text: new TinyText(),
      openTextThread: openTinyThread,
      eosTokenIds: [eosTokenId],
      names: ["tiny"],
      llama: null,
      ...model,
    },
    events: Object.assign(Object.create(NO_EVENTS), events),
  };
}

/** Resolves when each worker has been tried once. @throws AppError: the address is taken, or no retry would open one. */
export async function startServer(options: ServeOptions): Promise<RunningServer> {
  const running = await new BoundServer(options).serve(options.model, options.sources);
  try {
    await running.opened;
    return running;
  } catch (error) {
    await running.stop();
    throw error;
  }
}

/** Events that collect the errors of the server itself. */
export function collecting(failures: unknown[]): Partial<OperatorLog> {
  const collect = (error: unknown) => failures.push(error);
  return { failed: collect, broken: collect };
}

export function vllmSource(
  url: string,
  limits: Partial<VllmLimits>,
  token: string | null = null,
): WorkerSource {
  return {
    name: url,
    keepsWeights: true,
    open: ({ workerId, epoch }) => openVllmWorker({ workerId, epoch, url, apiKey: token, limits }),
  };
}
