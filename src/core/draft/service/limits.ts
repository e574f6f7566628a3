// The bounds of the draft service: what a server keeps, what a frame may hold, for how long a group lives.
// Every queue, table and frame of src/core/draft/service has its limit here.

import { GROUP_TOKENS_MAX, SEQUENCES_MAX } from "../../wasm/abi.ts";

/** Raised when a frame changes its meaning. Peers of another version are refused. */
export const DRAFT_PROTOCOL_VERSION = 1;

/** Bounds that hold for every frame, whatever a server is configured to: the core's own (assembly/abi.ts). */
export const SAMPLES_MAX = SEQUENCES_MAX;
export const LOG_TOKENS_MAX = GROUP_TOKENS_MAX;
export const GROUP_ID_BYTES_MAX = 256;
export const TTL_MS_MAX = 86_400_000;
export const ENGINE_NAME_BYTES_MAX = 256;
/** Value in a Budget for no limit but the engine's own break-even. */
export const STEP_TOKENS_UNBOUNDED = 0x7fffffff;

export interface DraftServerLimits {
  /** Groups kept; one more drops the one that was used longest ago. */
  readonly groupsMax: number;
  /** Responses of one group, at most SAMPLES_MAX. */
  readonly samplesMax: number;
  /** Bytes of one group's prompt and logs; tokens beyond are refused as `full`. */
  readonly groupBytesMax: number;
  /** Bytes of all groups; one more drops the one that was used longest ago. */
  readonly bytesMax: number;
  /** How far behind a log's end tokens may begin or reach and still be held until the hole closes. */
  readonly windowTokens: number;
  /** Bytes of one frame, either way. */
  readonly frameBytesMax: number;
}

export const DRAFT_SERVER_LIMITS: DraftServerLimits = {
  groupsMax: 4096,
  samplesMax: 256,
  groupBytesMax: 64 * 2 ** 20,
  bytesMax: 2 ** 30,
  windowTokens: 4096,
  frameBytesMax: 2 ** 20,
};

/** Less than this has no room for one token of a group with the longest name. */
export const FRAME_BYTES_MIN = 1024;

/** Bytes that a group id takes on the wire, at most: UTF-8 takes three for a UTF-16 unit. */
export function idBytes(id: string): number {
  return 3 * id.length;
}

/** Upper bounds of what the fields around ids and tokens take in a frame (proto/draft.proto). */
export const FRAME_OVERHEAD_BYTES = 64;
export const GROUP_OVERHEAD_BYTES = 32;
export const DELTA_OVERHEAD_BYTES = 24;
export const COUNT_BYTES = 5;
export const TOKEN_BYTES = 4;
