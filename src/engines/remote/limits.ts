// The bounds of the worker link: what a message may hold, what each side keeps for the other,
// how long it waits. Every buffer, table and wait of src/engines/remote has its limit here.

/** Raised when a message changes its meaning. Peers of another version are refused. */
export const LINK_PROTOCOL_VERSION = 7;

export const LINK_PATH = "/v1/link";
/** Names the host's process in its answer to a plain GET of that path. */
export const RUN_HEADER = "foretoken-run";

/** Bounds that hold for every message, whatever the sides are configured to. */
export const ID_BYTES_MAX = 64;
export const NAME_CHARS_MAX = 4096;
/** A sidecar's name appears in close reasons and log lines. */
export const SIDECAR_CHARS_MAX = 256;
/** Ids, offsets and counts travel in 32 signed bits, in packed events as in engines. */
export const INT_MAX = 0x7fffffff;
/** A request id that no sidecar may use: the host queries its worker about it, as a barrier. */
export const BARRIER_ID = INT_MAX;
export const TOKEN_BYTES = 4;

export const LINK_LIMITS = {
  /** Largest message in either direction. */
  messageBytesMax: 32 * 2 ** 20,
  /** KV travels in parts of this size. */
  kvPartBytes: 2 ** 20,
  /** KV that waits to be sent, and one KV that comes. Beyond it KV is recomputed. */
  kvBytesMax: 2 ** 30,
  /** Bytes that wait to be read by a peer, beyond which no part of KV is sent. */
  kvWindowBytes: 2 * 2 ** 20,
  /** Bytes that wait to be read by a peer; beyond it the session is over. */
  bufferBytesMax: 256 * 2 ** 20,
  /** Interval of each side's heartbeats. */
  heartbeatMs: 250,
  /** Silence after which a peer is reported as not reachable; it may send again. */
  quietMsMax: 1_000,
  /** Silence after which a peer is lost; also the time for its hello. */
  silenceMsMax: 10_000,
  /** Time without a byte taken after which a peer is too slow. */
  stallMsMax: 30_000,
  // A step, the longest silence of an engine, is bounded by its batch: seconds.
  /** Time without an event of running requests, or a sign of a busy engine, after which a host has failed. */
  standstillMsMax: 60_000,
  /** Time to connect to a host, after which the attempt has failed and the caller retries; also to learn whether it lives. */
  openMsMax: 1_000,
  /** The first pause before a lost host is dialled again; doubles up to the second. */
  retryMsMin: 50,
  retryMsMax: 2_000,
  /** A worker has this long to release what a session left; a large prefill is one step, and takes seconds. */
  clearMsMax: 60_000,
  /** A peer has this long to answer a close. */
  closeMsMax: 2_000,
  /** Requests on the worker. */
  requestsMax: 65_536,
  /** Operations that wait for their answers. */
  operationsMax: 256,
};

export type LinkLimits = Readonly<typeof LINK_LIMITS>;
