// Determines the capabilities of a stock vLLM server (>= 0.22) or SGLang server, and opens a worker on it.

import { AppError } from "../../core/base/errors.ts";
import { type WorkerId, weightEpoch } from "../../core/base/ids.ts";
import type { OpenOptions } from "../../core/rollout/worker.ts";
import type { EngineNotice } from "../kind.ts";
import { type TimerClock, wallTimers } from "./clock.ts";
import type { Capabilities, FoundEngine, ServerAccess } from "./dialect.ts";
import { HttpClient, jsonIn, problemIn } from "./http.ts";
import { VLLM_LIMITS, type VllmLimits } from "./limits.ts";
import type { ModelComparison } from "./served-model.ts";
import { SGLANG_DIALECT } from "./sglang/dialect.ts";
import { VLLM_DIALECT } from "./vllm.ts";
import { VllmWorker } from "./worker.ts";

export interface VllmWorkerOptions extends Partial<OpenOptions> {
  readonly workerId: WorkerId;
  /** "http://host:port", with the server's path if it has one. */
  readonly url: string;
  /** Absent: the server's answers decide. */
  readonly kind?: "sglang" | undefined;
  /** Sent as a bearer token. */
  readonly apiKey?: string | null;
  /**
   * Beginning of the prefix cache's salt; the weight epoch follows. All workers of a run must have the same, so that
   * they can share KV; another run on the same servers must have another. Default: "foretoken".
   */
  readonly cacheSalt?: string;
  /** Compares the server with the others of the run. Default: there are no others. */
  readonly comparison?: ModelComparison;
  readonly limits?: Partial<VllmLimits>;
  /** Default: the wall clock. */
  readonly clock?: TimerClock;
  readonly notice?: (notice: EngineNotice) => void;
}

/**
 * Opens a worker on a healthy server that generates a token. The caller retries.
 * @throws AppError worker_failed, unauthorized, not_found or invalid_config; each names the URL.
 */
export async function openVllmWorker(options: VllmWorkerOptions): Promise<VllmWorker> {
  const { url, workerId, epoch = weightEpoch(0), clock = wallTimers } = options;
  const { cacheSalt = "foretoken", apiKey = null, notice = () => {}, reach = () => {} } = options;
  const limits = { ...VLLM_LIMITS, ...options.limits };
  const client = new HttpClient({ ...limits, url, apiKey, clock });
  const access = { client, clock, limits, cacheSalt };
  try {
    const { dialect, capabilities } = await findEngine(access, options.kind);
    const warn = (message: string) => notice({ kind: "warning", message });
    for (const message of capabilities.warnings) warn(message);
    const difference = options.comparison?.compare(url, capabilities.traits) ?? null;
    if (difference !== null) warn(difference);
    const connector = poolOf(client.url, capabilities, warn);
    const found = { ...access, dialect, capabilities, connector };
    return new VllmWorker({ ...found, workerId, epoch, notice, reach });
  } catch (error) {
    client.close();
    throw error;
  }
}

/**
 * Finds the kind and the capabilities of a healthy server, for workers and for the doctor. `kind` absent: any.
 * @throws AppError worker_failed, unauthorized, not_found or invalid_config.
 */
export async function findEngine(
  access: ServerAccess,
  kind?: "sglang" | undefined,
): Promise<FoundEngine> {
  const { client } = access;
  await refuseProxy(access);
  await checkHealth(access);
  for (const dialect of kind === "sglang" ? [SGLANG_DIALECT] : [SGLANG_DIALECT, VLLM_DIALECT]) {
    const capabilities = await dialect.probe(access);
    if (capabilities !== null) return { dialect, capabilities };
  }
  const message = "has no /model_info and /server_info: it is no SGLang of 0.5.8 or later";
  throw new AppError("worker_failed", `${client.url} ${message}`);
}

/** Refuses a Foretoken sidecar, which answers like an engine and is none. @throws AppError invalid_config. */
async function refuseProxy({ client, limits }: ServerAccess): Promise<void> {
  const get = async (path: string) => jsonIn(await client.get(path, limits.checkMsMax));
  const release = await get("/version");
  if (release?.server !== "foretoken") return;
  const workers = (await get("/foretoken/workers"))?.workers;
  const names = Array.isArray(workers) ? workers.map((worker) => String(Object(worker).name)) : [];
  const urls = names.filter((name) => /^https?:/.test(name));
  const message = `is Foretoken ${release.version}, a proxy and no engine: give the URLs of its workers`;
  throw new AppError("invalid_config", `${client.url} ${[message, ...urls].join(" ")}`);
}

async function checkHealth({ client, limits }: ServerAccess): Promise<void> {
  const answer = await client.get("/health", limits.checkMsMax);
  const status = answer.kind === "answer" ? answer.status : 0;
  if (status === 200) return;
  const problem = problemIn(answer);
  if (status === 401 || status === 403) {
    throw new AppError("unauthorized", `${client.url} refuses the API key: ${problem}`);
  }
  const state = status === 503 ? "is still loading (503)" : `is not healthy: /health: ${problem}`;
  throw new AppError("worker_failed", `${client.url} ${state}`);
}

/**
 * Class of the server's connector; null: it has none that finds KV of other servers.
 * @throws AppError invalid_config: its connector may find KV of older weights.
 */
function poolOf(
  url: string,
  { connector }: Capabilities,
  warn: (message: string) => void,
): string | null {
  if (connector === null) return null;
  const { className, row, problem, fix, mixesWeights } = connector;
  const problemText = `${className}: ${problem}${fix === null ? "" : `: ${fix}`}`;
  if (mixesWeights) {
    const refusal = `${url} has ${problemText}. After a weight update it might use KV of the old weights: start it without --kv-transfer-config`;
    throw new AppError("invalid_config", refusal);
  }
  if (problem !== null) warn(`no KV moves through ${problemText}`);
  return problem === null && row?.isPool ? className : null;
}
