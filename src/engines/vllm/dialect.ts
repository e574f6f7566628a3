// What a chunk asks of a server, and what the server was found to understand: vLLM's two endpoints, or SGLang's.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { DraftSource } from "../../core/draft/group-update.ts";
import type { RequestSpec } from "../../core/request/request.ts";

export type Endpoint = "generate" | "completions" | "sglang";

export const ENDPOINT_PATHS: Readonly<Record<Endpoint, string>> = {
  generate: "/inference/v1/generate",
  completions: "/v1/completions",
  sglang: "/generate",
};

/** What a server understands, found by asking it. */
export interface Dialect {
  readonly endpoint: Endpoint;
  readonly model: string;
  /** It takes priorities. Without `--scheduling-policy priority` older versions answer 400, newer ones ignore them. */
  readonly hasPriorities: boolean;
  /** Logprobs it reports at each position, at most (`--max-logprobs`). */
  readonly logprobsMax: number;
  /** It knows `stream_interval`, and the count of tokens with every event. */
  readonly hasStreamSettings: boolean;
  /** It survives a request with a seed, whenever it comes. */
  readonly hasSeeds: boolean;
  /** Higher priorities run first. Absent: lower ones. */
  readonly highestFirst?: boolean;
}

/** How the answer comes. whole: in one piece, with what a stream does not bring. */
export type AnswerForm = "stream" | "whole";

export interface ChunkRequest {
  /** "ft-<requestId>-<chunk>-<attempt>". Other requests of the server may begin so. */
  readonly name: string;
  readonly spec: RequestSpec;
  /** Output tokens before this request. */
  readonly offset: number;
  /** Prompt + output so far. */
  readonly tokens: Int32Array;
  /** At most this many new ones. */
  readonly tokensMax: number;
  /** With them the response is as long as it may get. */
  readonly isLast: boolean;
  /** Lower is served earlier. */
  readonly priority: number;
  readonly cacheSalt: string;
  /** Names the run that the request belongs to: the same for all its workers, different for another run. */
  readonly run: string;
  /** Of the weights that the chunk is for. */
  readonly epoch: WeightEpoch;
  readonly streamInterval: number;
  readonly draft: DraftSource | null;
  /** whole: with logprobs of the prompt, where they are wanted. */
  readonly form: AnswerForm;
  /** Position from which experts are reported; null: they are not wanted. */
  readonly expertsFrom: number | null;
}
