// A worker on another machine, as the rollout sees it: the port on one session with a host. A connection
// that breaks is opened again and the session continues, without loss and without repeats. When that cannot be,
// the worker has failed, once; the rollout recovers. Never blocks, and keeps a bounded amount.

import { hostname } from "node:os";
import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch, WeightsId, WorkerId } from "../../core/base/ids.ts";
import type { SamplingParams } from "../../core/request/request.ts";
import type {
  ControlAnswer,
  ControlRequest,
  SamplingSupport,
  Worker,
  WorkerCapacity,
  WorkerCommand,
  WorkerEvent,
  WorkerListener,
} from "../../core/rollout/worker.ts";
import { CLOSE } from "../../proto/close-codes.ts";
import { batchesOf, MESSAGE_SLACK_BYTES } from "./command-batches.ts";
import { encodeSidecarMessage } from "./command-codec.ts";
import { type Closed, type Connection, type ConnectionStats, isFatal } from "./connection.ts";
import { Delivery } from "./delivery.ts";
import { type DialOptions, dial, hostUrl, type SidecarIdentity } from "./dial.ts";
import { decodeHostMessage } from "./event-codec.ts";
import { KvOutbox } from "./kv-stream.ts";
import { LINK_LIMITS, type LinkLimits } from "./limits.ts";
import type { Data, HostMessage, SidecarMessage, Welcome } from "./message.ts";
import { SidecarState } from "./sidecar-state.ts";
import { supportOf } from "./support.ts";

export interface LinkWorkerOptions {
  readonly workerId: WorkerId;
  /** `ws://HOST:PORT` */
  readonly url: string;
  /** The token that the host requires; default: none. */
  readonly token?: string;
  readonly clock: Clock;
  /** Default: another one each time, named by this machine and process. */
  readonly sidecar?: SidecarIdentity;
  readonly limits?: Partial<LinkLimits>;
  /**
   * Called with the reason while the host cannot be reached and the session may still continue; null: reachable again. When the
   * session is over the worker's listener hears `failed`.
   */
  readonly reach?: (lost: string | null) => void;
}

/** Counters since the worker was opened. */
export interface LinkWorkerStats {
  readonly reconnects: number;
  readonly received: ConnectionStats;
  readonly sent: ConnectionStats;
}

/** A worker that also names its model: all workers of a rollout must have the same. */
export interface LinkedWorker extends Worker {
  readonly modelId: string;
  readonly vocabularySize: number;
  /** Weight epoch of the worker: as it was found, or as commanded since. */
  readonly epoch: WeightEpoch;
  linkStats(): LinkWorkerStats;
}

/** Interval of the check for events of running requests. */
const WATCH_MS = 250;

/**
 * Dials until a host answers, `limits.openMsMax` at most.
 * @throws AppError usage (the URL), unauthorized (the token), worker_failed (anything else).
 */
export async function openLinkWorker(options: LinkWorkerOptions): Promise<LinkedWorker> {
  const limits = { ...LINK_LIMITS, ...options.limits };
  const { clock, token = null } = options;
  const { sidecar = newIdentity() } = options;
  const dialOptions: DialOptions = { url: hostUrl(options.url), token, sidecar, limits, clock };
  const startMs = clock.nowMs();
  const sessionId = crypto.randomUUID();
  return await new Promise((resolve, reject) => {
    let worker: LinkWorker | null = null;
    let pauseMs = limits.retryMsMin;
    const attempt = (): void => {
      dial(
        dialOptions,
        { sessionId, isNew: true, received: 0 },
        {
          welcome: (connection, welcome) => {
            worker = new LinkWorker(options, { dial: dialOptions, sessionId, welcome });
            worker.begin(connection);
            resolve(worker);
          },
          data: (connection, frame) => worker?.data(connection, frame),
          quiet: (connection, reason) => worker?.quiet(connection, reason),
          closed: (connection, closed) => {
            if (worker !== null) worker.disconnected(connection, closed);
            else if (isFatal(closed) || clock.nowMs() - startMs + pauseMs > limits.openMsMax) {
              reject(openError(dialOptions.url, closed));
            } else {
              setTimeout(attempt, pauseMs);
              pauseMs = Math.min(2 * pauseMs, limits.retryMsMax);
            }
          },
        },
      );
    };
    attempt();
  });
}

export function newIdentity(): SidecarIdentity {
  return { id: crypto.randomUUID(), name: `${hostname()}, process ${process.pid}` };
}

function openError(url: URL, { reason }: Closed): AppError {
  const code = reason.startsWith("unauthorized") ? "unauthorized" : "worker_failed";
  return new AppError(code, `worker ${url.origin}: ${reason}`);
}

