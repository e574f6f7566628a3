// The hardware of the modelled engines, and the models that they serve: every constant with its source.
// Numbers only; how they become step times is step-time.ts.

/** One accelerator and its links, as reached by large reads and multiplications; of a node `gpusPerNode`. */
export interface Hardware {
  readonly hbmBytesPerMs: number;
  /** HBM left to one engine. */
  readonly hbmBytes: number;
  readonly bf16FlopsPerMs: number;
  readonly fp8FlopsPerMs: number;
  /** NVLink between the GPUs of a node, one way, as an all-reduce reaches it. */
  readonly nvlinkBytesPerMs: number;
  readonly gpusPerNode: number;
}

/** Start of one all-reduce inside a node, ms: vLLM's custom all-reduce of small messages (estimate). */
export const ALL_REDUCE_MS = 0.015;
/**
 * Dispatch + combine of experts between 32 GPUs, ms for each layer at 128 tokens a rank, and the share of it that remains
 * with no tokens at all (estimate): DeepEP's table for EP32 on H800 with 400 Gb/s RDMA, 155 us + 273 us.
 */
export const EXPERTS = { exchangeMs: 0.428, floor: 0.3, tokens: 128 };
/**
 * KV pool: start of a transfer, ms, and the rate of one node, whose GPUs share it: 0.53 ms + bytes / 155.2 GB/s, a fit of
 * vLLM's H800 peer-to-peer table (8 x 400 Gb/s RoCE a node).
 */
export const POOL = { latencyMs: 0.53, bytesPerMs: 155.2e6 };

const GIB = 1024 ** 3;

/** A GPU by its data sheet: GiB, GB/s, dense TFLOP/s (fp8: as bf16 where it has none); NVLink one way. */
export interface GpuSheet {
  readonly memoryGib: number;
  readonly hbmGbPerS: number;
  readonly bf16Tflops: number;
  readonly fp8Tflops: number;
  readonly nvlinkGbPerS: number;
}

/**
 * Figures that a GPU reaches: 85 % of HBM and 60 % of arithmetic are what tuned kernels get on an H800 (FlashMLA and
 * DeepGEMM report 3,000 GB/s and up to 1,550 fp8 TFLOP/s; decode-sized multiplications get less), of NVLink half. HBM: the
 * share of it that the engine may use (vLLM's gpu_memory_utilization), less 4.5 GiB for activations and graphs (estimate).
 */
export function hardwareOf(
  gpu: GpuSheet,
  { memoryUtilization, gpusPerNode }: { memoryUtilization: number; gpusPerNode: number },
): Hardware {
  return {
    hbmBytesPerMs: gpu.hbmGbPerS * 1e6 * 0.85,
    hbmBytes: (gpu.memoryGib * memoryUtilization - 4.5) * GIB,
    bf16FlopsPerMs: gpu.bf16Tflops * 1e9 * 0.6,
    fp8FlopsPerMs: gpu.fp8Tflops * 1e9 * 0.4,
    nvlinkBytesPerMs: gpu.nvlinkGbPerS * 1e6 * 0.5,
    gpusPerNode,
  };
}

/** NVIDIA H800 SXM (data sheet). A colocated trainer keeps what the engine leaves, so the share of memory is a workload's. */
export function h800(memoryUtilization: number): Hardware {
  const rates = { hbmGbPerS: 3350, bf16Tflops: 989, fp8Tflops: 1979, nvlinkGbPerS: 400 };
  return hardwareOf({ memoryGib: 79.6, ...rates }, { memoryUtilization, gpusPerNode: 8 });
}

/** A model as its step time sees it. Sizes are those of the public config.json files. */
export interface ModelSpec {
  readonly layers: number;
  readonly hidden: number;
  /** Bytes of all weights but routed experts. */
  readonly denseBytes: number;
  /** Routed experts; null: a dense model. */
  readonly experts: {
    readonly bytes: number;
    /** In each of `layers` layers. */
    readonly count: number;
    readonly perToken: number;
    readonly layers: number;
  } | null;
  /** Parameters that one token is multiplied with. */
  readonly activeParams: number;
  /** Attention arithmetic of one decoded token for each token of its context, FLOP. */
  readonly attentionFlops: number;
  readonly kvBytesPerToken: number;
  readonly isFp8: boolean;
}

/** MLA, absorbed: each head reads 576 numbers for scores and 512 for values, 2 FLOP each. */
const mlaFlops = (layers: number, heads: number) => layers * heads * (576 + 512) * 2;

/** Moonlight-16B-A3B: 27 layers (one dense), 64 experts of 3 x 2048 x 1408, 6 used + 2 shared; 32 GB bf16. */
export const MOONLIGHT: ModelSpec = {
  layers: 27,
  hidden: 2048,
  denseBytes: 32e9 - 26 * 64 * 3 * 2048 * 1408 * 2,
  experts: { bytes: 26 * 64 * 3 * 2048 * 1408 * 2, count: 64, perToken: 6, layers: 26 },
  activeParams: 2.24e9 + 2048 * 163_840,
  attentionFlops: mlaFlops(27, 16),
  kvBytesPerToken: 31_104,
  isFp8: false,
};

/** Qwen2-VL-72B: 80 layers, hidden 8192, 64 heads on 8 KV heads of 128; 146 GB bf16. */
export const QWEN2_VL_72B: ModelSpec = {
  layers: 80,
  hidden: 8192,
  denseBytes: 146e9,
  experts: null,
  activeParams: 72.7e9,
  attentionFlops: 80 * 64 * 128 * 2 * 2,
  kvBytesPerToken: 327_680,
  isFp8: false,
};

/**
 * Kimi-K2: 61 layers (one dense), 384 experts of 3 x 7168 x 2048, 8 used + 1 shared; fp8, about 1 TB.
 * The rest (attention 6.2 G, shared experts 2.6 G, the dense layer 0.4 G parameters, and embeddings at
 * two bytes) is on every GPU when attention is data parallel.
 */
export const KIMI_K2: ModelSpec = {
  layers: 61,
  hidden: 7168,
  denseBytes: 6.2e9 + 2.6e9 + 0.4e9 + 2 * 7168 * 163_840 * 2,
  experts: { bytes: 60 * 384 * 3 * 7168 * 2048, count: 384, perToken: 8, layers: 60 },
  activeParams: 32e9,
  attentionFlops: mlaFlops(61, 64),
  kvBytesPerToken: 70_272,
  isFp8: true,
};
