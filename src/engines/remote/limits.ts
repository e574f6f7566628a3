// The bounds of the worker link: what a frame and a message may hold, what each side keeps for the other,
// how long it waits. Every buffer, table and wait of src/engines/remote has its limit here.

/** Raised when a frame changes its meaning. Peers of another version are refused. */
export const LINK_PROTOCOL_VERSION = 2;

export const LINK_PATH = "/v1/link";

/** Bounds that hold for every frame, whatever the sides are configured to. */
export const ID_BYTES_MAX = 64;
export const NAME_CHARS_MAX = 4096;
/** A sidecar's name appears in close reasons and log lines. */
export const SIDECAR_CHARS_MAX = 256;
export const JSON_CHARS_MAX = 16 * 2 ** 20;
export const TTL_MS_MAX = 86_400_000;
/** Ids, offsets and counts travel in 32 signed bits, in packed events as in engines. */
export const INT_MAX = 0x7fffffff;
/** A request id that no sidecar may use: the host queries its worker about it, as a barrier. */
export const BARRIER_ID = INT_MAX;
export const TOKEN_BYTES = 4;

/** Bytes of a frame beyond its payload, at most: a welcome, the largest without one, fits as well. */
export const FRAME_OVERHEAD_BYTES = 64 * 1024;

export interface LinkLimits {
  /** Payload of one frame, the same on both sides; larger messages travel in several. */
  readonly frameBytesMax: number;
  /** One message, either way. */
  readonly messageBytesMax: number;
  /** KV that waits to be sent, and one KV that comes in parts. Beyond it KV is recomputed. */
  readonly kvBytesMax: number;
  /** Parts of KV that were sent and not acknowledged. */
  readonly kvWindowBytes: number;
  /** Bytes sent and not yet acknowledged; beyond it the session is over. */
  readonly bufferBytesMax: number;
  /** Bytes that the socket may hold; beyond it frames wait in the buffer above. */
  readonly socketBytesMax: number;
  /** Interval of each side's heartbeats. */
  readonly heartbeatMs: number;
  /** Silence after which a peer is reported as not reachable; it may send again. */
  readonly quietMsMax: number;
  /** Silence after which a peer is lost; also the time for its hello. */
  readonly silenceMsMax: number;
  /** Time without an acknowledgement after which a peer is too slow. */
  readonly stallMsMax: number;
  /** Time without an event of running requests, or a sign of a busy engine, after which a host has failed. */
  readonly standstillMsMax: number;
  /** Time after a cut for which a session can be resumed. */
  readonly resumeMsMax: number;
  /** Time to connect to a host; then the attempt has failed, and the caller retries. */
  readonly openMsMax: number;
  /** The first pause before a lost host is dialled again; doubles up to the second. */
  readonly retryMsMin: number;
  readonly retryMsMax: number;
  /** A worker has this long to release what a session left; a large prefill is one step, and takes seconds. */
  readonly clearMsMax: number;
  /** A peer has this long to answer a close. */
  readonly closeMsMax: number;
  /** Prompts that the host remembers, in tokens; the one used longest ago is forgotten. */
  readonly promptTokensMax: number;
  /** Outputs that the host remembers, in tokens; the one run longest ago is forgotten. */
  readonly outputTokensMax: number;
  /** Requests on the worker, and outputs remembered. */
  readonly requestsMax: number;
  /** Control requests that wait for their answers. */
  readonly controlsMax: number;
}

export const LINK_LIMITS: LinkLimits = {
  frameBytesMax: 2 ** 20,
  messageBytesMax: 128 * 2 ** 20,
  kvBytesMax: 2 ** 30,
  kvWindowBytes: 8 * 2 ** 20,
  bufferBytesMax: 256 * 2 ** 20,
  socketBytesMax: 4 * 2 ** 20,
  heartbeatMs: 250,
  quietMsMax: 1_000,
  silenceMsMax: 10_000,
  stallMsMax: 30_000,
  // A step, the longest silence of an engine, is bounded by its batch: seconds.
  standstillMsMax: 60_000,
  resumeMsMax: 30_000,
  openMsMax: 1_000,
  retryMsMin: 50,
  retryMsMax: 2_000,
  clearMsMax: 60_000,
  closeMsMax: 2_000,
  promptTokensMax: 16 * 2 ** 20,
  outputTokensMax: 16 * 2 ** 20,
  requestsMax: 65_536,
  controlsMax: 256,
};
