// Serves one worker to one sidecar at a time over a WebSocket server. Decides who may have the worker, and when a session
// is over: with its connection at the latest. Then the worker's state is restored. A worker that fails ends its session,
// and sidecars are refused until its owner provides another. Never waits for a peer, and keeps a bounded amount for it.

import { createHash, timingSafeEqual } from "node:crypto";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { type WebSocket, WebSocketServer } from "ws";
import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { ControlAnswer } from "../../core/rollout/operation.ts";
import type { KvBlob, Worker, WorkerEvent, WorkerStats } from "../../core/rollout/worker.ts";
import { CLOSE } from "../../proto/close-codes.ts";
import { decodeSidecarMessage, encodeHostMessage } from "./codec.ts";
import { type Closed, Connection } from "./connection.ts";
import { HostSession, Refused } from "./host-session.ts";
import { kvMessages } from "./kv-parts.ts";
import {
  BARRIER_ID,
  LINK_LIMITS,
  LINK_PATH,
  LINK_PROTOCOL_VERSION,
  type LinkLimits,
  RUN_HEADER,
} from "./limits.ts";
import type { Hello, HostMessage, SidecarMessage, WireCommand, WireEvent } from "./message.ts";

export interface LinkHostOptions {
  /** A worker without a listener. The host closes neither it nor its replacements. */
  readonly worker: Worker;
  readonly vocabularySize: number;
  /** Epoch of the worker's weights at the start. */
  readonly epoch: WeightEpoch;
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  /** Asked of every sidecar; null: none is. */
  readonly token: string | null;
  readonly clock: Clock;
  readonly limits?: Partial<LinkLimits>;
  readonly events?: (event: LinkHostEvent) => void;
}

/** Events for the operator's log. `sidecar`: its own name. */
export type LinkHostEvent =
  | { readonly kind: "session_began"; readonly sidecar: string }
  | { readonly kind: "session_ended"; readonly sidecar: string; readonly reason: string }
  /** The worker is of no use any more: sidecars wait until `replace` brings another. */
  | { readonly kind: "worker_failed"; readonly reason: string };

type FromSidecar = Exclude<SidecarMessage, { kind: "heartbeat" }>;

interface Peer {
  readonly connection: Connection<FromSidecar>;
  /** Deadline of its hello. */
  readonly deadline: ReturnType<typeof setTimeout>;
}

interface Session {
  readonly peer: Peer;
  readonly sidecarId: string;
  /** The sidecar's own name. */
  readonly sidecar: string;
  readonly state: HostSession;
  /** Largest KV that the sidecar accepts. */
  readonly kvBytesMax: number;
  operations: number;
}

/**
 * Sidecars that dial at the same time; one of them has the worker. Each may send one message of `messageBytesMax` before
 * its hello is checked, so that they take 256 MiB at most.
 */
const PEERS_MAX = 8;
const HEARTBEAT = encodeHostMessage({ kind: "heartbeat" });

export class LinkHost {
  /** The address that a sidecar dials. */
  readonly url: string;
  readonly #options: LinkHostOptions;
  readonly #limits: LinkLimits;
  readonly #server: Server;
  readonly #run: string;
  readonly #peers = new Set<Peer>();
  #worker: Worker;
  #epoch: WeightEpoch;
  /** The worker's last report. */
  #stats: WorkerStats | null = null;
  #session: Session | null = null;
  /** The worker still has to answer for the last session: until then no sidecar gets it. */
  #clearing: ReturnType<typeof setTimeout> | null = null;
  #failure: string | null = null;
  #isClosing = false;

  private constructor(options: LinkHostOptions, limits: LinkLimits, server: Server, run: string) {
    this.#options = options;
    this.#limits = limits;
    this.#server = server;
    this.#run = run;
    this.#epoch = options.epoch;
    this.#worker = options.worker;
    const { address, port, family } = server.address() as AddressInfo;
    this.url = `ws://${family === "IPv6" ? `[${address}]` : address}:${port}`;
    this.#listenTo(options.worker);
    const sockets = new WebSocketServer({
      server,
      path: LINK_PATH,
      maxPayload: limits.messageBytesMax,
      perMessageDeflate: false,
      clientTracking: false,
    });
    sockets.on("connection", (socket, request) => {
      this.#accept(socket, request.headers.origin !== undefined);
    });
  }

  /** Listens. @throws AppError usage if the address cannot be had. */
  static async listen(options: LinkHostOptions): Promise<LinkHost> {
    const { host, port } = options;
    const run = crypto.randomUUID();
    // A sidecar whose connection was cut asks whether this process lives.
    const server = createServer((_request, response) => {
      response.writeHead(426, { [RUN_HEADER]: run, connection: "close" }).end();
    });
    await new Promise<void>((resolve, reject) => {
      server.once("error", (cause) => {
        const message = `cannot listen on ${host}:${port}: ${cause.message}`;
        reject(new AppError("usage", message, { cause }));
      });
      server.listen(port, host, resolve);
    });
    return new LinkHost(options, { ...LINK_LIMITS, ...options.limits }, server, run);
  }

