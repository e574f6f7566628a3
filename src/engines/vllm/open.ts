// The door to a stock vLLM server (>= 0.22) or SGLang server: finds out what it can do, and opens a worker on it.

import { AppError } from "../../core/base/errors.ts";
import { type WeightEpoch, type WorkerId, weightEpoch } from "../../core/base/ids.ts";
import { type TimerClock, wallTimers } from "./clock.ts";
import { HttpClient } from "./http.ts";
import { KvMoves } from "./kv-moves.ts";
import { VLLM_LIMITS, type VllmLimits } from "./limits.ts";
import { type Capabilities, probe } from "./probe.ts";
import type { ServedAlike } from "./served-alike.ts";
import { type VllmNotice, VllmWorker } from "./worker.ts";

export interface VllmWorkerOptions {
  readonly workerId: WorkerId;
  /** "http://host:port", with a path where the server has one. */
  readonly url: string;
  /** Of the weights that the server has now. Default: 0. */
  readonly epoch?: WeightEpoch;
  /** Absent: it is found out, by what the server answers. */
  readonly kind?: "sglang" | undefined;
  /** Sent as a bearer token. */
  readonly apiKey?: string;
  /** Default: the first one that the server lists and that is no adapter. */
  readonly model?: string;
  /** Instead of the server's setting (development mode), or vLLM's default of 256. */
  readonly slots?: number;
  /** Instead of the server's block count. */
  readonly kvTokens?: number;
  /** Instead of the server's `max_model_len`. */
  readonly contextTokens?: number;
  /** What moving a token's KV costs, for reports; this worker exports none. Default: 0. */
  readonly kvBytesPerToken?: number;
  /**
   * Begins the salt of the server's prefix cache; the weight epoch follows. All workers of a run must have the same,
   * so that they can share a cache; another run on the same servers must have another one. Default: "foretoken".
   */
  readonly cacheSalt?: string;
  /** The servers of a run, which are compared with one another. Default: it is alone. */
  readonly alike?: ServedAlike;
  readonly limits?: Partial<VllmLimits>;
  /** Default: the wall clock. */
  readonly clock?: TimerClock;
  readonly notice?: (notice: VllmNotice) => void;
  /** Called with the reason while the server cannot be reached and requests wait for it; null: reachable again. */
  readonly reach?: (lost: string | null) => void;
}

/**
 * Waits until the server is healthy and has generated a token.
 * @throws AppError worker_failed, unauthorized, not_found or invalid_config; each names the URL.
 */
export async function openVllmWorker(options: VllmWorkerOptions): Promise<VllmWorker> {
  const limits = { ...VLLM_LIMITS, ...options.limits };
  const clock = options.clock ?? wallTimers;
  const notice = options.notice ?? (() => {});
  const client = new HttpClient({
    url: options.url,
    apiKey: options.apiKey ?? null,
    clock,
    answerBytesMax: limits.answerBytesMax,
  });
  const cacheSalt = options.cacheSalt ?? "foretoken";
  try {
    const capabilities = await probe({
      client,
      clock,
      limits,
      cacheSalt,
      kind: options.kind,
      model: options.model ?? null,
      slots: options.slots ?? null,
      kvTokens: options.kvTokens ?? null,
      contextTokens: options.contextTokens ?? null,
    });
    const warn = (message: string) => notice({ kind: "warning", message });
    for (const message of capabilities.warnings) warn(message);
    const difference = options.alike?.compare(options.url, capabilities.traits) ?? null;
    if (difference !== null) warn(difference);
    const { workerId } = options;
    const epoch = options.epoch ?? weightEpoch(0);
    const moves = movesOf(client.url, capabilities, warn);
    return new VllmWorker({
      workerId,
      epoch,
      moves,
      client,
      clock,
      limits,
      capabilities,
      kvBytesPerToken: options.kvBytesPerToken ?? 0,
      cacheSalt,
      notice,
      reach: options.reach ?? (() => {}),
    });
  } catch (error) {
    client.close();
    throw error;
  }
}

/**
 * null: it has no connector that finds what another server has saved.
 * @throws AppError invalid_config: its connector may find KV of older weights.
 */
function movesOf(
  url: string,
  { connector }: Capabilities,
  warn: (message: string) => void,
): KvMoves | null {
  if (connector === null) return null;
  const { className, row, problem, fix, mixesWeights } = connector;
  const problemText = `${className}: ${problem}${fix === null ? "" : `: ${fix}`}`;
  if (mixesWeights) {
    throw new AppError(
      "invalid_config",
      `${url} has ${problemText}. After a weight update it might use KV of the old weights: start it without --kv-transfer-config`,
    );
  }
  if (problem !== null) warn(`no KV moves through ${problemText}`);
  return problem === null && row?.reach === "pool" ? new KvMoves(className) : null;
}
