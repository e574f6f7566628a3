// The dialect of a kind of inference server as one record: how it is recognised, asked, read, aborted, controlled and
// watched. The worker, its monitor and the doctor know servers by these records alone. ../kinds.ts says what a new one takes.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { DraftSource } from "../../core/draft/group-update.ts";
import type { RequestSpec, SamplingParams } from "../../core/request/request.ts";
import type { ControlAnswer } from "../../core/rollout/operation.ts";
import type { SamplingSupport } from "../../core/rollout/worker.ts";
import type { TimerClock } from "./clock.ts";
import type { FoundConnector } from "./connectors.ts";
import type { ServerOperation } from "./control.ts";
import type { HttpAnswer, HttpCall, HttpClient } from "./http.ts";
import type { VllmLimits } from "./limits.ts";
import type { ServerMetrics } from "./metrics.ts";
import type { ServedTraits } from "./served-model.ts";
import type { EngineEvent } from "./stream-event.ts";

/** `server`, of what asks for one: as the dialect's own probe found it. */
export interface EngineDialect {
  /** null: the server is of another kind. @throws AppError worker_failed, unauthorized, not_found. */
  probe(access: ServerAccess): Promise<Capabilities | null>;
  /** @throws RangeError: the client's own fields are nested too deep to be written. */
  body(chunk: ChunkRequest, form: RequestForm): string;
  /** One event of a stream, or a whole answer. `topLogprobs`: alternatives wanted at each position. */
  read(data: Buffer, topLogprobs: number): EngineEvent;
  /** Call that ends an abandoned request; null: closing its connection does. */
  abort(chunk: ChunkRequest): HttpCall | null;
  /** Trainers' clients abort requests at each engine that they find listed. */
  readonly takesAborts: boolean;
  /** The function that carries out operations. It never rejects. */
  control(
    client: HttpClient,
    server: Capabilities,
  ): (operation: ServerOperation) => Promise<ControlAnswer>;
  watch(server: Capabilities): Watch;
  supports(sampling: SamplingParams, server: Capabilities): SamplingSupport;
  /** The routed experts of `rows` positions as an .npy file; null: there are fewer. */
  experts(reported: Uint8Array, rows: number): Uint8Array | null;
  /**
   * Empties the server's prefix cache before an epoch begins, while `isWanted`, and returns the problem; null: the
   * cache is empty. No such function: the salts of the epochs separate their KV.
   */
  readonly emptyCache:
    | ((access: ServerAccess, isWanted: () => boolean) => Promise<string | null>)
    | null;
}

/** A server that is asked. */
export interface ServerAccess {
  readonly client: HttpClient;
  readonly clock: TimerClock;
  readonly limits: VllmLimits;
  readonly cacheSalt: string;
}

export interface Polled {
  readonly answer: HttpAnswer;
  /** null: there are metrics. */
  readonly problem: string | null;
  readonly metrics: ServerMetrics | null;
}

export type Get = (path: string) => Promise<HttpAnswer>;

export interface Watch {
  readonly poll: (get: Get) => Promise<Polled>;
  /** Path whose JSON answer has `weight_version`. */
  readonly versionPath: string;
  /** Answers while requests are silent: queued, preempted, or paused. */
  readonly healthPath: string;
}

export type Endpoint = "generate" | "completions" | "sglang";

export const ENDPOINT_PATHS: Readonly<Record<Endpoint, string>> = {
  generate: "/inference/v1/generate",
  completions: "/v1/completions",
  sglang: "/generate",
};

/** The form in which a server takes requests, found by asking it. */
export interface RequestForm {
  readonly endpoint: Endpoint;
  readonly model: string;
  /**
   * The server accepts priorities. Without `--scheduling-policy priority` older versions answer 400, newer ones ignore
   * them.
   */
  readonly hasPriorities: boolean;
  /** Logprobs it reports at each position, at most (`--max-logprobs`). */
  readonly logprobsMax: number;
  /** The server knows `stream_interval`, and reports the count of tokens with every event. */
  readonly hasStreamSettings: boolean;
  /** The server survives a request with a seed at any time. */
  readonly hasSeeds: boolean;
  /** Higher priorities run first. Absent: lower ones. */
  readonly highestFirst?: boolean;
}

export interface Capabilities extends RequestForm {
  /** "0.32.0"; null: not reported. */
  readonly version: string | null;
  /** Prompt + output of one request. */
  readonly contextTokens: number;
  readonly traits: ServedTraits;
  /** Requests that its engines run at the same time. */
  readonly slots: number;
  readonly kvTokens: number;
  readonly kvBlockTokens: number;
  /** The server drafts without the sidecar. */
  readonly isSpeculative: boolean;
  /** --enable-return-routed-experts: it reports them of every request. */
  readonly reportsExperts: boolean;
  /** null: none, or not reported (only in development mode). */
  readonly connector: FoundConnector | null;
  /** A response in chunks is the one that it is in one piece: of hybrid models it has been shown, or it is not so. */
  readonly isDivisible: boolean;
  /** Data parallel ranks that a canary can name, each with weights of its own. */
  readonly ranks: number;
  /** vLLM's own settings (`vllm_config`), for people; undefined: not reported (only in development mode). */
  readonly config?: unknown;
  /** Metrics read during the probe. */
  readonly metrics: ServerMetrics;
  /** Limitations of the server's settings, with remedies. */
  readonly warnings: readonly string[];
}

/** A server's kind, and what the probe found of it. */
export interface FoundEngine {
  readonly dialect: EngineDialect;
  readonly capabilities: Capabilities;
}

/** How the answer comes. whole: in one piece, with what a stream does not bring. */
type AnswerMode = "stream" | "whole";

export interface ChunkRequest {
  /** "ft-<requestId>-<chunk>-<attempt>". Other requests of the server may begin so. */
  readonly name: string;
  readonly spec: RequestSpec;
  /** Output tokens before this request. */
  readonly offset: number;
  /** Prompt + output so far. */
  readonly tokens: Int32Array;
  /** Limit of new tokens. */
  readonly tokensMax: number;
  /** `tokensMax` more tokens complete the response. */
  readonly isLast: boolean;
  /** Lower is served earlier. */
  readonly priority: number;
  readonly cacheSalt: string;
  /** Names the run that the request belongs to: the same for all its workers, different for another run. */
  readonly run: string;
  /** Epoch of the weights that the chunk is for. */
  readonly epoch: WeightEpoch;
  readonly streamInterval: number;
  readonly draft: DraftSource | null;
  /** whole: with logprobs of the prompt, where they are wanted. */
  readonly form: AnswerMode;
  /** Position from which experts are reported; null: they are not wanted. */
  readonly expertsFrom: number | null;
}
