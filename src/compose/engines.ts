// The engines that settings name, as sources that the pool opens workers from: the part of the wiring that names every
// kind of engine.

import { totalmem } from "node:os";
import { AppError } from "../core/base/errors.ts";
import type { EngineNotice } from "../engines/kind.ts";
import { engineKind, serverOf } from "../engines/kinds.ts";
import type { LlamaModel, LlamaWorkerOptions } from "../engines/llama/open.ts";
import { VllmWorker } from "../engines/vllm/worker.ts";
import type { WorkerSource } from "../fleet/engines.ts";
import type { PoolOptions } from "../host/embedded-pool.ts";
import { wallClock } from "../host/system.ts";
import type { EngineAddress } from "../server/worker-registry.ts";
import { losslessness } from "../tools/doctor/sampling-check.ts";
import { type ModelSide, type ModelWait, openModelSide } from "./model.ts";
import type { OperatorLog } from "./operator-log.ts";

export interface EngineSettings {
  /** URLs of the engines. */
  readonly worker: readonly string[];
  /** Token for the engines named here; null: none. */
  readonly workerToken: string | null;
  /** Hugging Face directory of the tokenizer; null: an engine's own, or that of the GGUF file. */
  readonly tokenizer: string | null;
  readonly servedModelName: string | null;
  /** GGUF file of the model; null: the bundled one, if any is needed. */
  readonly model: string | null;
  /** Settings of embedded engines; null: there are none. */
  readonly embedded: EmbeddedSettings | null;
}

type EmbeddedOptions = Omit<LlamaWorkerOptions, "workerId" | "epoch">;

export interface EmbeddedSettings extends Omit<EmbeddedOptions, "contextTokens"> {
  readonly count: number;
  readonly deterministic: boolean;
}

/** Sources of the engines, and the facts known about their model. */
export interface EngineSources {
  /** Finds the engines' model. `registered`: engines that clients have named so far. */
  model(wait: ModelWait, registered: () => readonly EngineAddress[]): Promise<ModelSide>;
  /** `contextTokensMax`: the longest request, for which each embedded engine has room. Default: as much as its KV holds. */
  sources(model: ModelSide, contextTokensMax?: number): WorkerSource[];
  /** The source for an engine that a client named. @throws AppError usage: its URL is not an engine's. */
  sourceOf(engine: EngineAddress): WorkerSource;
  /** Whether settings name engines; false: the server starts without any, and waits for clients to name some. */
  readonly hasFixed: boolean;
  /** Options of the KV pool that the engines need. */
  readonly pool: PoolOptions;
}

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

/** The sources of the engines that settings name. @throws AppError usage: a URL is no kind of engine's. */
export function enginesOf(settings: EngineSettings, log: OperatorLog): EngineSources {
  const { worker, workerToken, embedded, model, tokenizer, servedModelName: servedName } = settings;
  const llamaCount = embedded?.count ?? 0;
  const named = worker.map((url) => ({ url, token: workerToken }));
  // An invalid URL is reported before any wait.
  const fixed = named.map((engine) => servedSource(engine, log));
  const own = (engine: EngineAddress) => withToken(engine, named);
  const haveKv = worker.some((url) => serverOf(url) === null) || llamaCount > 0;
  const hasFixed = worker.length + llamaCount > 0;
  return {
    model: (wait, registered) => {
      const engines = () => [...named, ...registered().map(own)];
      const deterministic = embedded?.deterministic ?? false;
      return openModelSide(
        { engines, llamaCount, model, tokenizer, servedName, deterministic },
        wait,
      );
    },
    sources: ({ llama }, contextTokensMax = Number.POSITIVE_INFINITY) => {
      if (embedded === null || llama === null) return fixed;
      const contextTokens = Math.min(llama.info.contextTokens, embedded.kvTokens, contextTokensMax);
      return [...fixed, ...embeddedSources(llama, { ...embedded, contextTokens })];
    },
    sourceOf: (engine) => servedSource(own(engine), log),
    hasFixed,
    pool: haveKv || !hasFixed ? POOL : NO_POOL,
  };
}

/** The address with its token. An engine named by the operator may leave and come back: it alone gets the operator's token. */
function withToken({ url, token }: EngineAddress, named: readonly EngineAddress[]): EngineAddress {
  const own = named.find((one) => URL.parse(one.url)?.href === URL.parse(url)?.href);
  return { url, token: token ?? own?.token ?? null };
}

function embeddedSources(
  model: LlamaModel,
  { count, deterministic: _, ...options }: EmbeddedSettings & EmbeddedOptions,
): WorkerSource[] {
  return Array.from({ length: count }, (_, index) => ({
    name: `embedded engine ${index}`,
    keepsWeights: false,
    open: ({ workerId, epoch }) => model.openWorker({ workerId, epoch, ...options }),
  }));
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
