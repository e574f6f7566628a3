// The server's side of one connection: a hello first, then messages, each answered at once. Refuses
// peers of another protocol version and messages out of place. Owns no socket.

import { DRAFT_PROTOCOL_VERSION } from "./limits.ts";
import type { ClientMessage, ServerMessage } from "./message.ts";
import type { DraftServer } from "./server.ts";

export type SessionAnswer =
  | { readonly kind: "reply"; readonly message: ServerMessage }
  /** The connection ends. */
  | {
      readonly kind: "refuse";
      readonly reason: "version" | "unexpected_message";
      readonly problem: string;
    };

export class DraftSession {
  readonly #server: DraftServer;
  #isGreeted = false;

  constructor(server: DraftServer) {
    this.#server = server;
  }

  get isGreeted(): boolean {
    return this.#isGreeted;
  }

  receive(message: ClientMessage): SessionAnswer {
    if (message.kind === "hello") return this.#greet(message.protocolVersion);
    if (!this.#isGreeted) return unexpected(`${message.kind} before hello`);
    switch (message.kind) {
      case "register_group":
        return { kind: "reply", message: this.#server.register(message) };
      case "update":
        return { kind: "reply", message: this.#server.update(message) };
      case "fetch":
        return { kind: "reply", message: this.#server.fetchDeltas(message) };
    }
  }

  #greet(version: number): SessionAnswer {
    if (this.#isGreeted) return unexpected("a second hello");
    if (version !== DRAFT_PROTOCOL_VERSION) {
      const problem = `draft protocol ${version}; this server speaks ${DRAFT_PROTOCOL_VERSION}`;
      return { kind: "refuse", reason: "version", problem };
    }
    this.#isGreeted = true;
    const { epoch, instanceId, limits } = this.#server;
    const { frameBytesMax } = limits;
    const protocolVersion = DRAFT_PROTOCOL_VERSION;
    const message = { kind: "welcome", protocolVersion, instanceId, epoch, frameBytesMax } as const;
    return { kind: "reply", message };
  }
}

function unexpected(problem: string): SessionAnswer {
  return { kind: "refuse", reason: "unexpected_message", problem };
}
