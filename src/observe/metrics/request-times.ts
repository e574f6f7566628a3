// Histograms of finished requests under vLLM's names, so that its dashboards find them. Times are taken where a request
// enters the sidecar and where its tokens come back: they include the sidecar's own queue.

import { Histogram, type Registry } from "prom-client";
import type { Request } from "../../core/request/buffer.ts";

/** Seconds; a response of a rollout takes from milliseconds to half an hour. */
const TIME_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800];
const FIRST_BUCKETS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800];
const TOKEN_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];
const LENGTH_BUCKETS = [16, 64, 256, 1024, 4096, 16_384, 32_768, 65_536, 131_072];

/** Seconds of one finished request; null: it did not get so far. */
interface Times {
  readonly total: number;
  readonly queue: number | null;
  readonly prefill: number | null;
  readonly first: number | null;
  readonly decode: number | null;
  readonly inference: number | null;
  /** From the second token on. */
  readonly perToken: number | null;
}

type Row = readonly [name: string, help: string, value: (times: Times) => number | null];

const TIMES: readonly Row[] = [
  ["vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", (t) => t.total],
  ["vllm:request_queue_time_seconds", "From its arrival to its first dispatch.", (t) => t.queue],
  [
    "vllm:request_prefill_time_seconds",
    "From its first dispatch to its first token.",
    (t) => t.prefill,
  ],
  ["vllm:request_decode_time_seconds", "From its first token to its last.", (t) => t.decode],
  [
    "vllm:request_inference_time_seconds",
    "From its first dispatch to its end, waits between chunks included.",
    (t) => t.inference,
  ],
];

const FIRST: Row = [
  "vllm:time_to_first_token_seconds",
  "From a request's arrival to its first token; counted when it has finished.",
  (t) => t.first,
];

/** vLLM has renamed it twice; its dashboards of either time find one. */
const PER_TOKEN: readonly Row[] = [
  "vllm:inter_token_latency_seconds",
  "vllm:time_per_output_token_seconds",
  "vllm:request_time_per_output_token_seconds",
].map((name) => [name, "Mean time per output token of a finished request.", (t) => t.perToken]);

const LENGTHS: readonly (readonly [string, string, (request: Request) => number])[] = [
  [
    "vllm:request_prompt_tokens",
    "Prompt tokens of a finished request.",
    (r) => r.spec.prompt.length,
  ],
  [
    "vllm:request_generation_tokens",
    "Output tokens of a finished request.",
    (r) => r.response.length,
  ],
  [
    "vllm:request_params_max_tokens",
    "max_tokens of a finished request.",
    (r) => r.spec.sampling.tokensMax,
  ],
  [
    "vllm:request_max_num_generation_tokens",
    "Output tokens of a finished request; each is counted alone.",
    (r) => r.response.length,
  ],
];

export class RequestTimes {
  readonly #times: readonly (readonly [Histogram, Row[2]])[];
  readonly #lengths: readonly (readonly [Histogram, (request: Request) => number])[];

  constructor(registry: Registry) {
    const registers = [registry];
    const histogram = ([name, help]: readonly [string, string, unknown], buckets: number[]) =>
      new Histogram({ name, help, buckets, registers });
    this.#times = [
      ...TIMES.map((row) => [histogram(row, TIME_BUCKETS), row[2]] as const),
      [histogram(FIRST, FIRST_BUCKETS), FIRST[2]] as const,
      ...PER_TOKEN.map((row) => [histogram(row, TOKEN_BUCKETS), row[2]] as const),
    ];
    this.#lengths = LENGTHS.map((row) => [histogram(row, LENGTH_BUCKETS), row[2]] as const);
  }

  finished(request: Request): void {
    for (const [histogram, value] of this.#lengths) histogram.observe(value(request));
    const { joinedMs, finishedMs } = request.response;
    if (joinedMs === null || finishedMs === null) return;
    const times = timesOf(request, joinedMs, finishedMs);
    for (const [histogram, value] of this.#times) {
      const seconds = value(times);
      if (seconds !== null) histogram.observe(seconds);
    }
  }
}

function timesOf({ response }: Request, joinedMs: number, endMs: number): Times {
  const { startedMs, firstTokenMs, length } = response;
  const between = (from: number | null, to: number | null) =>
    from === null || to === null ? null : Math.max(0, to - from) / 1000;
  const decode = between(firstTokenMs, endMs);
  return {
    total: Math.max(0, endMs - joinedMs) / 1000,
    queue: between(joinedMs, startedMs),
    prefill: between(startedMs, firstTokenMs),
    first: between(joinedMs, firstTokenMs),
    decode,
    inference: between(startedMs, endMs),
    perToken: decode === null || length < 2 ? null : decode / (length - 1),
  };
}
