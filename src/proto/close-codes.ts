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
  /** internal_error: the server threw an error while it served this connection. */
  internal: 1011,
  /** slow_consumer, or no room for another connection. */
  tryLater: 1013,
} as const;

/** Cuts a reason to what surely fits into a close frame: 123 bytes (RFC 6455, 5.5). */
export function closeReason(text: string): string {
  return text.replace(/[^\x20-\x7e]/g, "?").slice(0, 120);
}
