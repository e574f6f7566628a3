// The time of one engine step as a roofline: what must be read, computed and sent, plus what the engine
// itself costs. Also what fits into its KV memory. It depends only on sums over requests.

import { assert } from "../../../src/core/base/assert.ts";
import type { EngineTimes } from "../../../src/tools/simulate/engine.ts";
import { ALL_REDUCE_MS, EXPERTS, type Hardware, type ModelSpec, POOL } from "./hardware.ts";

/** How one instance spreads a model: tensor parallel, or data parallel attention with spread experts. */
export interface Deployment {
  readonly gpus: number;
  readonly kind: "tensor" | "experts";
}

/** Constants without a data sheet; fitted on veRL's rows (calibration.ts), one number for each workload. */
export interface EngineConstants {
  /** Real step time over the roofline's, >= 1: small kernels, imbalance of ranks, time between kernels. Total time. */
  readonly slowdown: number;
  /**
   * Time that one draft row for each request adds to a step beyond the roofline, as a share of it: attention over several
   * rows, rejection sampling, proposing. From veRL with SD.
   */
  readonly speculation: number;
}

/**
 * Host time of a step and of each of its rows, ms: scheduling, sampling, detokenising. Estimates: vLLM's engine loop is
 * some milliseconds for hundreds of requests. Data-parallel ranks have a loop each, for their own rows.
 */
const HOST_STEP_MS = 5;
const HOST_ROW_MS = 0.02;

/** Measured step times by batch, of an engine that has captured its steps as graphs of these sizes. */
export interface Graphs {
  /** Requests of a rank, ascending: a batch takes as long as the next larger size. */
  readonly sizes: readonly number[];
  readonly ms: readonly number[];
}

/** The size that a batch of `requests` a rank takes; Infinity: it is larger than all. */
export function graphOf({ sizes }: Graphs, requests: number): number {
  return sizes.find((size) => requests <= size) ?? Number.POSITIVE_INFINITY;
}

/** An instance, as its step times see it. */
export interface Instance {
  readonly hardware: Hardware;
  readonly model: ModelSpec;
  readonly deployment: Deployment;
}

/** Bytes of the weights that every GPU reads, without routed experts. */
function denseBytesOf({ model, deployment }: Instance): number {
  // Attention and dense layers are whole on every rank where attention is data parallel.
  return deployment.kind === "experts" ? model.denseBytes : model.denseBytes / deployment.gpus;
}

/** KV tokens that an instance has room for; below 1: the weights do not fit. */
export function kvTokensOf(instance: Instance): number {
  const { hardware, model, deployment } = instance;
  const weights = denseBytesOf(instance) + (model.experts?.bytes ?? 0) / deployment.gpus;
  const kvBytes = (hardware.hbmBytes - weights) * deployment.gpus;
  return Math.floor(kvBytes / model.kvBytesPerToken);
}

export class StepModel implements EngineTimes {
  readonly kvTokens: number;
  readonly #of: Instance & { readonly constants: EngineConstants; readonly graphs?: Graphs };

  constructor(instance: Instance & { constants: EngineConstants; graphs?: Graphs }) {
    this.#of = instance;
    this.kvTokens = kvTokensOf(instance);
    assert(this.kvTokens > 0, "the weights leave room for KV");
  }

  get kvBytesPerToken(): number {
    return this.#of.model.kvBytesPerToken;
  }

  /**
   * Milliseconds of a step that decodes `rows` tokens of `batch` requests whose contexts add up to
   * `contextTokens`: rows >= batch >= 1.
   */
  stepMs(batch: number, rows: number, contextTokens: number): number {
    const { graphs } = this.#of;
    if (graphs === undefined) return this.#modelledMs(batch, rows, contextTokens);
    // A request alone on each rank takes as long as modelled; those beside it add what they add in the measurement.
    const ranks = this.ranks;
    const context = (contextTokens * ranks) / batch;
    const more = timeOf(graphs, rows / ranks) - 1;
    const alone = this.#modelledMs(ranks, ranks, context);
    return this.#modelledMs(ranks, ranks, contextTokens) + more * alone;
  }

  #modelledMs(batch: number, rows: number, contextTokens: number): number {
    const { slowdown, speculation } = this.#of.constants;
    const memory = this.#memoryMs(rows, contextTokens);
    const compute = this.#computeMs(rows, (contextTokens * rows) / batch);
    const device = slowdown * (Math.max(memory, compute) + this.#exchangeMs(rows));
    const ms = device + HOST_STEP_MS + (HOST_ROW_MS * rows) / this.ranks;
    return ms * (1 + speculation * (rows / batch - 1));
  }