  /** Takes the place of a worker that has failed. `epoch`: of its weights. */
  replace(worker: Worker, epoch: WeightEpoch): void {
    assert(this.#failure !== null, "only a worker that has failed is replaced");
    this.#worker = worker;
    this.#epoch = epoch;
    this.#failure = null;
    this.#listenTo(worker);
  }

  /** Stops listening and closes the sidecar's connection. The worker is the caller's to close. Safe to call twice. */
  async close(): Promise<void> {
    if (this.#isClosing) return;
    this.#isClosing = true;
    const stopped = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const peer of this.#peers) peer.connection.end(CLOSE.goingAway, "draining");
    this.#cleared();
    await stopped;
  }

  #accept(socket: WebSocket, isBrowser: boolean): void {
    const connection = new Connection<FromSidecar>(socket, {
      limits: this.#limits,
      clock: this.#options.clock,
      decode: decodeSidecarMessage,
      heartbeat: HEARTBEAT,
      message: (message) => this.#message(peer, message),
      closed: (closed) => this.#closed(peer, closed),
    });
    const deadline = setTimeout(() => {
      if (this.#session?.peer !== peer) peer.connection.end(CLOSE.protocol, "no hello in time");
    }, this.#limits.silenceMsMax);
    const peer: Peer = { connection, deadline };
    this.#peers.add(peer);
    void connection.gone.then(() => this.#peers.delete(peer));
    // Any page that a browser shows can dial loopback; no page is a sidecar.
    if (isBrowser) peer.connection.end(CLOSE.version, "unauthorized: browsers are not served");
    else if (this.#isClosing) peer.connection.end(CLOSE.goingAway, "draining");
    else if (this.#peers.size > PEERS_MAX)
      peer.connection.end(CLOSE.tryLater, "too many connections");
  }

  #message(peer: Peer, message: FromSidecar): void {
    const session = this.#session?.peer === peer ? this.#session : null;
    if (message.kind === "hello") {
      if (session === null) this.#hello(peer, message);
      else peer.connection.end(CLOSE.protocol, "unexpected_message: a second hello");
    } else if (message.kind === "bye") peer.connection.end(1000, "bye");
    else if (session === null) {
      peer.connection.end(CLOSE.protocol, `unexpected_message: ${message.kind} before the hello`);
    } else this.#take(session, message);
  }

  #hello(peer: Peer, hello: Hello): void {
    const refusal = refusalOf(hello, this.#options.token);
    const current = this.#session;
    if (refusal !== null) peer.connection.end(CLOSE.version, refusal);
    else if (this.#failure !== null) {
      peer.connection.end(CLOSE.tryLater, `worker_failed: ${this.#failure}`);
    } else if (current !== null && !isLeft(current, hello)) {
      // The current sidecar is alive: two sidecars do not take the worker from each other in turns.
      peer.connection.end(CLOSE.tryLater, `busy: in use by ${current.sidecar}`);
    } else {
      // Its sidecar gets the reason if it can be reached.
      if (current !== null) {
        current.peer.connection.end(CLOSE.takenOver, `taken_over: by ${hello.sidecarName}`);
      }
      if (this.#clearing === null) this.#begin(peer, hello);
      else peer.connection.end(CLOSE.tryLater, "busy: the last session is being released");
    }
  }

  #begin(peer: Peer, hello: Hello): void {
    const worker = this.#worker;
    const { messageBytesMax, kvBytesMax, requestsMax } = this.#limits;
    const limits = { messageBytesMax, kvBytesMax, requestsMax };
    const session: Session = {
      peer,
      sidecarId: hello.sidecarId,
      sidecar: hello.sidecarName === "" ? "an unnamed sidecar" : hello.sidecarName,
      state: new HostSession(limits, this.#stats),
      kvBytesMax: hello.kvBytesMax,
      operations: 0,
    };
    this.#session = session;
    this.#tell({ kind: "session_began", sidecar: session.sidecar });
    this.#send(session, {
      kind: "welcome",
      protocolVersion: LINK_PROTOCOL_VERSION,
      hostRun: this.#run,
      epoch: this.#epoch,
      vocabularySize: this.#options.vocabularySize,
      capacity: worker.capacity,
      limits,
      weights: worker.weights ?? null,
    });
  }

  #tell(event: LinkHostEvent): void {
    this.#options.events?.(event);
  }

  #take(session: Session, message: Exclude<FromSidecar, { kind: "hello" | "bye" }>): void {
    switch (message.kind) {
      case "kv_part": {
        const problem = session.state.kvPart(message.part);
        if (problem !== null) {
          session.peer.connection.end(CLOSE.invalid, `invalid_message: ${problem}`);
        }
        return;
      }
      case "commands":
        this.#commands(session, message.commands);
        return;
      case "operation":
        this.#perform(session, message);
        return;
    }
  }

  #commands(session: Session, commands: readonly WireCommand[]): void {
    try {
      this.#worker.send(session.state.commands(commands));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const code = error.reason === "invalid_message" ? CLOSE.invalid : CLOSE.protocol;
      session.peer.connection.end(code, `${error.reason}: ${error.message}`);
    }
  }

  #perform(
    session: Session,
    { operation, operationId, nextEpoch }: Extract<FromSidecar, { kind: "operation" }>,
  ): void {
    const worker = this.#worker;
    session.operations += 1;
    if (session.operations > this.#limits.operationsMax) {
      session.peer.connection.end(CLOSE.protocol, "unexpected_message: too many operations");
      return;
    }
    const answered = (answer: ControlAnswer) => {
      session.operations -= 1;
      const weights = worker.weights ?? null;
      this.#send(session, { kind: "answer", operationId, answer, weights });
    };
    worker.perform(operation, nextEpoch).then(answered, (error: unknown) => {
      answered({ status: 502, body: { error: String(error) } });
    });
  }

