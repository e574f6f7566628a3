// The engines that settings name, as sources that the pool opens workers from: the part of the wiring that names every
// kind of engine.

import { totalmem } from "node:os";
import { AppError } from "../core/base/errors.ts";
import type { EngineNotice } from "../engines/kind.ts";
import { engineKind, serverOf } from "../engines/kinds.ts";
import { VllmWorker } from "../engines/vllm/worker.ts";
import type { WorkerSource } from "../fleet/engines.ts";
import type { PoolOptions } from "../host/embedded-pool.ts";
import { wallClock } from "../host/system.ts";
import type { EngineAddress } from "../server/worker-registry.ts";
import { losslessness } from "../tools/doctor/sampling-check.ts";
import { type EngineSettings, type ModelSide, type ModelWait, openModelSide } from "./model.ts";
import type { OperatorLog } from "./operator-log.ts";

const MIB = 1024 * 1024;
/** Limit of the pool's DRAM: a sixteenth of the machine's; engines and their models need more. */
const POOL_MEMORY_BYTES = Math.max(256 * MIB, Math.floor(totalmem() / 16));
const POOL: PoolOptions = {
  poolMemoryBytes: POOL_MEMORY_BYTES,
  poolDiskBytes: 4 * POOL_MEMORY_BYTES,
  poolDir: null,
};
/** vLLM servers hand no KV to the sidecar's pool. */
const NO_POOL: PoolOptions = { poolMemoryBytes: 0, poolDiskBytes: 0, poolDir: null };

/** The engines that settings name: their sources, and the facts known about their model. */
export class EngineSources {
  /** Whether settings name engines; false: the server starts without any, and waits for clients to name some. */
  readonly hasFixed: boolean;
  /** Options of the KV pool that the engines need. */
  readonly pool: PoolOptions;
  readonly #settings: EngineSettings;
  readonly #named: readonly EngineAddress[];
  readonly #fixed: readonly WorkerSource[];
  readonly #log: OperatorLog;

  /** @throws AppError usage: a URL is no kind of engine's, which is reported before any wait. */
  constructor(settings: EngineSettings, log: OperatorLog) {
    const { worker, workerToken: token, embedded } = settings;
    this.#settings = settings;
    this.#log = log;
    this.#named = worker.map((url) => ({ url, token }));
    this.#fixed = this.#named.map((engine) => servedSource(engine, log));
    const count = embedded?.count ?? 0;
    const haveKv = worker.some((url) => serverOf(url) === null) || count > 0;
    this.hasFixed = worker.length + count > 0;
    this.pool = haveKv || !this.hasFixed ? POOL : NO_POOL;
  }

  /** Finds the engines' model. `registered`: engines that clients have named so far. */
  model(wait: ModelWait, registered: () => readonly EngineAddress[]): Promise<ModelSide> {
    const engines = () => [...this.#named, ...registered().map((one) => this.#withToken(one))];
    return openModelSide(this.#settings, engines, wait);
  }

  /** `contextTokensMax`: the longest request, for which each embedded engine has room. Default: as much as its KV holds. */
  sources({ llama }: ModelSide, contextTokensMax = Number.POSITIVE_INFINITY): WorkerSource[] {
    const { embedded } = this.#settings;
    if (embedded === null || llama === null) return [...this.#fixed];
    const { count, deterministic: _, ...options } = embedded;
    const contextTokens = Math.min(llama.info.contextTokens, embedded.kvTokens, contextTokensMax);
    const own = Array.from(
      { length: count },
      (_, index): WorkerSource => ({
        name: `embedded engine ${index}`,
        keepsWeights: false,
        open: ({ workerId, epoch }) =>
          llama.openWorker({ workerId, epoch, ...options, contextTokens }),
      }),
    );
    return [...this.#fixed, ...own];
  }

  /** The source for an engine that a client named. @throws AppError usage: its URL is not an engine's. */
  sourceOf(engine: EngineAddress): WorkerSource {
    return servedSource(this.#withToken(engine), this.#log);
  }

  /** An engine named by the operator may leave and come back: it alone gets the operator's token. */
  #withToken({ url, token }: EngineAddress): EngineAddress {
    const own = this.#named.find((one) => URL.parse(one.url)?.href === URL.parse(url)?.href);
    return { url, token: token ?? own?.token ?? null };
  }
}

/** The source of a remote engine, which serves only if its drafts do not change the distribution of its samples. */
function servedSource({ url, token }: EngineAddress, log: OperatorLog): WorkerSource {
  const notice = (one: EngineNotice) => log.engineNotice(url, one);
  const open = engineKind(url).opener(url, { token, clock: wallClock, notice });
  const tested: WorkerSource["open"] = async (options) => {
    const worker = await open(options);
    if (!(worker instanceof VllmWorker)) return worker;
    const found = await losslessness(url, token, worker.found);
    if (found.kind === "none") return worker;
    if (found.kind !== "faulty") {
      log.draftsTested(url, found.kind, found.reason);
      return worker;
    }
    await worker.close();
    // Its drafting cannot be switched off from here.
    const fix = "start it without --speculative-config";
    throw new AppError("not_lossless", `${url}: ${found.reason}: ${fix}`);
  };
  const mayDraft = serverOf(url)?.mayDraft === true;
  return { name: url, keepsWeights: true, open: mayDraft ? tested : open };
}
