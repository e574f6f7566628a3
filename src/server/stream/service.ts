// /v1/stream: clients follow responses as they are generated. Once per turn of the rollout, each subscription gets what
// it lacks. A client that does not read is dropped with a reason; it never makes another one wait, nor the rollout. Tokens
// without a follower cost nothing.

import type { Later } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import { requestId } from "../../core/base/ids.ts";
import type { Group, RolloutRequest } from "../../core/request/buffer.ts";
import type { Rollout } from "../../core/rollout/rollout.ts";
import { CLOSE, closeReason } from "../../proto/close-codes.ts";
import type { CompletedGroups } from "../completed-groups.ts";
import type { Socket, SocketService } from "../http.ts";
import type { Sidecar } from "../sidecar.ts";
import { decodeClientMessage, type Filter, type Subscribe } from "./client-message.ts";
import {
  addEntry,
  bringOn,
  type Client,
  type Frame,
  frameJson,
  keyOf,
  newFrame,
  progressFields,
  type StreamCursor,
  type Subject,
  type Subscription,
} from "./subscription.ts";

export interface StreamLimits {
  readonly clientsMax: number;
  readonly subscriptionsMax: number;
  /** Limit of a client's message, in bytes. */
  readonly frameBytesMax: number;
  /** Limit of the bytes that wait for one client to read them. */
  readonly sendQueueBytes: number;
}

const STREAM_LIMITS: StreamLimits = {
  clientsMax: 2_048,
  subscriptionsMax: 256,
  frameBytesMax: 16_384,
  // A second of all tokens at a million a second.
  sendQueueBytes: 4 * 2 ** 20,
};

export interface StreamServiceOptions {
  readonly sidecar: Sidecar;
  /** Groups whose tokens clients get that resume. */
  readonly completed: CompletedGroups;
  readonly limits?: Partial<StreamLimits>;
  readonly random: () => number;
  readonly every: Later;
  /** Called with an error that ended one client and was not the client's. */
  readonly failed?: (error: unknown) => void;
}

const PROGRESS_MS = 250;

export class StreamService implements SocketService {
  readonly #options: StreamServiceOptions;
  readonly #limits: StreamLimits;
  readonly #clients = new Map<Socket, Client>();
  readonly #subscriptions = new Map<Subject, Set<Subscription>>();
  /** Subscriptions by the filter's name: a response's number, or a group's name, looked up whenever a response joins. */
  readonly #named = new Map<string | number, Set<Subscription>>();
  /** Subscriptions that lack events of this turn. */
  readonly #touched = new Set<Subscription>();
  /** Differs between servers, so that a client sees that it resumes at another one. */
  readonly #firstAttempt: number;
  readonly #closed: Record<number, number> = {};
  #framesSent = 0;
  #bytesSent = 0;
  #isFlushDue = false;
  #stopListening: (() => void) | null = null;

  constructor(options: StreamServiceOptions) {
    this.#options = options;
    this.#limits = { ...STREAM_LIMITS, ...options.limits };
    this.#firstAttempt = options.random();
  }