class LinkWorker implements LinkedWorker {
  readonly workerId: WorkerId;
  readonly name: string;
  readonly capacity: WorkerCapacity;
  readonly modelId: string;
  readonly vocabularySize: number;
  readonly #dial: DialOptions;
  readonly #limits: LinkLimits;
  readonly #sessionId: string;
  readonly #welcome: Welcome;
  readonly #session: SidecarState;
  readonly #delivery: Delivery;
  /** Runs whose KV is larger than a frame. */
  readonly #kv: KvOutbox;
  /** The one that carries the session, or that shall. */
  #connection: Connection | null = null;
  #retry: ReturnType<typeof setTimeout> | null = null;
  #pauseMs: number;
  #cutMs = 0;
  /** When the connection began to carry the session, and what the session had done by then. */
  #resumedMs = 0;
  #resumedAt = 0;
  readonly #watch: ReturnType<typeof setInterval>;
  /** Time without an event of the running requests, while the host could be reached. */
  #stillMs = 0;
  #epoch: WeightEpoch;
  #weights: WeightsId | null;
  #listener: WorkerListener | null = null;
  #state: "running" | "failed" | "closed" = "running";
  #failure: string | null = null;
  readonly #controls = new Map<number, (answer: ControlAnswer) => void>();
  #controlCount = 0;
  #onDisconnected: () => void = () => {};
  readonly #reach: (lost: string | null) => void;
  /** The last argument of `reach`. */
  #lost: string | null = null;
  #reconnects = 0;
  readonly #past = { received: { frames: 0, bytes: 0 }, sent: { frames: 0, bytes: 0 } };

