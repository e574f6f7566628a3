// Serves one worker to one sidecar at a time over a WebSocket server. Decides who may have the worker, which
// session a connection belongs to, and when a session is over. A session outlives its connections; when it
// ends, the worker's state is restored. A worker that fails ends its session, and sidecars are refused until its
// owner provides another. Never waits for a peer, and keeps a bounded amount for it.

import type { AddressInfo } from "node:net";
import { type WebSocket, WebSocketServer } from "ws";
import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { ControlAnswer, Worker, WorkerEvent, WorkerStats } from "../../core/rollout/worker.ts";
import { CLOSE } from "../../proto/close-codes.ts";
import { decodeSidecarMessage } from "./command-codec.ts";
import { type Closed, Connection, isFatal } from "./connection.ts";
import { Delivery } from "./delivery.ts";
import { encodeHostMessage } from "./event-codec.ts";
import { isTakenOver, refusalOf } from "./host-access.ts";
import { HostSession } from "./host-session.ts";
import { KvExports } from "./kv-exports.ts";
import {
  BARRIER_ID,
  FRAME_OVERHEAD_BYTES,
  LINK_LIMITS,
  LINK_PATH,
  LINK_PROTOCOL_VERSION,
  type LinkLimits,
} from "./limits.ts";
import type { Data, FrameBody, Hello, HostMessage, SidecarMessage } from "./message.ts";
import { supportTable } from "./support.ts";

export interface LinkHostOptions {
  /** Without a listener yet; the host closes neither it nor its replacements. */
  readonly worker: Worker;
  /** What the weights are called; sidecars compare it. */
  readonly modelId: string;
  readonly vocabularySize: number;
  /** Of the worker's weights now. */
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
  | { readonly kind: "session_began" | "session_resumed"; readonly sidecar: string }
  | {
      /** cut: it may be resumed. refused: another sidecar requested the worker; reported once per current sidecar. */
      readonly kind: "session_cut" | "session_ended" | "sidecar_refused";
      readonly sidecar: string;
      readonly reason: string;
    }
  /** The worker is of no use any more: sidecars wait until `replace` brings another. */
  | { readonly kind: "worker_failed"; readonly reason: string };

/** Counters since the host began. */
export interface LinkHostStats {
  readonly connections: number;
  readonly sessions: number;
  readonly resumed: number;
  /** Connections that the host ended, by close code. */
  readonly closed: Readonly<Record<number, number>>;
}

interface Session {
  readonly id: string;
  readonly sidecarId: string;
  /** As the sidecar calls itself. */
  readonly sidecar: string;
  readonly state: HostSession;
  readonly delivery: Delivery;
  readonly exports: KvExports;
  /** What the sidecar takes of one message. */
  readonly messageBytesMax: number;
  connection: Connection | null;
  expiry: ReturnType<typeof setTimeout> | null;
  controls: number;
}

interface Peer {
  readonly connection: Connection;
  /** For its hello. */
  readonly deadline: ReturnType<typeof setTimeout>;
  session: Session | null;
}

/** Room in a message for what surrounds exported KV. */
const EVENTS_BYTES = 2 ** 20;

export class LinkHost {
  /** Where it listens, as a sidecar dials it. */
  readonly url: string;
  readonly #options: LinkHostOptions;
  readonly #limits: LinkLimits;
  readonly #sockets: WebSocketServer;
  readonly #peers = new Set<Peer>();
  #worker: Worker;
  #supports: ReturnType<typeof supportTable>;
  readonly #counts = { connections: 0, sessions: 0, resumed: 0 };
  readonly #closedBy: Record<number, number> = {};
  #epoch: WeightEpoch;
  /** What the worker said of itself last. */
  #stats: WorkerStats | null = null;
  #session: Session | null = null;
  /** The session before, for a sidecar that comes back to it. */
  #past: { readonly id: string; readonly reason: string } | null = null;
  /** Sidecars that were refused because of this session. */
  readonly #refused = new Set<string>();
  /** The worker still has to answer for the last session: until then no sidecar gets it. */
  #clearing: ReturnType<typeof setTimeout> | null = null;
  #failure: string | null = null;
  #isClosing = false;

  private constructor(options: LinkHostOptions, limits: LinkLimits, sockets: WebSocketServer) {
    this.#options = options;
    this.#limits = limits;
    this.#sockets = sockets;
    this.#epoch = options.epoch;
    this.#worker = options.worker;
    this.#supports = supportTable(options.worker);
    const { address, port, family } = sockets.address() as AddressInfo;
    this.url = `ws://${family === "IPv6" ? `[${address}]` : address}:${port}`;
    this.#listenTo(options.worker);
    sockets.on("connection", (socket, request) => {
      this.#accept(socket, request.headers.origin !== undefined);
    });
  }

