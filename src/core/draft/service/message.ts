// Messages of draft clients and draft servers, as values; src/proto/draft-codec.ts turns
// them into frames and back. Each client message gets exactly one answer, in order.

import type { GroupId, WeightEpoch } from "../../base/ids.ts";

/** Tokens of one response. `offset` counts its output tokens before these. */
export interface SampleDelta {
  readonly sampleIndex: number;
  readonly offset: number;
  readonly tokens: Int32Array;
}

export interface GroupDelta {
  readonly groupId: GroupId;
  readonly deltas: readonly SampleDelta[];
}

/** Tokens that a client has of a group: output tokens by sample index. */
export interface CacheState {
  readonly groupId: GroupId;
  readonly have: readonly number[];
}

/** The first message of a connection, and only that. */
export interface Hello {
  readonly kind: "hello";
  readonly protocolVersion: number;
  /** The engine's name for people. */
  readonly engine?: string;
  /** Release of Foretoken that the client is of; not given: it is not of this project. */
  readonly release?: string;
}

/** Keep the group's logs for `ttlMs` after their last use. Again: the longer time counts. */
export interface RegisterGroup {
  readonly kind: "register_group";
  readonly epoch: WeightEpoch;
  readonly groupId: GroupId;
  readonly ttlMs: number;
  readonly prompt: Int32Array;
}

/** `update_cst` of the paper, for many responses at once. */
export interface Update {
  readonly kind: "update";
  readonly epoch: WeightEpoch;
  readonly groups: readonly GroupDelta[];
}

/** `fetch_cst` of the paper: whatever the client lacks. */
export interface Fetch {
  readonly kind: "fetch";
  readonly epoch: WeightEpoch;
  readonly states: readonly CacheState[];
}

/** Telemetry of an engine with the plugin. Counters since its start, times in microseconds. */
export interface Telemetry {
  readonly kind: "telemetry";
  readonly epoch: WeightEpoch;
  readonly running: number;
  /** null: the process that drafts does not see it. */
  readonly waiting: number | null;
  /** Share of the KV blocks in use, 0 to 1; null: not seen. */
  readonly kvUsage: number | null;
  /** false: its sampler would judge drafts wrongly, so it drafts nothing. */
  readonly isLossless: boolean;
  readonly steps: number;
  readonly stepUs: number;
  readonly proposeUs: number;
  readonly drafted: number;
  readonly accepted: number;
  /** Accepted tokens whose origin was determined, and those that came only from siblings on other engines. */
  readonly traced: number;
  readonly tracedElsewhere: number;
  readonly faults: number;
  /** How far steps took of late from what the plugin expected of them, as a part of that. */
  readonly stepError: number;
  /** A seed repeats a response: it drafts nothing, or its drafts do not change the tokens. */
  readonly repeatsSeeds: boolean;
}

/** Responses to the group's prompt of earlier weight epochs, after the first `have`. */
export interface FetchPast {
  readonly kind: "fetch_past";
  readonly epoch: WeightEpoch;
  readonly groupId: GroupId;
  readonly have: number;
}

export type ClientMessage = Hello | RegisterGroup | Update | Fetch | Telemetry | FetchPast;

export interface Welcome {
  readonly kind: "welcome";
  readonly protocolVersion: number;
  /** Number of this run of the server. Another one means that it restarted and has lost its logs. */
  readonly instanceId: number;
  readonly epoch: WeightEpoch;
  readonly frameBytesMax: number;
  /** Interval of Telemetry; absent: the server takes none. */
  readonly telemetryMs?: number;
  /** true: the server answers FetchPast; absent: it does not. */
  readonly hasPast?: true;
}

/** stale_epoch: the message is of an older weight epoch than the server; nothing was done. */
export type AnswerStatus = "ok" | "stale_epoch";

/** conflict: the group has another prompt. full: it does not fit. */
export type RegisterStatus = AnswerStatus | "conflict" | "full";

export interface Registered {
  readonly kind: "registered";
  readonly epoch: WeightEpoch;
  readonly status: RegisterStatus;
  readonly groupId: GroupId;
  readonly version: number;
  /** Output tokens that the server has, by sample index. */
  readonly have: readonly number[];
}

/**
 * held: kept until the tokens before them arrive. gap: too far ahead; send again from `have`.
 * full: beyond the group's bytes or samples. unknown: the group is not registered (any more).
 */
export const REFUSAL_REASONS = ["held", "gap", "full", "unknown"] as const;
export type RefusalReason = (typeof REFUSAL_REASONS)[number];

export interface UpdateRefusal {
  readonly groupId: GroupId;
  readonly sampleIndex: number;
  readonly reason: RefusalReason;
  readonly have: number;
}

/** Deltas that are not named were taken. */
export interface Updated {
  readonly kind: "updated";
  readonly epoch: WeightEpoch;
  readonly status: AnswerStatus;
  readonly refusals: readonly UpdateRefusal[];
}

/** The client has more of the response than the server, which has `have` tokens. */
export interface SampleBehind {
  readonly sampleIndex: number;
  readonly have: number;
}

export interface FetchedGroup extends GroupDelta {
  /** Counts the tokens of all logs. */
  readonly version: number;
  readonly behind: readonly SampleBehind[];
}

export interface Fetched {
  readonly kind: "fetched";
  readonly epoch: WeightEpoch;
  readonly status: AnswerStatus;
  /** Groups without news are omitted. */
  readonly groups: readonly FetchedGroup[];
  readonly unknown: readonly GroupId[];
  /** The frame was full: fetch again at once. */
  readonly more: boolean;
}

/** The answer to Telemetry: bounds that hold for `ttlMs`. */
export interface Budget {
  readonly kind: "budget";
  readonly epoch: WeightEpoch;
  /** Draft tokens of one engine step, all requests together; 0: draft nothing. */
  readonly stepTokens: number;
  readonly ttlMs: number;
}

export interface Past {
  readonly kind: "past";
  readonly epoch: WeightEpoch;
  readonly status: AnswerStatus;
  readonly groupId: GroupId;
  readonly have: number;
  /** The latest epoch first, each as far as a frame holds it. Empty: there are no more, or the group is not registered. */
  readonly responses: readonly Int32Array[];
  /** Further responses exist. */
  readonly more: boolean;
}

export type ServerMessage = Welcome | Registered | Updated | Fetched | Budget | Past;