  constructor(
    { workerId, reach }: LinkWorkerOptions,
    session: { dial: DialOptions; sessionId: string; welcome: Welcome },
  ) {
    const { dial: options, welcome } = session;
    this.workerId = workerId;
    this.#reach = reach ?? (() => {});
    this.#sessionId = session.sessionId;
    this.name = options.url.origin;
    this.capacity = welcome.capacity;
    this.modelId = welcome.modelId;
    this.vocabularySize = welcome.vocabularySize;
    this.#dial = options;
    this.#limits = options.limits;
    this.#welcome = welcome;
    const { limits } = options;
    this.#session = new SidecarState(welcome.limits, welcome.vocabularySize, limits.kvBytesMax);
    this.#kv = new KvOutbox({
      frameBytesMax: limits.frameBytesMax,
      bytesMax: Math.min(limits.kvBytesMax, welcome.limits.kvBytesMax),
      encode: (part) => encodeSidecarMessage({ kind: "kv_part", part }),
    });
    this.#delivery = new Delivery(limits, () => this.#nextOfKv());
    this.#pauseMs = options.limits.retryMsMin;
    this.#epoch = welcome.epoch;
    this.#weights = welcome.weights;
    this.#watch = setInterval(() => this.#look(), WATCH_MS);
    this.#watch.unref();
  }

  get epoch(): WeightEpoch {
    return this.#epoch;
  }

  get weights(): WeightsId | null {
    return this.#weights;
  }

  listen(listener: WorkerListener): void {
    assert(this.#listener === null, "a worker has one listener");
    this.#listener = listener;
    const message = this.#failure;
    if (message !== null) {
      queueMicrotask(() => listener(this.#epoch, [{ kind: "failed", message }]));
    }
  }

  supports(sampling: SamplingParams): SamplingSupport {
    return supportOf(this.#welcome.supports, sampling);
  }

  send(commands: readonly WorkerCommand[]): void {
    if (this.#state !== "running" || commands.length === 0) return;
    for (const command of commands) {
      if (command.kind === "advance") this.#epoch = command.epoch;
    }
    const bytesMax = this.#welcome.limits.messageBytesMax - MESSAGE_SLACK_BYTES;
    const free = this.#limits.bufferBytesMax / 2 - this.#delivery.bytes;
    const atOnce = commands.filter((command) => !this.#isStreamed(command));
    const wire = this.#session.commands(atOnce, Math.min(bytesMax, free));
    for (const batch of batchesOf(wire, bytesMax)) {
      this.#push({ kind: "commands", commands: batch });
    }
    // Not before all of them are pushed: what is translated later is sent later.
    this.#connection?.flush();
  }

  /** Whether it is a run that follows its KV. What concerns its request meanwhile concerns it as well. */
  #isStreamed(command: WorkerCommand): boolean {
    switch (command.kind) {
      case "advance":
        this.#kv.clear();
        return false;
      case "release":
        this.#kv.cancel(command.requestId);
        return false;
      case "run": {
        const { kv, request } = command;
        this.#kv.cancel(request.requestId);
        if (kv === null || !this.#kv.isLarge(kv)) return false;
        return this.#kv.add(request.requestId, kv, () => {
          const commands = this.#session.runAfterKv(command, kv.bytes.byteLength);
          return encodeSidecarMessage({ kind: "commands", commands });
        });
      }
      default:
        return false;
    }
  }

  control(request: ControlRequest): Promise<ControlAnswer> {
    if (this.#state !== "running") return Promise.resolve(this.#unreachable());
    if (this.#controls.size >= this.#limits.controlsMax) {
      const error = `${this.name} has not answered ${this.#controls.size} requests yet`;
      return Promise.resolve({ status: 502, body: { error } });
    }
    this.#controlCount += 1;
    const controlId = this.#controlCount;
    return new Promise((resolve) => {
      this.#controls.set(controlId, resolve);
      this.#send({ kind: "control", controlId, request });
    });
  }

  async close(): Promise<void> {
    const connection = this.#connection;
    const wasRunning = this.#state === "running";
    this.#stop("closed");
    if (connection === null || !wasRunning) return;
    const gone = new Promise<void>((resolve) => {
      this.#onDisconnected = resolve;
      // A socket that is not open yet may not emit a close.
      setTimeout(resolve, 2 * this.#limits.closeMsMax).unref();
    });
    connection.send({ kind: "bye" });
    connection.end(1000, "");
    await gone;
  }

  linkStats(): LinkWorkerStats {
    const { received, sent } = this.#connection ?? {};
    return {
      reconnects: this.#reconnects,
      received: sum(this.#past.received, received),
      sent: sum(this.#past.sent, sent),
    };
  }

  /** The session's first connection. */
  begin(connection: Connection): void {
    this.#connection = connection;
    this.#resumedMs = this.#dial.clock.nowMs();
    this.#cutMs = this.#resumedMs;
    connection.carry(this.#delivery);
  }

  data(connection: Connection, frame: Data): void {
    if (this.#state !== "running") return;
    const accepted = this.#delivery.accept(frame);
    if (accepted.kind === "nothing") return;
    if (accepted.kind === "refuse") {
      this.#refuse(connection, CLOSE.protocol, `unexpected_message: ${accepted.problem}`);
      return;
    }
    const decoded = decodeHostMessage(accepted.payload);
    if (decoded.kind === "ok") this.#take(connection, decoded.message);
    else this.#refuse(connection, CLOSE.invalid, `${decoded.kind}: ${decoded.problem}`);
  }

  quiet(connection: Connection, reason: string | null): void {
    if (connection === this.#connection) this.#reached(reason);
  }

  disconnected(connection: Connection, closed: Closed): void {
    if (connection !== this.#connection) return;
    this.#past.received = sum(this.#past.received, connection.received);
    this.#past.sent = sum(this.#past.sent, connection.sent);
    this.#connection = null;
    this.#onDisconnected();
    if (this.#state !== "running") return;
    if (isFatal(closed)) {
      this.#fail(`${this.name} closed: ${closed.reason}`);
      return;
    }
    this.#reached(`the connection was lost: ${closed.reason}`);
    const nowMs = this.#dial.clock.nowMs();
    const isOfUse =
      this.#done > this.#resumedAt || nowMs - this.#resumedMs > this.#limits.quietMsMax;
    // Connections that end at once are one cut, with its pauses and its limit.
    if (!isOfUse) {
      this.#notResumed(closed);
      return;
    }
    this.#cutMs = nowMs;
    this.#pauseMs = this.#limits.retryMsMin;
    this.#redial();
  }

  /** Goes up with each data frame that one of the sides has taken. */
  get #done(): number {
    return this.#delivery.received + this.#delivery.acked;
  }

  #redial(): void {
    this.#retry = null;
    const wanted = {
      sessionId: this.#sessionId,
      isNew: false,
      received: this.#delivery.received,
    };
    let isResumed = false;
    this.#connection = dial(this.#dial, wanted, {
      welcome: (connection, _welcome, ack) => {
        isResumed = true;
        this.#resume(connection, ack);
      },
      data: (connection, frame) => this.data(connection, frame),
      quiet: (connection, reason) => this.quiet(connection, reason),
      closed: (connection, closed) => {
        if (isResumed) this.disconnected(connection, closed);
        else this.#notResumed(closed);
      },
    });
  }

  #resume(connection: Connection, ack: number): void {
    if (!this.#delivery.rewind(ack)) {
      this.#refuse(connection, CLOSE.invalid, `invalid_message: ack is ${ack}`);
      return;
    }
    this.#reconnects += 1;
    this.#resumedMs = this.#dial.clock.nowMs();
    this.#resumedAt = this.#done;
    connection.carry(this.#delivery);
    this.#reached(null);
  }

  #notResumed(closed: Closed): void {
    this.#connection = null;
    this.#onDisconnected();
    if (this.#state !== "running") return;
    const awayMs = this.#dial.clock.nowMs() - this.#cutMs;
    // A refused connection means that the process with the session has ended, and the session with it.
    const isOver = isFatal(closed) || closed.isRefused;
    if (isOver || awayMs + this.#pauseMs > this.#limits.resumeMsMax) {
      this.#fail(`${this.name} is lost: ${closed.reason}`);
      return;
    }
    this.#reached(closed.reason);
    this.#retry = setTimeout(() => this.#redial(), this.#pauseMs);
    this.#pauseMs = Math.min(2 * this.#pauseMs, this.#limits.retryMsMax);
  }

  /** Without this limit, a host that accepts requests and never reports on them would be waited for without end. */
  #look(): void {
    const isStill = this.#session.takeStandstill() && this.#lost === null;
    this.#stillMs = isStill ? this.#stillMs + WATCH_MS : 0;
    const connection = this.#connection;
    if (this.#stillMs <= this.#limits.standstillMsMax || connection === null) return;
    const reason = `standstill: no event of its requests for ${this.#stillMs} ms`;
    this.#refuse(connection, CLOSE.protocol, reason);
  }

  #reached(lost: string | null): void {
    if (this.#state !== "running" || (lost === null && this.#lost === null)) return;
    this.#lost = lost;
    this.#reach(lost);
  }

  #send(message: SidecarMessage): void {
    this.#push(message);
    this.#connection?.flush();
  }

  #push(message: SidecarMessage): void {
    if (this.#state !== "running" || this.#delivery.push(encodeSidecarMessage(message))) return;
    this.#overflow();
  }

  #nextOfKv(): Uint8Array | null {
    const message = this.#kv.next();
    if (message === null || this.#delivery.canPush(message.length)) return message;
    this.#overflow();
    return null;
  }

  #overflow(): void {
    const reason = `slow_consumer: ${this.#delivery.bytes} bytes wait to be read`;
    const connection = this.#connection;
    this.#fail(`${this.name} does not take its commands: ${reason}`);
    connection?.end(CLOSE.tryLater, reason);
  }

  #take(connection: Connection, message: HostMessage): void {
    if (message.kind === "control_answer") {
      this.#weights = message.weights;
      const resolve = this.#controls.get(message.controlId);
      this.#controls.delete(message.controlId);
      resolve?.(message.answer);
      return;
    }
    if (message.kind === "kv_part") {
      const problem = this.#session.kvPart(message.part);
      if (problem !== null) this.#refuse(connection, CLOSE.invalid, `invalid_message: ${problem}`);
      return;
    }
    const isCurrent = message.epoch === this.#epoch;
    const translated = this.#session.events(message.events, isCurrent);
    if (translated.kind === "invalid") {
      this.#refuse(connection, CLOSE.invalid, `invalid_message: ${translated.problem}`);
      return;
    }
    const { events } = translated;
    const failure = events.find((event) => event.kind === "failed");
    if (failure?.kind === "failed") {
      this.#deliver(
        message.epoch,
        events.filter((event) => event.kind !== "failed"),
      );
      this.#fail(failure.message);
    } else this.#deliver(message.epoch, events);
  }

  #deliver(epoch: WeightEpoch, events: readonly WorkerEvent[]): void {
    if (events.length > 0) this.#listener?.(epoch, events);
  }

  #refuse(connection: Connection, code: number, reason: string): void {
    connection.end(code, reason);
    this.#fail(`${this.name}: ${reason}`);
  }

  #fail(message: string): void {
    if (this.#state !== "running") return;
    this.#stop("failed");
    this.#failure = message;
    this.#connection?.end(1000, "");
    // In the rollout's current epoch: it drops events of others.
    this.#deliver(this.#epoch, [{ kind: "failed", message }]);
  }

  #stop(state: "failed" | "closed"): void {
    if (this.#state === "running") this.#state = state;
    if (this.#retry !== null) clearTimeout(this.#retry);
    this.#retry = null;
    clearInterval(this.#watch);
    for (const resolve of this.#controls.values()) resolve(this.#unreachable());
    this.#controls.clear();
    this.#kv.clear();
  }

  #unreachable(): ControlAnswer {
    return { status: 502, body: { error: `${this.name} cannot be reached` } };
  }
}

function sum(a: ConnectionStats, b: ConnectionStats | undefined): ConnectionStats {
  return { frames: a.frames + (b?.frames ?? 0), bytes: a.bytes + (b?.bytes ?? 0) };
}
