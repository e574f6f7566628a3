// Histograms of finished requests under vLLM's names, so that its dashboards find them. Times are taken where a request
// enters the sidecar and where its tokens come back: they include the sidecar's own queue.

import { Histogram, type Registry } from "prom-client";
import type { RolloutRequest } from "../../core/request/buffer.ts";

/** Buckets in seconds: a response of a rollout takes from milliseconds to half an hour. */
const TIME = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800];
const FIRST = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800];
const PER_TOKEN = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];
const LENGTH = [16, 64, 256, 1024, 4096, 16_384, 32_768, 65_536, 131_072];

/** Reads a value of a finished request; null: the request did not get so far. */
type Read = (request: RolloutRequest) => number | null;
type Row = readonly [name: string, buckets: number[], help: string, read: Read];
type Moment = "joinedMs" | "startedMs" | "firstTokenMs" | "finishedMs";

/** Seconds from one moment of a request to another. */
const between =
  (from: Moment, to: Moment): Read =>
  ({ response: { [from]: fromMs, [to]: toMs } }) =>
    fromMs === null || toMs === null ? null : Math.max(0, toMs - fromMs) / 1000;

const decode = between("firstTokenMs", "finishedMs");
/** Time per token, from the second token on. */
const perToken: Read = (request) => {
  const seconds = decode(request);
  const { length } = request.response;
  return seconds === null || length < 2 ? null : seconds / (length - 1);
};
const length: Read = ({ response }) => response.length;

const ARRIVAL = "From a request's arrival to its";
const DISPATCH = "From its first dispatch to its";
const PER_OUTPUT = "Mean time per output token of a finished request.";

const ROWS: readonly Row[] = [
  ["e2e_request_latency_seconds", TIME, `${ARRIVAL} end.`, between("joinedMs", "finishedMs")],
  [
    "request_queue_time_seconds",
    TIME,
    `${ARRIVAL} first dispatch.`,
    between("joinedMs", "startedMs"),
  ],
  [
    "request_prefill_time_seconds",
    TIME,
    `${DISPATCH} first token.`,
    between("startedMs", "firstTokenMs"),
  ],
  ["request_decode_time_seconds", TIME, "From its first token to its last.", decode],
  [
    "request_inference_time_seconds",
    TIME,
    `${DISPATCH} end, with waits.`,
    between("startedMs", "finishedMs"),
  ],
  [
    "time_to_first_token_seconds",
    FIRST,
    `${ARRIVAL} first token.`,
    between("joinedMs", "firstTokenMs"),
  ],
  // vLLM has renamed it twice; its dashboards of either time find one.
  ["inter_token_latency_seconds", PER_TOKEN, PER_OUTPUT, perToken],
  ["time_per_output_token_seconds", PER_TOKEN, PER_OUTPUT, perToken],
  ["request_time_per_output_token_seconds", PER_TOKEN, PER_OUTPUT, perToken],
  ["request_prompt_tokens", LENGTH, "Prompt tokens.", ({ spec }) => spec.prompt.length],
  ["request_generation_tokens", LENGTH, "Output tokens.", length],
  ["request_params_max_tokens", LENGTH, "max_tokens.", ({ spec }) => spec.sampling.tokensMax],
  ["request_max_num_generation_tokens", LENGTH, "Output tokens; each is counted alone.", length],
];

/** Returns the function to call with each finished request. */
export function requestTimes(registry: Registry): (request: RolloutRequest) => void {
  const histograms = ROWS.map(([name, buckets, help, read]) => {
    return {
      histogram: new Histogram({ name: `vllm:${name}`, help, buckets, registers: [registry] }),
      read,
    };
  });
  return (request) => {
    for (const { histogram, read } of histograms) {
      const value = read(request);
      if (value !== null) histogram.observe(value);
    }
  };
}
