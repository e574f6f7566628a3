// The server's side of one connection: a hello first, then messages, each answered at once. Refuses
// peers of another protocol version and messages out of place. Owns no socket.

import { DRAFT_PROTOCOL_VERSION } from "./limits.ts";
import type { Budget, ClientMessage, Hello, ServerMessage, Telemetry } from "./message.ts";
import { type DraftServer, EPOCHS_AHEAD_MAX } from "./server.ts";

export type SessionAnswer =
  | { readonly kind: "reply"; readonly message: ServerMessage }
  /** The connection ends. */
  | {
      readonly kind: "refuse";
      readonly reason: "version" | "unexpected_message" | "invalid_message";
      readonly problem: string;
    };

/** Receives the telemetry of engines with the plugin, and sets their draft budgets. */
export interface EngineReports {
  /** Interval between two reports. */
  readonly telemetryMs: number;
  /** `engine`: the name it gave itself, "" if none. */
  report(engine: string, telemetry: Telemetry): Budget;
}

export class DraftSession {
  readonly #server: DraftServer;
  readonly #reports: EngineReports | null;
  #isGreeted = false;
  #engine = "";

  /** `reports` null: telemetry is refused. */
  constructor(server: DraftServer, reports: EngineReports | null = null) {
    this.#server = server;
    this.#reports = reports;
  }

  get isGreeted(): boolean {
    return this.#isGreeted;
  }

  receive(message: ClientMessage): SessionAnswer {
    if (message.kind === "hello") return this.#greet(message);
    if (!this.#isGreeted) return unexpected(`${message.kind} before hello`);
    if (this.#server.isBeyond(message.epoch)) {
      const bound = `more than ${EPOCHS_AHEAD_MAX} ahead of the server's ${this.#server.epoch}`;
      const problem = `epoch is ${message.epoch}, ${bound}`;
      return { kind: "refuse", reason: "invalid_message", problem };
    }
    switch (message.kind) {
      case "register_group":
        return { kind: "reply", message: this.#server.register(message) };
      case "update":
        return { kind: "reply", message: this.#server.update(message) };
      case "fetch":
        return { kind: "reply", message: this.#server.fetchDeltas(message) };
      case "telemetry":
        if (this.#reports === null) return unexpected("telemetry is not asked for here");
        return { kind: "reply", message: this.#reports.report(this.#engine, message) };
      case "fetch_past":
        if (!this.#server.hasPast) return unexpected("there is no history here");
        return { kind: "reply", message: this.#server.fetchPast(message) };
    }
  }

  #greet({ protocolVersion: version, engine = "", release = "" }: Hello): SessionAnswer {
    if (this.#isGreeted) return unexpected("a second hello");
    if (version !== DRAFT_PROTOCOL_VERSION) {
      const problem = `draft protocol ${version}; this server speaks ${DRAFT_PROTOCOL_VERSION}`;
      return { kind: "refuse", reason: "version", problem };
    }
    const { release: served } = this.#server;
    if (release !== "" && served !== null && release !== served) {
      const fix = `install foretoken[vllm]==${served} beside vLLM`;
      const problem = `plugin ${release}, sidecar ${served}: ${fix}`;
      return { kind: "refuse", reason: "version", problem };
    }
    this.#isGreeted = true;
    this.#engine = engine;
    const { epoch, instanceId, limits, hasPast } = this.#server;
    const { frameBytesMax } = limits;
    const protocolVersion = DRAFT_PROTOCOL_VERSION;
    const telemetry = this.#reports === null ? {} : { telemetryMs: this.#reports.telemetryMs };
    const past = hasPast ? { hasPast } : {};
    const welcome = { kind: "welcome", protocolVersion, instanceId, epoch, frameBytesMax } as const;
    return { kind: "reply", message: { ...welcome, ...telemetry, ...past } };
  }
}

function unexpected(problem: string): SessionAnswer {
  return { kind: "refuse", reason: "unexpected_message", problem };
}
