// A worker on another machine, as the rollout sees it: the port on one session with a host. The session ends with its
// connection; then the worker has failed, once, and the rollout continues its requests elsewhere. Never blocks, and keeps
// a bounded amount.

import { hostname } from "node:os";
import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch, WeightsId, WorkerId } from "../../core/base/ids.ts";
import type { SamplingParams } from "../../core/request/request.ts";
import type { ControlAnswer, EngineOperation } from "../../core/rollout/operation.ts";
import type {
  SamplingSupport,
  Worker,
  WorkerCapacity,
  WorkerCommand,
  WorkerEvent,
  WorkerListener,
} from "../../core/rollout/worker.ts";
import { CLOSE } from "../../proto/close-codes.ts";
import { embeddedSupport } from "../run-check.ts";
import { encodeSidecarMessage } from "./codec.ts";
import type { Closed } from "./connection.ts";
import {
  type AfterWelcome,
  type DialOptions,
  dial,
  type HostConnection,
  hostUrl,
  isStillThere,
  type SidecarIdentity,
} from "./dial.ts";
import { kvMessages } from "./kv-parts.ts";
import { LINK_LIMITS, type LinkLimits, TOKEN_BYTES } from "./limits.ts";
import type { HostMessage, SidecarMessage, Welcome } from "./message.ts";
import { type KvRun, SidecarState } from "./sidecar-state.ts";

export interface LinkWorkerOptions {
  readonly workerId: WorkerId;
  /** `ws://HOST:PORT` */
  readonly url: string;
  /** The token that the host requires; default: none. */
  readonly token?: string | null;
  readonly clock: Clock;
  /** Default: another one each time, named by this machine and process. */
  readonly sidecar?: SidecarIdentity;
  readonly limits?: Partial<LinkLimits>;
  /**
   * Called with the reason while the host is silent; null: the host sends again. When the session ends, the worker's
   * listener gets `failed`.
   */
  readonly reach?: (lost: string | null) => void;
}

/** A worker that also says what it was found with. */
export interface LinkedWorker extends Worker {
  readonly vocabularySize: number;
  /** Weight epoch of the worker: as it was found, or as commanded since. */
  readonly epoch: WeightEpoch;
}

/** Interval of the check for events of running requests. */
const WATCH_MS = 250;

/**
 * Dials until a host answers, `limits.openMsMax` at most.
 * @throws AppError usage (the URL), unauthorized (the token), worker_failed (anything else).
 */
export async function openLinkWorker(options: LinkWorkerOptions): Promise<LinkedWorker> {
  const limits = { ...LINK_LIMITS, ...options.limits };
  const { clock, token = null, sidecar = newIdentity() } = options;
  const dialOptions: DialOptions = { url: hostUrl(options.url), token, sidecar, limits, clock };
  const startMs = clock.nowMs();
  return await new Promise((resolve, reject) => {
    let worker: LinkWorker | null = null;
    let pauseMs = limits.retryMsMin;
    const attempt = (): void => {
      dial(dialOptions, {
        welcome: (connection, welcome) => {
          worker = new LinkWorker(options, dialOptions, connection, welcome);
          resolve(worker);
        },
        message: (message) => worker?.take(message),
        quiet: (reason) => worker?.quiet(reason),
        closed: (closed) => {
          if (worker !== null) worker.disconnected(closed);
          else if (isFinal(closed) || clock.nowMs() - startMs + pauseMs > limits.openMsMax) {
            reject(openError(dialOptions.url, closed));
          } else {
            setTimeout(attempt, pauseMs);
            pauseMs = Math.min(2 * pauseMs, limits.retryMsMax);
          }
        },
      });
    };
    attempt();
  });
}