  /** Counters since the service began; gauges as of now. `closed`: clients that it ended, by close code. */
  stats() {
    return {
      clients: this.#clients.size,
      subjects: this.#subscriptions.size + this.#named.size,
      framesSent: this.#framesSent,
      bytesSent: this.#bytesSent,
      closed: { ...this.#closed },
    };
  }

  open(socket: Socket): void {
    const client: Client = { socket, subscriptions: new Map(), isClosing: false };
    this.#clients.set(socket, client);
    if (this.#options.sidecar.isDraining) {
      this.#end(client, CLOSE.goingAway, "draining");
    } else if (this.#clients.size > this.#limits.clientsMax) {
      this.#end(client, CLOSE.tryLater, `more than ${this.#limits.clientsMax} clients`);
    }
  }

  message(socket: Socket, data: string | Uint8Array): void {
    const client = this.#clients.get(socket);
    if (client === undefined || client.isClosing) return;
    const { frameBytesMax } = this.#limits;
    if (data.length > frameBytesMax) {
      this.#end(client, CLOSE.invalid, `invalid_message: more than ${frameBytesMax} bytes`);
    } else if (typeof data !== "string") this.#end(client, CLOSE.text, "frames are text");
    else {
      const decoded = decodeClientMessage(data);
      if (decoded.kind === "ok") this.#subscribe(client, decoded.message);
      else this.#end(client, CLOSE.invalid, `${decoded.kind}: ${decoded.problem}`);
    }
  }

  close(socket: Socket): void {
    const client = this.#clients.get(socket);
    if (client === undefined) return;
    client.isClosing = true;
    this.#clients.delete(socket);
    for (const subscription of client.subscriptions.values()) this.#forget(subscription);
  }

  drain(socket: Socket): void {
    const client = this.#clients.get(socket);
    if (client !== undefined) this.#bringOn(client);
  }

  end(): void {
    this.#flush();
    for (const client of this.#clients.values()) this.#end(client, CLOSE.goingAway, "draining");
  }

  #subscribe(client: Client, asked: Subscribe): void {
    // A client that subscribes now gets nothing of the current turn twice.
    this.#flush();
    // It did not read what that sent.
    if (client.isClosing) return;
    const { filter, offset } = asked;
    // Another server's numbers mean nothing here.
    const isOurs = asked.resumed?.server === this.#firstAttempt;
    const none = { requests: 0, have: new Map() };
    const resumed = asked.resumed && { ...asked.resumed, ...(isOurs ? null : none) };
    const message: Subscribe = { ...asked, resumed };
    const { rollout } = this.#options.sidecar;
    const key = keyOf(filter);
    const requests = requestsOf(filter, rollout);
    if (resumed !== null) {
      const kept = this.#options.completed.groups.flatMap((group) => group.requests);
      requests.push(...matching(filter, kept));
      // A connection that breaks again has brought the first ones.
      requests.sort((a, b) => a.spec.requestId - b.spec.requestId);
    }
    const problem = this.#problemOf(client, message, requests);
    if (problem !== null) {
      this.#say(client, key, { refused: { code: problem.code, message: problem.message } });
      return;
    }
    const sent = requests.filter((request) => {
      const { requestId: id } = request.spec;
      const isHad = resumed !== null && id < resumed.requests && !resumed.have.has(id);
      return !isEnded(request) || (offset !== null && !isHad);
    });
    const isNamed = filter.request !== undefined;
    // A client that resumes may lack no token of a group, but its end.
    const followed = resumed === null ? sent : requests;
    const groups = isNamed ? [] : new Set(followed.map(({ group }) => group));
    const subscription: Subscription = {
      client,
      message,
      key,
      epoch: rollout.epoch,
      subjects: new Set(),
      cursors: new Map(sent.map((request) => [request, this.#cursor(request, message)])),
      groupsFinished: [...groups].filter(isFinished).map(({ groupId }) => groupId),
      isLive: false,
      isOver: false,
    };
    client.subscriptions.set(key, subscription);
    const name = filter.request ?? filter.group;
    if (name === undefined) this.#bind(subscription, filter.all === true ? "all" : "progress");
    else {
      addTo(this.#named, name, subscription);
      for (const subject of filter.group === undefined ? requests : groups) {
        const isOver = "requests" in subject && this.#options.completed.has(subject);
        if (!isOver) this.#bind(subscription, subject);
      }
    }
    const isComplete = resumed !== null && requests.length > 0 && subscription.subjects.size === 0;
    subscription.isOver = isNamed ? requests.some(isEnded) : isComplete;
    this.#stopListening ??= this.#listen();
    const begun: Partial<Frame> = {
      state: "subscribed",
      begun: {
        server: this.#firstAttempt,
        requests: rollout.meter.counts.requests,
        joined: subscription.cursors.size,
      },
      weight_epoch: rollout.epoch,
    };
    if (this.#say(client, key, begun)) this.#catchUp(subscription);
  }

  #problemOf(
    client: Client,
    message: Subscribe,
    requests: readonly RolloutRequest[],
  ): AppError | null {
    const { filter, offset, attempt } = message;
    const key = keyOf(filter);
    const { subscriptionsMax } = this.#limits;
    if (client.subscriptions.has(key)) {
      return new AppError("conflict", `you are subscribed to ${key}`);
    }
    if (client.subscriptions.size >= subscriptionsMax) {
      const problem = `a client has at most ${subscriptionsMax} subscriptions`;
      return new AppError("queue_full", problem);
    }
    if (filter.request === undefined) return null;
    const [request] = requests;
    // Requests are numbered as they join.
    const { requests: begun } = this.#options.sidecar.rollout.meter.counts;
    if (request === undefined && filter.request < begun) {
      return new AppError("not_found", `request ${filter.request} is over, and not kept`);
    }
    const length = request?.response.length ?? 0;
    const current = this.#attemptOf(request);
    if ((attempt ?? current) !== current || (offset ?? 0) <= length) return null;
    const problem = `offset is ${offset}, but the response has ${length} tokens`;
    return new AppError("conflict", problem);
  }

  /** Number of a response's attempt, which changes when it restarts; its tokens so far are void then. */
  readonly #attemptOf = (request: RolloutRequest | undefined): number =>
    (this.#firstAttempt + (request?.response.restarts ?? 0)) >>> 0;

  #cursor(request: RolloutRequest, { filter, offset, attempt, resumed }: Subscribe): StreamCursor {
    const { length } = request.response;
    const had = resumed?.have.get(request.spec.requestId);
    return {
      offset: filter.progress === true ? length : (had?.offset ?? offset ?? length),
      attempt: had?.attempt ?? attempt ?? this.#attemptOf(request),
      isDeclared: false,
    };
  }

  /** Cursor of a client that has received every frame so far, with `offset` tokens of the response. */
  #after(request: RolloutRequest, offset: number, isDeclared = true): StreamCursor {
    return { offset, attempt: this.#attemptOf(request), isDeclared };
  }

  #bind(subscription: Subscription, subject: Subject): void {
    subscription.isOver = false;
    subscription.subjects.add(subject);
    addTo(this.#subscriptions, subject, subscription);
  }

  /** Takes a subscription away from its client and its subjects. */
  #forget(subscription: Subscription): void {
    const { client, key, message, subjects } = subscription;
    if (!client.subscriptions.delete(key)) return;
    this.#touched.delete(subscription);
    for (const subject of subjects) removeFrom(this.#subscriptions, subject, subscription);
    removeFrom(this.#named, message.filter.request ?? message.filter.group ?? "", subscription);
    if (this.#subscriptions.size + this.#named.size > 0) return;
    this.#stopListening?.();
    this.#stopListening = null;
  }

  #listen(): () => void {
    const stopObserving = this.#options.sidecar.observe({
      joined: (request) => {
        for (const name of [Number(request.spec.requestId), ...namesOf(request.group)]) {
          for (const subscription of this.#named.get(name) ?? []) {
            this.#bind(subscription, typeof name === "number" ? request : request.group);
            subscription.cursors.set(request, this.#cursor(request, subscription.message));
          }
        }
        this.#changed(request, this.#after(request, 0, false));
      },
      tokens: (request, offset) => this.#changed(request, this.#after(request, offset)),
      finished: (request) => {
        this.#changed(request, this.#after(request, request.response.length));
        this.#over(request);
        const { group } = request;
        if (!isFinished(group)) return;
        for (const { groupsFinished } of this.#subscribed("progress", "all", group)) {
          groupsFinished.push(group.groupId);
        }
      },
      restarted: (request) => {
        const attempt = this.#attemptOf(request) - 1;
        this.#changed(request, { ...this.#after(request, 0), attempt });
      },
      groupFinished: (group) => this.#over(group),
      advanced: () => {
        for (const { subscriptions } of this.#clients.values()) {
          for (const subscription of subscriptions.values()) this.#touch(subscription);
        }
      },
    });
    const stopTicking = this.#options.every(() => this.#tick(), PROGRESS_MS);
    return () => {
      stopObserving();
      stopTicking();
    };
  }

  *#subscribed(...subjects: readonly Subject[]): Generator<Subscription> {
    for (const subject of subjects) yield* this.#subscriptions.get(subject) ?? [];
  }

  /** Removes a subject without further events; a subscription ends with its last subject. */
  #over(subject: RolloutRequest | Group): void {
    for (const subscription of this.#subscribed(subject)) {
      removeFrom(this.#subscriptions, subject, subscription);
      subscription.subjects.delete(subject);
      subscription.isOver = subscription.subjects.size === 0;
      this.#touch(subscription);
    }
  }

  /** Called for every new part of a response. `before`: cursor of a client that has received every frame so far. */
  #changed(request: RolloutRequest, before: StreamCursor): void {
    for (const subject of ["all", request.group, request, "progress"] as const) {
      for (const subscription of this.#subscriptions.get(subject) ?? []) {
        const { cursors } = subscription;
        if (!cursors.has(request)) cursors.set(request, { ...before });
        this.#touch(subscription);
      }
    }
  }

  /** Schedules one turn for everything that happens before the next microtask. */
  #touch(subscription: Subscription): void {
    if (subscription.message.filter.progress === true) return;
    this.#touched.add(subscription);
    if (this.#isFlushDue) return;
    this.#isFlushDue = true;
    queueMicrotask(() => this.#flush());
  }

  #flush(): void {
    this.#isFlushDue = false;
    for (const subscription of this.#touched) this.#catchUp(subscription);
    this.#touched.clear();
  }

  #tick(): void {
    this.#flush();
    const { meter, epoch } = this.#options.sidecar.rollout;
    const followers = [...this.#subscribed("progress")];
    const progress = followers.length === 0 ? null : progressFields(meter.progress(), epoch);
    for (const subscription of followers) this.#catchUp(subscription, progress);
    for (const client of [...this.#clients.values()]) this.#bringOn(client);
  }

  #bringOn({ subscriptions }: Client): void {
    for (const subscription of [...subscriptions.values()]) {
      if (!subscription.isLive) this.#catchUp(subscription);
    }
  }

  /** Sends what a client lacks as far as it reads. An error in it ends this client alone. */
  #catchUp(subscription: Subscription, progress: Frame["progress"] = null): void {
    if (subscription.client.isClosing) return;
    try {
      this.#bring(subscription, progress);
    } catch (error) {
      this.#options.failed?.(error);
      this.#end(subscription.client, CLOSE.internal, "internal_error");
    }
  }

  /** Sends the missing part to a subscription, which is live once it lacks nothing. */
  #bring(subscription: Subscription, progress: Frame["progress"]): void {
    const { client, cursors, groupsFinished } = subscription;
    const { epoch } = this.#options.sidecar.rollout;
    const roomMax = this.#limits.sendQueueBytes / 2;
    // What is new goes out at once; `#send` drops a client that does not read it.
    const hasRoom = () => subscription.isLive || client.socket.getBufferedAmount() <= roomMax;
    if (!hasRoom()) return;
    const { isOver } = subscription;
    let isDone = false;
    const last = (frame: Frame) => {
      isDone = true;
      if (subscription.epoch !== epoch) frame.weight_epoch = epoch;
      subscription.epoch = epoch;
      for (const groupId of groupsFinished.splice(0)) addEntry(frame, "groups_finished", groupId);
      frame.progress = progress;
      if (isOver) frame.state = "ended";
    };
    const send = (json: string) => this.#send(client, json) && (isDone || hasRoom());
    if (!bringOn(subscription, { attemptOf: this.#attemptOf, last, send })) return;
    if (isOver) this.#forget(subscription);
    cursors.clear();
    subscription.isLive = true;
  }

  /** Sends a frame with these fields alone. false: the client has been dropped. */
  #say(client: Client, subscription: string, what: Partial<Frame>): boolean {
    return this.#send(client, frameJson({ ...newFrame(subscription), ...what }) ?? "");
  }

  #send(client: Client, data: string): boolean {
    if (client.isClosing) return false;
    const sent = client.socket.send(data);
    this.#framesSent += 1;
    this.#bytesSent += data.length;
    if (sent > 0) return true;
    const waiting = client.socket.getBufferedAmount();
    if (sent < 0 && waiting <= this.#limits.sendQueueBytes) return true;
    this.#end(client, CLOSE.tryLater, `slow_consumer: ${waiting} bytes wait to be read`);
    return false;
  }

  #end(client: Client, code: number, reason: string): void {
    if (client.isClosing) return;
    this.#closed[code] = (this.#closed[code] ?? 0) + 1;
    this.close(client.socket);
    client.socket.close(code, closeReason(reason));
  }
}

function addTo<K>(sets: Map<K, Set<Subscription>>, key: K, subscription: Subscription): void {
  sets.getOrInsertComputed(key, () => new Set()).add(subscription);
}

function removeFrom<K>(sets: Map<K, Set<Subscription>>, key: K, subscription: Subscription): void {
  const others = sets.get(key);
  others?.delete(subscription);
  if (others?.size === 0) sets.delete(key);
}

/** The existing responses that match the filter. */
function requestsOf(filter: Filter, rollout: Rollout): RolloutRequest[] {
  const { request: id } = filter;
  if (id !== undefined) return [rollout.request(requestId(id)) ?? []].flat();
  return matching(filter, [...rollout.requests]);
}

function matching(
  { request: id, group: name }: Filter,
  all: readonly RolloutRequest[],
): RolloutRequest[] {
  return all.filter(({ group, spec }) => {
    if (id !== undefined) return spec.requestId === id;
    return name === undefined || namesOf(group).includes(name);
  });
}

function isEnded({ status }: RolloutRequest): boolean {
  return status === "finished";
}

/** Whether all of its requests have ended; further ones may still join. */
function isFinished(group: Group): boolean {
  return group.finished === group.requests.length;
}

/** The server's name of a group and the client's, which JoinableGroups writes behind a number of its own: `g7:name`. */
function namesOf({ groupId }: Group): readonly string[] {
  const colon = groupId.indexOf(":");
  return colon < 0 ? [groupId] : [groupId, groupId.slice(colon + 1)];
}