  /** Milliseconds that each row after the first adds to a step at least: the exchange between GPUs and the host. */
  get rowMs(): number {
    const exchange = this.#exchangeMs(2) - this.#exchangeMs(1);
    return this.#of.constants.slowdown * exchange + HOST_ROW_MS / this.ranks;
  }

  /** Milliseconds to prefill `tokens` after `before` tokens that are there. */
  prefillMs(tokens: number, before: number): number {
    if (tokens <= 0) return 0;
    const compute = this.#computeMs(tokens, tokens * (before + tokens / 2));
    const exchange = this.#exchangeMs(Math.min(tokens, PREFILL_CHUNK_TOKENS));
    const chunks = Math.ceil(tokens / PREFILL_CHUNK_TOKENS);
    return this.#of.constants.slowdown * (compute + exchange * chunks) + HOST_STEP_MS * chunks;
  }

  /** Milliseconds to move `tokens` of KV between this instance and the pool. */
  transferMs(tokens: number): number {
    const nodes = this.#of.deployment.gpus / this.#of.hardware.gpusPerNode;
    // An instance smaller than a node has its share of the node's network; one that spans several holds a
    // request's KV on one of them.
    const rate = POOL.bytesPerMs * Math.min(1, nodes);
    return POOL.latencyMs + (tokens * this.#of.model.kvBytesPerToken) / rate;
  }

  /** Data-parallel ranks. */
  get ranks(): number {
    return this.#of.deployment.kind === "experts" ? this.#of.deployment.gpus : 1;
  }

  #memoryMs(rows: number, contextTokens: number): number {
    const { experts, kvBytesPerToken } = this.#of.model;
    const { gpus } = this.#of.deployment;
    let bytes = denseBytesOf(this.#of) + (contextTokens * kvBytesPerToken) / gpus;
    if (experts !== null) {
      // Each row picks `perToken` of `count` experts; unused ones are not read.
      const touched = 1 - (1 - experts.perToken / experts.count) ** rows;
      bytes += (experts.bytes / gpus) * touched;
    }
    return bytes / this.#of.hardware.hbmBytesPerMs;
  }

  #computeMs(rows: number, contextRows: number): number {
    const { activeParams, attentionFlops, isFp8 } = this.#of.model;
    const { fp8FlopsPerMs, bf16FlopsPerMs } = this.#of.hardware;
    const { gpus } = this.#of.deployment;
    const linear = (2 * activeParams * rows) / (isFp8 ? fp8FlopsPerMs : bf16FlopsPerMs);
    // Attention is computed in bf16 whatever the weights are.
    const attention = (attentionFlops * contextRows) / bf16FlopsPerMs;
    return (linear + attention) / gpus;
  }

  #exchangeMs(rows: number): number {
    const { gpus, kind } = this.#of.deployment;
    const { layers, hidden, experts } = this.#of.model;
    if (gpus === 1) return 0;
    if (kind === "tensor") {
      const bytes = rows * hidden * 2 * 2 * ((gpus - 1) / gpus);
      return layers * 2 * (ALL_REDUCE_MS + bytes / this.#of.hardware.nvlinkBytesPerMs);
    }
    const load = rows / gpus / EXPERTS.tokens;
    const share = EXPERTS.floor + (1 - EXPERTS.floor) * load;
    return (experts?.layers ?? 0) * EXPERTS.exchangeMs * share;
  }
}

/** max_num_batched_tokens of vLLM: a longer prefill is several steps. */
const PREFILL_CHUNK_TOKENS = 8192;

/** Time of a step with `rows` a rank over that of the smallest graph; beyond the largest it grows as between the last two. */
function timeOf({ sizes, ms }: Graphs, rows: number): number {
  const at = sizes.findIndex((size) => rows <= size);
  const [first = 1, last = 1, before = 1] = [ms[0], ms.at(-1), ms.at(-2)];
  if (at >= 0) return (ms[at] ?? last) / first;
  const [largest = 1, smaller = 1] = [sizes.at(-1), sizes.at(-2)];
  const step = largest - smaller;
  return (last + (last - before) * Math.ceil((rows - largest) / step)) / first;
}