/** Whether another attempt would end the same way: the sides do not understand each other, or the host is leaving. */
function isFinal({ code, isCut }: Closed): boolean {
  return !isCut && code !== CLOSE.tryLater;
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
  readonly vocabularySize: number;
  readonly #dial: DialOptions;
  readonly #welcome: Welcome;
  readonly #session: SidecarState;
  readonly #connection: HostConnection;
  readonly #watch: ReturnType<typeof setInterval>;
  /** Time without an event of the running requests, while the host could be reached. */
  #stillMs = 0;
  #epoch: WeightEpoch;
  #weights: WeightsId | null;
  #listener: WorkerListener | null = null;
  /** over: its connection has ended, and why is being found out. */
  #state: "running" | "over" | "failed" | "closed" = "running";
  #failure: Extract<WorkerEvent, { kind: "failed" }> | null = null;
  readonly #operations = new Map<number, (answer: ControlAnswer) => void>();
  #operationCount = 0;
  readonly #reach: (lost: string | null) => void;

  constructor(
    { workerId, reach }: LinkWorkerOptions,
    options: DialOptions,
    connection: HostConnection,
    welcome: Welcome,
  ) {
    this.workerId = workerId;
    this.#reach = reach ?? (() => {});
    this.name = options.url.origin;
    this.capacity = welcome.capacity;
    this.vocabularySize = welcome.vocabularySize;
    this.#dial = options;
    this.#welcome = welcome;
    this.#connection = connection;
    this.#session = new SidecarState(welcome.vocabularySize, options.limits.kvBytesMax);
    this.#epoch = welcome.epoch;
    this.#weights = welcome.weights;
    this.#watch = setInterval(() => this.#checkStandstill(), WATCH_MS);
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
    const failure = this.#failure;
    if (failure !== null) queueMicrotask(() => listener(this.#epoch, [failure]));
  }

  supports(sampling: SamplingParams): SamplingSupport {
    return embeddedSupport(sampling, this.vocabularySize);
  }

  send(commands: readonly WorkerCommand[]): void {
    if (this.#state !== "running" || commands.length === 0) return;
    for (const command of commands) {
      if (command.kind === "advance") this.#epoch = command.epoch;
    }
    const wire = this.#session.commands(commands, (run) => this.#sendKv(run));
    const commandsMax = commandsMaxOf(this.#welcome);
    for (let from = 0; from < wire.length; from += commandsMax) {
      this.#send({ kind: "commands", commands: wire.slice(from, from + commandsMax) });
    }
  }

  /** false: the host takes no KV that large, or too much waits. */
  #sendKv({ kv, isWanted, begin }: KvRun): boolean {
    const bytes = kv.bytes.byteLength;
    if (bytes > this.#welcome.limits.kvBytesMax) return false;
    const messages = kvMessages(kv, {
      partBytes: this.#dial.limits.kvPartBytes,
      last: () => encodeSidecarMessage({ kind: "commands", commands: [begin()] }),
      isWanted,
    });
    return this.#connection.pushLater(messages, bytes);
  }

  perform(operation: EngineOperation, nextEpoch: WeightEpoch): Promise<ControlAnswer> {
    if (this.#state !== "running") return Promise.resolve(this.#unreachable());
    if (this.#operations.size >= this.#dial.limits.operationsMax) {
      const error = `${this.name} has not answered ${this.#operations.size} requests yet`;
      return Promise.resolve({ status: 502, body: { error } });
    }
    this.#operationCount += 1;
    const operationId = this.#operationCount;
    return new Promise((resolve) => {
      this.#operations.set(operationId, resolve);
      this.#send({ kind: "operation", operationId, operation, nextEpoch });
    });
  }

  async close(): Promise<void> {
    const isOpen = this.#state === "running";
    this.#stop("closed");
    if (isOpen) {
      this.#connection.push(encodeSidecarMessage({ kind: "bye" }));
      this.#connection.end(1000, "");
    }
    await this.#connection.gone;
  }

  take(message: AfterWelcome): void {
    if (this.#state !== "running") return;
    switch (message.kind) {
      case "answer": {
        this.#weights = message.weights;
        const resolve = this.#operations.get(message.operationId);
        this.#operations.delete(message.operationId);
        resolve?.(message.answer);
        return;
      }
      case "kv_part": {
        const problem = this.#session.kvPart(message.part);
        if (problem !== null) this.#connection.end(CLOSE.invalid, `invalid_message: ${problem}`);
        return;
      }
      case "events":
        this.#takeEvents(message);
        return;
    }
  }

  quiet(lost: string | null): void {
    if (this.#state === "running") this.#reach(lost);
  }

  disconnected({ reason, isCut }: Closed): void {
    if (this.#state !== "running") return;
    this.quiet(`the connection was lost: ${reason}`);
    this.#stop("over");
    if (!isCut) {
      this.#fail(`${this.name} closed: ${reason}`, false);
      return;
    }
    // From here the end of a process that died of what it ran looks like a broken network.
    void isStillThere(this.#dial, this.#welcome.hostRun).then((isThere) => {
      this.#fail(`${this.name} is lost: ${reason}`, isThere);
    });
  }

  /** Ends the session with a host that accepts requests and never reports on them. */
  #checkStandstill(): void {
    const isStill = this.#session.takeStandstill() && !this.#connection.isQuiet;
    this.#stillMs = isStill ? this.#stillMs + WATCH_MS : 0;
    if (this.#stillMs <= this.#dial.limits.standstillMsMax) return;
    const problem = `standstill: no event of its requests for ${this.#stillMs} ms`;
    this.#connection.end(CLOSE.protocol, problem);
  }

  #send(message: SidecarMessage): void {
    if (this.#state === "running") this.#connection.push(encodeSidecarMessage(message));
  }

  #takeEvents(message: Extract<HostMessage, { kind: "events" }>): void {
    const isCurrent = message.epoch === this.#epoch;
    const translated = this.#session.events(message.events, isCurrent);
    if (translated.kind === "invalid") {
      this.#connection.end(CLOSE.invalid, `invalid_message: ${translated.problem}`);
      return;
    }
    const { events } = translated;
    const failure = events.find((event) => event.kind === "failed");
    this.#deliver(
      message.epoch,
      failure === undefined ? events : events.filter((event) => event.kind !== "failed"),
    );
    if (failure?.kind !== "failed") return;
    this.#stop("over");
    this.#fail(failure.message, false);
    this.#connection.end(1000, "");
  }

  #deliver(epoch: WeightEpoch, events: readonly WorkerEvent[]): void {
    if (events.length > 0) this.#listener?.(epoch, events);
  }

  #fail(message: string, isCut: boolean): void {
    if (this.#state !== "over") return;
    this.#state = "failed";
    this.#failure = { kind: "failed", message, ...(isCut && { isCut }) };
    // In the rollout's current epoch: it drops events of others.
    this.#deliver(this.#epoch, [this.#failure]);
  }

  #stop(state: "over" | "closed"): void {
    if (this.#state !== "failed") this.#state = state;
    clearInterval(this.#watch);
    for (const resolve of this.#operations.values()) resolve(this.#unreachable());
    this.#operations.clear();
  }

  #unreachable(): ControlAnswer {
    return { status: 502, body: { error: `${this.name} cannot be reached` } };
  }
}

/** Room in a message for what surrounds commands. */
const MESSAGE_SLACK_BYTES = 2 ** 20;
/** Approximate size of a command without its tokens. */
const COMMAND_BYTES = 1024;

/** Commands that one message may hold: the tokens of each fit in the engine's context. */
function commandsMaxOf({ limits, capacity }: Welcome): number {
  const bytesEach = COMMAND_BYTES + capacity.contextTokens * TOKEN_BYTES;
  return Math.max(1, Math.floor((limits.messageBytesMax - MESSAGE_SLACK_BYTES) / bytesEach));
}
