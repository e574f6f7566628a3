// The dialect of a kind of inference server as one record: how to recognise it, send a request, read the answer, abort,
// control and monitor. The worker, its monitor and the doctor use servers through these records only.
// docs/EXTENDING.md describes how to add one.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { DraftSource } from "../../core/draft/drafter.ts";
import type { RequestSpec, SamplingParams } from "../../core/request/request.ts";
import type { ControlAnswer } from "../../core/rollout/operation.ts";
import type { SamplingSupport } from "../../core/rollout/worker.ts";
import type { TimerClock } from "./clock.ts";
import type { FoundConnector } from "./connectors.ts";
import type { ServerOperation } from "./control.ts";
import { type HttpAnswer, type HttpCall, type HttpClient, problemIn } from "./http.ts";
import type { VllmLimits } from "./limits.ts";
import type { ServerMetrics } from "./metrics.ts";
import type { ServedTraits } from "./served-model.ts";
import type { EngineEvent } from "./stream-event.ts";

/** Functions with a parameter `server` get what the dialect's own `probe` found. */
export interface EngineDialect {
  /** null: the server is of another kind. @throws AppError worker_failed, unauthorized, not_found. */
  probe(access: ServerAccess): Promise<Capabilities | null>;
  /** @throws RangeError: the client's own fields are nested too deep to be written. */
  body(chunk: ChunkRequest, form: RequestForm): string;
  /** Reads one event of a stream, or a whole answer. `topLogprobs`: alternatives wanted at each position. */
  read(data: Buffer, topLogprobs: number): EngineEvent;
  /** The call that aborts a request; null: closing its connection does. */
  abort(chunk: ChunkRequest): HttpCall | null;
  /** Whether trainers' clients send aborts to each engine that the sidecar lists. */
  readonly takesAborts: boolean;
  /** Returns the function that carries out operations. It never rejects. */
  control(
    client: HttpClient,
    server: Capabilities,
  ): (operation: ServerOperation) => Promise<ControlAnswer>;
  readonly poll: (get: Get, server: Capabilities) => Promise<Polled>;
  /** Path of the JSON answer that has `weight_version`. */
  readonly versionPath: string;
  /** Path that answers even while all requests are queued, preempted or paused. */
  readonly healthPath: string;
  supports(sampling: SamplingParams, server: Capabilities): SamplingSupport;
  /** The routed experts of `rows` positions as an .npy file; null: there are fewer. */
  experts(reported: Uint8Array, rows: number): Uint8Array | null;
  /**
   * Empties the server's prefix cache before an epoch begins, and returns the problem, or null. It stops trying once
   * `isWanted` returns false. null in place of the function: the salts of the epochs separate their KV.
   */
  readonly emptyCache:
    | ((access: ServerAccess, isWanted: () => boolean) => Promise<string | null>)
    | null;
}

/** What a call to a server needs. */
export interface ServerAccess {
  readonly client: HttpClient;
  readonly clock: TimerClock;
  readonly limits: VllmLimits;
  readonly cacheSalt: string;
}

/** A server's metrics, or the reason why there are none. */
export type Polled =
  | { readonly kind: "metrics"; readonly metrics: ServerMetrics }
  /** `isRefused`: the address refuses connections. */
  | { readonly kind: "none"; readonly problem: string; readonly isRefused: boolean };

/** `path` gave no metrics, but this answer. */
export function unpolled(path: string, answer: HttpAnswer): Polled {
  const isRefused = answer.kind === "unreachable" && answer.isRefused === true;
  return { kind: "none", problem: `${path}: ${problemIn(answer)}`, isRefused };
}

export type Get = (path: string) => Promise<HttpAnswer>;

export type Endpoint = "generate" | "completions" | "sglang";

export const ENDPOINT_PATHS: Readonly<Record<Endpoint, string>> = {
  generate: "/inference/v1/generate",
  completions: "/v1/completions",
  sglang: "/generate",
};

/** The form of requests that a server accepts, found by trial requests. */
export interface RequestForm {
  readonly endpoint: Endpoint;
  readonly model: string;
  /**
   * The server accepts priorities. Without `--scheduling-policy priority` older versions answer 400, newer ones ignore
   * them.
   */
  readonly hasPriorities: boolean;
  /** Maximum of logprobs at each position (`--max-logprobs`). */
  readonly logprobsMax: number;
  /** The server accepts `stream_interval`, and reports the number of tokens with every event. */
  readonly hasStreamSettings: boolean;
  /** A seed never crashes the server: see `infoIn` in vllm.ts. */
  readonly hasSeeds: boolean;
  /** Higher priorities run first. Absent: lower ones. */
  readonly highestFirst?: boolean;
}

export interface Capabilities extends RequestForm {
  /** "0.32.0"; null: not reported. */
  readonly version: string | null;
  /** Maximum of prompt + output of one request. */
  readonly contextTokens: number;
  readonly traits: ServedTraits;
  /** Requests that the server's engines run at the same time, at most. */
  readonly slots: number;
  readonly kvTokens: number;
  readonly kvBlockTokens: number;
  /** The server has speculative decoding of its own. */
  readonly isSpeculative: boolean;
  /** The server can report routed experts (--enable-return-routed-experts). */
  readonly reportsExperts: boolean;
  /** null: none, or not reported (only in development mode). */
  readonly connector: FoundConnector | null;
  /** A response in chunks equals the response in one piece. For hybrid models this is tested, and may be false. */
  readonly isDivisible: boolean;
  /** Data parallel ranks to which a canary can be sent, each with weights of its own. */
  readonly ranks: number;
  /** vLLM's settings (`vllm_config`), for display; undefined: not reported (only in development mode). */
  readonly config?: unknown;
  /** Metrics read during the probe. */
  readonly metrics: ServerMetrics;
  /** Drawbacks of the server's settings, with remedies. */
  readonly warnings: readonly string[];
}

/** A server's kind, and what the probe found of it. */
export interface FoundEngine {
  readonly dialect: EngineDialect;
  readonly capabilities: Capabilities;
}

/** stream: server-sent events. whole: one piece, which can have a report about the prompt. */
type AnswerMode = "stream" | "whole";

export interface ChunkRequest {
  /** "ft-<requestId>-<chunk>-<attempt>". Another sidecar's requests may have the same names. */
  readonly name: string;
  readonly spec: RequestSpec;
  /** Output tokens before this request. */
  readonly offset: number;
  /** Prompt + output so far. */
  readonly tokens: Int32Array;
  /** Limit of new tokens. */
  readonly tokensMax: number;
  /** The response is complete after `tokensMax` more tokens. */
  readonly isLast: boolean;
  /** Lower is served earlier. */
  readonly priority: number;
  readonly cacheSalt: string;
  /** Identifies the run that the request belongs to: all workers of a run have the same, other runs another. */
  readonly run: string;
  /** The weight epoch in which the chunk runs. */
  readonly epoch: WeightEpoch;
  readonly streamInterval: number;
  readonly draft: DraftSource | null;
  /** whole: the answer also brings the report about the prompt. */
  readonly form: AnswerMode;
  /** Position from which experts are reported; null: they are not wanted. */
  readonly expertsFrom: number | null;
}
