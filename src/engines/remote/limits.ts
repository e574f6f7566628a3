// The bounds of the worker link: what a message may hold, what each side keeps for the other,
// how long it waits. Every buffer, table and wait of src/engines/remote has its limit here.

/** Raised when a message changes its meaning. Peers of another version are refused. */
export const LINK_PROTOCOL_VERSION = 5;

export const LINK_PATH = "/v1/link";
/** Names the host's process in its answer to a plain GET of that path. */
export const RUN_HEADER = "foretoken-run";

/** Bounds that hold for every message, whatever the sides are configured to. */
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

export interface LinkLimits {
  /** Largest message in either direction. */
  readonly messageBytesMax: number;
  /** KV that is larger travels in parts of this size. */
  readonly kvPartBytes: number;
  /** KV that waits to be sent, and one KV that comes in parts. Beyond it KV is recomputed. */
  readonly kvBytesMax: number;
  /** Parts of KV that the socket may hold. */
  readonly kvWindowBytes: number;
  /** Bytes that wait to be read by a peer; beyond it the session is over. */
  readonly bufferBytesMax: number;
  /** Bytes that the socket may hold; beyond it messages wait in the buffer above. */
  readonly socketBytesMax: number;
  /** Interval of each side's heartbeats. */
  readonly heartbeatMs: number;
  /** Silence after which a peer is reported as not reachable; it may send again. */
  readonly quietMsMax: number;
  /** Silence after which a peer is lost; also the time for its hello. */
  readonly silenceMsMax: number;
  /** Time without a byte taken after which a peer is too slow. */
  readonly stallMsMax: number;
  /** Time without an event of running requests, or a sign of a busy engine, after which a host has failed. */
  readonly standstillMsMax: number;
  /** Time to connect to a host, after which the attempt has failed and the caller retries; also to learn whether it lives. */
  readonly openMsMax: number;
  /** The first pause before a lost host is dialled again; doubles up to the second. */
  readonly retryMsMin: number;
  readonly retryMsMax: number;
  /** A worker has this long to release what a session left; a large prefill is one step, and takes seconds. */
  readonly clearMsMax: number;
  /** A peer has this long to answer a close. */
  readonly closeMsMax: number;
  /** Requests on the worker. */
  readonly requestsMax: number;
  /** Control requests that wait for their answers. */
  readonly controlsMax: number;
}

export const LINK_LIMITS: LinkLimits = {
  messageBytesMax: 32 * 2 ** 20,
  kvPartBytes: 2 ** 20,
  kvBytesMax: 2 ** 30,
  kvWindowBytes: 2 * 2 ** 20,
  bufferBytesMax: 256 * 2 ** 20,
  socketBytesMax: 4 * 2 ** 20,
  heartbeatMs: 250,
  quietMsMax: 1_000,
  silenceMsMax: 10_000,
  stallMsMax: 30_000,
  // A step, the longest silence of an engine, is bounded by its batch: seconds.
  standstillMsMax: 60_000,
  openMsMax: 1_000,
  retryMsMin: 50,
  retryMsMax: 2_000,
  clearMsMax: 60_000,
  closeMsMax: 2_000,
  requestsMax: 65_536,
  controlsMax: 256,
};