  /** Listens. @throws AppError usage if the address cannot be had. */
  static async listen(options: LinkHostOptions): Promise<LinkHost> {
    const limits = { ...LINK_LIMITS, ...options.limits };
    const { host, port } = options;
    const sockets = new WebSocketServer({
      host,
      port,
      path: LINK_PATH,
      maxPayload: limits.frameBytesMax + FRAME_OVERHEAD_BYTES,
      perMessageDeflate: false,
      clientTracking: false,
    });
    await new Promise<void>((resolve, reject) => {
      sockets.once("listening", resolve);
      sockets.once("error", (cause) => {
        const message = `cannot listen on ${host}:${port}: ${cause.message}`;
        reject(new AppError("usage", message, { cause }));
      });
    });
    return new LinkHost(options, limits, sockets);
  }

  /** Takes the place of a worker that has failed. `epoch`: of its weights. */
  replace(worker: Worker, epoch: WeightEpoch): void {
    assert(this.#failure !== null, "only a worker that has failed is replaced");
    this.#worker = worker;
    this.#epoch = epoch;
    this.#supports = supportTable(worker);
    this.#failure = null;
    this.#listenTo(worker);
  }

  stats(): LinkHostStats {
    return { ...this.#counts, closed: { ...this.#closedBy } };
  }

  /** Stops listening and closes the sidecar's connection. The worker is the caller's to close. Safe to call twice. */
  async close(): Promise<void> {
    if (this.#isClosing) return;
    this.#isClosing = true;
    const stopped = new Promise<void>((resolve) => this.#sockets.close(() => resolve()));
    for (const peer of this.#peers) this.#end(peer, CLOSE.goingAway, "draining");
    this.#endSession("draining");
    this.#cleared();
    await stopped;
  }

  #accept(socket: WebSocket, isBrowser: boolean): void {
    this.#counts.connections += 1;
    const connection: Connection = new Connection(socket, {
      limits: this.#limits,
      clock: this.#options.clock,
      listener: {
        frame: (body, ack) => this.#frame(peer, body, ack),
        quiet: () => {},
        closed: (closed) => this.#closed(peer, closed),
      },
    });
    const deadline = setTimeout(() => {
      if (peer.session === null) this.#end(peer, CLOSE.protocol, "no hello in time");
    }, this.#limits.silenceMsMax);
    const peer: Peer = { connection, deadline, session: null };
    this.#peers.add(peer);
    // Any page that a browser shows can dial loopback; no page is a sidecar.
    if (isBrowser) this.#end(peer, CLOSE.version, "unauthorized: browsers are not served");
    else if (this.#isClosing) this.#end(peer, CLOSE.goingAway, "draining");
    else if (this.#peers.size > PEERS_MAX) this.#end(peer, CLOSE.tryLater, "too many connections");
  }

  #frame(peer: Peer, body: FrameBody, ack: number): void {
    const { session } = peer;
    switch (body.kind) {
      case "hello":
        if (session === null) this.#hello(peer, body, ack);
        else this.#end(peer, CLOSE.protocol, "unexpected_message: a second hello");
        return;
      case "data":
        if (session !== null) this.#data(peer, session, body);
        return;
      case "bye":
        peer.connection.end(1000, "");
        if (session !== null && session === this.#session) this.#endSession("bye");
        return;
      default:
        this.#end(peer, CLOSE.protocol, `unexpected_message: a ${body.kind}`);
    }
  }

  #hello(peer: Peer, hello: Hello, ack: number): void {
    const refusal = refusalOf(hello, this.#options.token);
    if (refusal !== null) {
      this.#end(peer, CLOSE.version, refusal);
      return;
    }
    const current = this.#session;
    if (current !== null && current.id === hello.sessionId) {
      this.#resume(peer, current, ack);
      return;
    }
    if (!hello.isNew) {
      const past = this.#past?.id === hello.sessionId ? this.#past.reason : "not known here";
      this.#end(peer, CLOSE.protocol, `unexpected_message: the session is over: ${past}`);
      return;
    }
    if (this.#failure !== null) {
      this.#end(peer, CLOSE.tryLater, `worker_failed: ${this.#failure}`);
      return;
    }
    if (current !== null) {
      if (isTakenOver(current, hello)) this.#takeOver(current, hello);
      else this.#busy(peer, current, hello);
    }
    if (this.#clearing !== null) {
      this.#end(peer, CLOSE.tryLater, "busy: the last session is being released");
    } else if (this.#session === null) this.#begin(peer, hello);
  }

  /** Its sidecar has gone, is silent, or is the same one: it gets the reason if it can be reached. */
  #takeOver(session: Session, { sidecarName }: Hello): void {
    const reason = `taken_over: by ${sidecarName}`;
    for (const peer of this.#peers) {
      if (peer.session === session) this.#end(peer, CLOSE.takenOver, reason);
    }
    this.#endSession(reason);
  }

  /** The worker's sidecar is alive: two sidecars do not take it from each other in turns. */
  #busy(peer: Peer, { sidecar }: Session, { sidecarName }: Hello): void {
    const reason = `busy: in use by ${sidecar}`;
    this.#end(peer, CLOSE.tryLater, reason);
    if (this.#refused.has(sidecarName) || this.#refused.size >= PEERS_MAX) return;
    this.#refused.add(sidecarName);
    this.#tell({ kind: "sidecar_refused", sidecar: sidecarName, reason });
  }

  #begin(peer: Peer, hello: Hello): void {
    this.#counts.sessions += 1;
    const exports = new KvExports(
      Math.min(hello.kvBytesMax, this.#limits.kvBytesMax),
      this.#limits,
    );
    const session: Session = {
      id: hello.sessionId,
      sidecarId: hello.sidecarId,
      sidecar: hello.sidecarName === "" ? "an unnamed sidecar" : hello.sidecarName,
      state: new HostSession(
        this.#worker,
        this.#hostLimits(),
        this.#options.vocabularySize,
        this.#stats,
      ),
      delivery: new Delivery(this.#limits, () => this.#nextOfKv(session)),
      exports,
      messageBytesMax: Math.min(hello.messageBytesMax, this.#limits.messageBytesMax),
      connection: null,
      expiry: null,
      controls: 0,
    };
    this.#session = session;
    this.#tell({ kind: "session_began", sidecar: session.sidecar });
    this.#attach(peer, session);
  }

  #tell(event: LinkHostEvent): void {
    this.#options.events?.(event);
  }

  /** The connection before may not know yet that it is broken. */
  #resume(peer: Peer, session: Session, ack: number): void {
    if (!session.delivery.rewind(ack)) {
      this.#refuse(peer, CLOSE.invalid, `invalid_message: ack is ${ack}, more than was sent`);
      return;
    }
    this.#counts.resumed += 1;
    this.#tell({ kind: "session_resumed", sidecar: session.sidecar });
    session.connection?.terminate("replaced by another connection");
    this.#attach(peer, session);
  }

  #attach(peer: Peer, session: Session): void {
    if (session.expiry !== null) clearTimeout(session.expiry);
    session.expiry = null;
    session.connection = peer.connection;
    peer.session = session;
    const { modelId, vocabularySize } = this.#options;
    const worker = this.#worker;
    peer.connection.carry(session.delivery);
    peer.connection.send({
      kind: "welcome",
      protocolVersion: LINK_PROTOCOL_VERSION,
      epoch: this.#epoch,
      modelId,
      vocabularySize,
      workerName: worker.name,
      capacity: worker.capacity,
      supports: this.#supports,
      limits: this.#hostLimits(),
      weights: worker.weights ?? null,
    });
  }

  #hostLimits() {
    const { messageBytesMax, kvBytesMax, promptTokensMax, outputTokensMax, requestsMax } =
      this.#limits;
    return { messageBytesMax, kvBytesMax, promptTokensMax, outputTokensMax, requestsMax };
  }

  #data(peer: Peer, session: Session, frame: Data): void {
    if (session !== this.#session || session.connection !== peer.connection) return;
    const accepted = session.delivery.accept(frame);
    if (accepted.kind === "nothing") return;
    if (accepted.kind === "refuse") {
      this.#refuse(peer, CLOSE.protocol, `unexpected_message: ${accepted.problem}`);
      return;
    }
    const decoded = decodeSidecarMessage(accepted.payload);
    if (decoded.kind === "ok") this.#take(peer, session, decoded.message);
    else this.#refuse(peer, CLOSE.invalid, `${decoded.kind}: ${decoded.problem}`);
  }

  #take(peer: Peer, session: Session, message: SidecarMessage): void {
    const worker = this.#worker;
    if (message.kind === "kv_part") {
      const problem = session.state.kvPart(message.part);
      if (problem !== null) this.#refuse(peer, CLOSE.invalid, `invalid_message: ${problem}`);
      return;
    }
    if (message.kind === "commands") {
      const translated = session.state.commands(message.commands);
      if (translated.kind === "ok") {
        session.exports.obey(message.commands);
        worker.send(translated.commands);
        const { refused: events } = translated;
        if (events.length > 0) this.#send(session, { kind: "events", epoch: this.#epoch, events });
        return;
      }
      const code = translated.reason === "invalid_message" ? CLOSE.invalid : CLOSE.protocol;
      this.#refuse(peer, code, `${translated.reason}: ${translated.problem}`);
      return;
    }
    const { controlId } = message;
    session.controls += 1;
    if (session.controls > this.#limits.controlsMax) {
      this.#refuse(peer, CLOSE.protocol, "unexpected_message: too many control requests");
      return;
    }
    const answered = (answer: ControlAnswer) => {
      session.controls -= 1;
      const weights = worker.weights ?? null;
      this.#send(session, { kind: "control_answer", controlId, answer, weights });
    };
    worker.control(message.request).then(answered, (error: unknown) => {
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
      const room = Math.min(session.messageBytesMax, this.#limits.messageBytesMax) - EVENTS_BYTES;
      const free = this.#limits.bufferBytesMax / 2 - session.delivery.bytes;
      const wire = session.state.events(events, Math.min(room, free), (event) =>
        session.exports.take(epoch, event),
      );
      if (wire.length > 0) this.#send(session, { kind: "events", epoch, events: wire });
      else session.connection?.flush();
    }
    if (failure?.kind === "failed") this.workerFailed(failure.message);
  }

  /** The worker has failed, or its owner does not trust it any more. The session is over, and its sidecar hears why. */
  workerFailed(message: string): void {
    if (this.#failure !== null || this.#isClosing) return;
    this.#failure = message;
    this.#cleared();
    const reason = `worker_failed: ${message}`;
    for (const peer of this.#peers) {
      if (peer.session !== null && peer.session === this.#session) {
        this.#end(peer, CLOSE.goingAway, reason);
      }
    }
    this.#endSession(reason);
    this.#tell({ kind: "worker_failed", reason: message });
  }

  #send(session: Session, message: HostMessage): void {
    if (session !== this.#session) return;
    if (!session.delivery.push(encodeHostMessage(message))) {
      this.#overflow(session);
      return;
    }
    session.connection?.flush();
  }

  #nextOfKv(session: Session): Uint8Array | null {
    const message = session.exports.next();
    if (message === null || session.delivery.canPush(message.length)) return message;
    this.#overflow(session);
    return null;
  }

  /** The worker stops, for what it makes can no longer be kept. */
  #overflow(session: Session): void {
    const reason = `slow_consumer: ${session.delivery.bytes} bytes wait to be read`;
    for (const peer of this.#peers) {
      if (peer.session === session) this.#end(peer, CLOSE.tryLater, reason);
    }
    this.#endSession(reason);
  }

  /** The peer has sent what cannot be: it would send the same again. */
  #refuse(peer: Peer, code: number, reason: string): void {
    this.#end(peer, code, reason);
    this.#endSession(reason);
  }

  #end(peer: Peer, code: number, reason: string): void {
    this.#closedBy[code] = (this.#closedBy[code] ?? 0) + 1;
    peer.connection.end(code, reason);
  }

  #closed(peer: Peer, closed: Closed): void {
    this.#peers.delete(peer);
    clearTimeout(peer.deadline);
    const { session } = peer;
    if (session === null || session.connection !== peer.connection) return;
    session.connection = null;
    if (session !== this.#session) return;
    if (isFatal(closed)) {
      this.#endSession(closed.reason);
      return;
    }
    const { sidecar } = session;
    this.#tell({ kind: "session_cut", sidecar, reason: closed.reason });
    const { resumeMsMax } = this.#limits;
    session.expiry = setTimeout(() => {
      if (session === this.#session) this.#endSession(`its sidecar was away for ${resumeMsMax} ms`);
    }, resumeMsMax);
  }

  #endSession(reason: string): void {
    const session = this.#session;
    if (session === null) return;
    this.#session = null;
    this.#past = { id: session.id, reason };
    this.#refused.clear();
    this.#tell({ kind: "session_ended", sidecar: session.sidecar, reason });
    if (session.expiry !== null) clearTimeout(session.expiry);
    if (this.#failure !== null) return;
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

/** Sidecars that dial at the same time; one of them has the worker. */
const PEERS_MAX = 64;
