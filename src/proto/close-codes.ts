// WebSocket close codes, by the condition that ends a connection (docs/PROTOCOL.md has the same table).

export const CLOSE = {
  /** draining: the server stops. */
  goingAway: 1001,
  /** unexpected_message: a valid message at the wrong moment. */
  protocol: 1002,
  /** unexpected_text: frames are binary. */
  text: 1003,
  /** undecodable, invalid_message. */
  invalid: 1007,
  /** version: the peer speaks another version of the protocol. */
  version: 1008,
  /** internal_error: what the server did for this connection threw an error. */
  internal: 1011,
  /** A frame larger than the limit. */
  tooLarge: 1009,
  /** taken_over: the session is over, another sidecar has the worker. */
  takenOver: 4001,
  /** slow_consumer, or no room for another connection. */
  tryLater: 1013,
} as const;

/** A close frame has room for 123 bytes of reason (RFC 6455, 5.5): cut to what surely fits. */
export function closeReason(text: string): string {
  return text.replace(/[^\x20-\x7e]/g, "?").slice(0, 120);
}