  #listenTo(worker: Worker): void {
    this.#stats = null;
    worker.listen((epoch, events) => {
      // Events of a replaced worker are dropped.
      if (worker === this.#worker && this.#failure === null) this.#received(epoch, events);
    });
  }

  #received(epoch: WeightEpoch, events: readonly WorkerEvent[]): void {
    this.#epoch = epoch;
    for (const event of events) if (event.kind === "stats") this.#stats = event.stats;
    const failure = events.find((event) => event.kind === "failed");
    if (this.#clearing !== null) {
      const answer = events.find(
        (event) => event.kind === "exported" && event.requestId === BARRIER_ID,
      );
      if (answer !== undefined) this.#cleared();
    } else if (this.#session !== null) {
      const session = this.#session;
      const wire = session.state.events(events, (kv, event) => this.#sendKv(session, kv, event));
      if (wire.length > 0) this.#send(session, { kind: "events", epoch, events: wire });
    }
    if (failure?.kind === "failed") this.workerFailed(failure.message);
  }

  /** false: the sidecar takes no KV that large, or too much waits. KV of an epoch that is over is not wanted. */
  #sendKv(session: Session, kv: KvBlob | null, event: WireEvent): boolean {
    const epoch = this.#epoch;
    const bytes = kv?.bytes.byteLength ?? 0;
    if (bytes > session.kvBytesMax) return false;
    const messages = kvMessages(kv, {
      partBytes: this.#limits.kvPartBytes,
      last: () => encodeHostMessage({ kind: "events", epoch, events: [event] }),
      isWanted: () => this.#epoch === epoch,
    });
    return session.peer.connection.pushLater(messages, bytes);
  }

  /** Ends the session because the worker has failed or must not be used any more. Its sidecar gets the reason. */
  workerFailed(message: string): void {
    if (this.#failure !== null || this.#isClosing) return;
    this.#failure = message;
    this.#cleared();
    const reason = `worker_failed: ${message}`;
    if (this.#session !== null) this.#session.peer.connection.end(CLOSE.goingAway, reason);
    this.#tell({ kind: "worker_failed", reason: message });
  }

  #send(session: Session, message: HostMessage): void {
    if (session === this.#session) session.peer.connection.push(encodeHostMessage(message));
  }

  #closed(peer: Peer, { reason }: Closed): void {
    clearTimeout(peer.deadline);
    if (this.#session?.peer === peer) this.#endSession(this.#session, reason);
  }

  #endSession(session: Session, reason: string): void {
    this.#session = null;
    this.#tell({ kind: "session_ended", sidecar: session.sidecar, reason });
    if (this.#failure !== null || this.#isClosing) return;
    const { clearMsMax } = this.#limits;
    this.#clearing = setTimeout(() => {
      this.workerFailed(`it has not released the last session for ${clearMsMax} ms`);
    }, clearMsMax);
    this.#worker.send(session.state.ending());
  }

  #cleared(): void {
    if (this.#clearing !== null) clearTimeout(this.#clearing);
    this.#clearing = null;
  }
}

/** null: the sidecar is accepted. `token`: required by the host; null: none. */
function refusalOf(hello: Hello, token: string | null): string | null {
  if (hello.protocolVersion !== LINK_PROTOCOL_VERSION) {
    return `version: the sidecar speaks ${hello.protocolVersion}, not ${LINK_PROTOCOL_VERSION}`;
  }
  return isToken(hello.token, token) ? null : "unauthorized: another token is asked for";
}

/** Compares in constant time: the duration does not depend on the token. */
function isToken(given: string, wanted: string | null): boolean {
  if (wanted === null) return true;
  const hash = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(hash(given), hash(wanted));
}

/** Whether a new sidecar gets the worker: the present one is silent, or the same whose connection was cut. */
function isLeft(session: Session, newcomer: Hello): boolean {
  const isSame = session.sidecarId !== "" && session.sidecarId === newcomer.sidecarId;
  return isSame || session.peer.connection.isQuiet;
}
