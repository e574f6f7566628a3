// /v1/stream: clients follow responses as they are generated. Once per turn of the rollout, a frame is built for each
// filter that anybody listens to, and shared. A client that does not read is dropped with a reason; it never makes
// another one wait, nor the rollout. Tokens without a follower cost nothing.

import { AppError } from "../../core/base/errors.ts";
import { type GroupId, requestId } from "../../core/base/ids.ts";
import type { Group, Request } from "../../core/request/buffer.ts";
import { CLOSE, closeReason } from "../../proto/close-codes.ts";
import type { Socket, SocketService } from "../http.ts";
import type { Sidecar } from "../sidecar.ts";
import { decodeClientMessage, type Filter, type Subscribe } from "./client-message.ts";
import { type Frame, frameJson, newFrame, progressFields } from "./frame.ts";
import {
  type Client,
  type Cursor,
  type Cursors,
  frames,
  isOver,
  keyOf,
  newTopic,
  type Subject,
  type Subscription,
  type Topic,
} from "./topic.ts";

export interface StreamLimits {
  readonly clientsMax: number;
  readonly subscriptionsMax: number;
  /** Bytes of one message from a client. */
  readonly frameBytesMax: number;
  /** Bytes that may wait for one client to read them. */
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
  readonly limits?: Partial<StreamLimits>;
  readonly random: () => number;
  /** Runs something again and again; returns what ends it. */
  readonly every: (act: () => void, ms: number) => () => void;
  /** Called with an error that ended one client and was not the client's. */
  readonly failed?: (error: unknown) => void;
}

const PROGRESS_MS = 250;

export class StreamService implements SocketService {
  readonly #options: StreamServiceOptions;
  readonly #limits: StreamLimits;
  readonly #clients = new Map<Socket, Client>();
  readonly #topics = new Map<Subject, Topic>();
  readonly #touched = new Set<Topic>();
  /** Differs between servers, so that a client sees that it resumes at another one. */
  readonly #firstAttempt: number;
  readonly #closed: Record<number, number> = {};
  #subscriptions = 0;
  #framesSent = 0;
  #bytesSent = 0;
  #isFlushDue = false;
  #hasAdvanced = false;
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
      subscriptions: this.#subscriptions,
      framesSent: this.#framesSent,
      bytesSent: this.#bytesSent,
      closed: { ...this.#closed },
    };
  }

  open(socket: Socket, query: URLSearchParams): void {
    const format = query.get("format") ?? "json";
    const client: Client = { socket, subscriptions: new Map(), isClosing: false };
    this.#clients.set(socket, client);
    if (format !== "json") {
      this.#end(client, CLOSE.version, `format is ${format}; frames are json`);
    } else if (this.#options.sidecar.isDraining) {
      this.#end(client, CLOSE.goingAway, "draining");
    } else if (this.#clients.size > this.#limits.clientsMax) {
      this.#end(client, CLOSE.tryLater, `more than ${this.#limits.clientsMax} clients`);
    }
  }

  message(socket: Socket, data: string | Uint8Array): void {
    const client = this.#clients.get(socket);
    if (client === undefined || client.isClosing) return;
    if (data.length > this.#limits.frameBytesMax) {
      const problem = `invalid_message: more than ${this.#limits.frameBytesMax} bytes`;
      this.#end(client, CLOSE.invalid, problem);
      return;
    }
    if (typeof data !== "string") {
      this.#end(client, CLOSE.text, "frames are text");
      return;
    }
    const decoded = decodeClientMessage(data);
    if (decoded.kind !== "ok") {
      this.#end(client, CLOSE.invalid, `${decoded.kind}: ${decoded.problem}`);
    } else if (decoded.message.kind === "subscribe") {
      this.#subscribe(client, decoded.message);
    } else {
      this.#unsubscribe(client, decoded.message.filter);
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
    if (client === undefined) return;
    for (const subscription of client.subscriptions.values()) {
      if (subscription.topic.behind.has(subscription)) this.#catchUp(subscription);
    }
  }

  /** Closes every connection: the server stops. */
  end(): void {
    this.#flush();
    for (const client of this.#clients.values()) this.#end(client, CLOSE.goingAway, "draining");
  }

  #subscribe(client: Client, message: Subscribe): void {
    // A client that subscribes now gets nothing of the current turn twice.
    this.#flush();
    // It did not read what that sent.
    if (client.isClosing) return;
    const subject = this.#find(message.filter);
    if (subject instanceof AppError) {
      this.#refuse(client, nameOf(message.filter), subject);
      return;
    }
    const problem = this.#problemOf(client, subject, message);
    if (problem !== null) {
      this.#refuse(client, keyOf(subject), problem);
      return;
    }
    const topic = this.#topics.get(subject) ?? newTopic(subject);
    this.#topics.set(subject, topic);
    const { rollout } = this.#options.sidecar;
    const cursors: Cursors = new Map();
    for (const request of requestsOf(subject, rollout.requests)) {
      cursors.set(request, this.#cursor(request, message));
    }
    const groupsFinished =
      typeof subject !== "string" && "groupId" in subject && isComplete(subject)
        ? [subject.groupId as string]
        : [];
    const { epoch } = rollout;
    const subscription: Subscription = { client, topic, cursors, epoch, groupsFinished };
    client.subscriptions.set(topic.key, subscription);
    this.#subscriptions += 1;
    topic.behind.add(subscription);
    this.#stopListening ??= this.#listen();
    if (this.#say(client, topic.key, { state: "subscribed", weight_epoch: epoch })) {
      this.#catchUp(subscription);
    }
  }

  #problemOf(client: Client, subject: Subject, message: Subscribe): AppError | null {
    const key = keyOf(subject);
    const { subscriptionsMax } = this.#limits;
    if (client.subscriptions.has(key)) {
      return new AppError("conflict", `you are subscribed to ${key}`);
    }
    if (client.subscriptions.size >= subscriptionsMax) {
      const problem = `a client has at most ${subscriptionsMax} subscriptions`;
      return new AppError("queue_full", problem);
    }
    if (typeof subject === "string" || !("response" in subject)) return null;
    const { length } = subject.response;
    const attempt = this.#attemptOf(subject);
    if ((message.attempt ?? attempt) !== attempt || message.offset <= length) return null;
    const problem = `offset is ${message.offset}, but the response has ${length} tokens`;
    return new AppError("conflict", problem);
  }

  /** Changes when the response restarts; its tokens so far are void then. */
  readonly #attemptOf = ({ response }: Request): number =>
    (this.#firstAttempt + response.restarts) >>> 0;

  #cursor(request: Request, { filter, offset, attempt }: Subscribe): Cursor {
    const isAll = filter.kind === "all" || filter.kind === "progress";
    return {
      offset: isAll ? request.response.length : offset,
      attempt: attempt ?? this.#attemptOf(request),
      isDeclared: false,
    };
  }

  #unsubscribe(client: Client, filter: Filter): void {
    const found = this.#find(filter);
    const key = found instanceof AppError ? nameOf(filter) : keyOf(found);
    const subscription = client.subscriptions.get(key);
    if (subscription === undefined) {
      this.#refuse(client, key, new AppError("not_found", `you are not subscribed to ${key}`));
      return;
    }
    this.#flush();
    this.#forget(subscription);
    this.#say(client, key, { state: "unsubscribed" });
  }

  #refuse(client: Client, key: string, error: AppError): void {
    this.#say(client, key, { refused: { code: error.code, message: error.message } });
  }

  #find(filter: Filter): Subject | AppError {
    const { rollout } = this.#options.sidecar;
    if (filter.kind === "request") {
      const none = new AppError("not_found", `there is no request ${filter.request}`);
      return rollout.request(requestId(filter.request)) ?? none;
    }
    if (filter.kind !== "group") return filter.kind;
    const { group: name } = filter;
    const group = rollout.group(name as GroupId) ?? groupNamed(name, rollout.requests);
    return group ?? new AppError("not_found", `there is no group ${name}`);
  }

  /** Takes a subscription away from its client and its topic, and the topic with its last one. */
  #forget(subscription: Subscription): void {
    const { client, topic } = subscription;
    if (!client.subscriptions.delete(topic.key)) return;
    topic.live.delete(subscription);
    topic.behind.delete(subscription);
    this.#subscriptions -= 1;
    if (topic.live.size + topic.behind.size === 0) this.#topics.delete(topic.subject);
    if (this.#subscriptions > 0) return;
    this.#stopListening?.();
    this.#stopListening = null;
    this.#touched.clear();
  }

  #listen(): () => void {
    const stopObserving = this.#options.sidecar.observe({
      joined: (request) => this.#joined(request),
      tokens: (request, offset) => this.#changed(request, { offset }),
      finished: (request) => {
        this.#changed(request, { offset: request.response.length });
        if (isComplete(request.group)) this.#groupFinished(request.group);
      },
      restarted: (request) => {
        this.#changed(request, { attempt: this.#attemptOf(request) - 1 });
      },
      groupFinished: (group) => {
        const topic = this.#topics.get(group);
        if (topic === undefined) return;
        topic.isRetired = true;
        this.#touch(topic);
      },
      advanced: () => {
        this.#hasAdvanced = true;
        for (const topic of this.#topics.values()) this.#touch(topic);
      },
    });
    const stopTicking = this.#options.every(() => this.#tick(), PROGRESS_MS);
    return () => {
      stopObserving();
      stopTicking();
    };
  }

  *#topicsOf(request: Request): Generator<Topic> {
    for (const subject of ["progress", "all", request.group, request] as const) {
      const topic = this.#topics.get(subject);
      if (topic !== undefined) yield topic;
    }
  }

  #joined(request: Request): void {
    const attempt = this.#attemptOf(request);
    for (const topic of this.#topicsOf(request)) {
      const subscribers = [topic.changed, ...[...topic.behind].map(({ cursors }) => cursors)];
      for (const cursors of subscribers) {
        cursors.set(request, { offset: 0, attempt, isDeclared: false });
      }
      this.#touch(topic);
    }
  }

  /** `before`: how far a client is that has had every frame, where this is the first change in the turn. */
  #changed(request: Request, before: Partial<Cursor>): void {
    for (const topic of this.#topicsOf(request)) {
      if (!topic.changed.has(request)) {
        const attempt = this.#attemptOf(request);
        topic.changed.set(request, { offset: 0, attempt, isDeclared: true, ...before });
      }
      this.#touch(topic);
    }
  }

  #groupFinished(group: Group): void {
    for (const subject of ["progress", "all", group] as const) {
      const topic = this.#topics.get(subject);
      if (topic === undefined) continue;
      topic.groupsFinished.push(group.groupId);
      for (const { groupsFinished } of topic.behind) groupsFinished.push(group.groupId);
    }
  }

  /** Everything that happens before the next microtask is one turn. */
  #touch(topic: Topic): void {
    if (topic.subject === "progress") return;
    this.#touched.add(topic);
    if (this.#isFlushDue) return;
    this.#isFlushDue = true;
    queueMicrotask(() => this.#flush());
  }

  #flush(): void {
    this.#isFlushDue = false;
    for (const topic of this.#touched) this.#contained(topic, () => this.#sendTurn(topic));
    this.#touched.clear();
    this.#hasAdvanced = false;
  }

  /** If this topic's frame cannot be built its subscribers have a gap, and restart. */
  #contained(topic: Topic, send: () => void): void {
    try {
      send();
    } catch (error) {
      this.#options.failed?.(error);
      const clients = new Set([...topic.live, ...topic.behind].map(({ client }) => client));
      for (const client of clients) this.#end(client, CLOSE.internal, "internal_error");
    }
    topic.changed.clear();
    topic.groupsFinished.length = 0;
  }

  /** Sends the turn to all clients that are up to date, and as much as possible to the others. */
  #sendTurn(topic: Topic): void {
    const over = isOver(topic);
    this.#share(topic, (last) => {
      if (this.#hasAdvanced) last.weight_epoch = this.#options.sidecar.rollout.epoch;
      if (over) last.state = "ended";
    });
    for (const subscription of [...topic.behind]) this.#catchUp(subscription);
    if (over) for (const subscription of [...topic.live]) this.#forget(subscription);
  }

  #tick(): void {
    this.#flush();
    const topic = this.#topics.get("progress");
    if (topic !== undefined) this.#contained(topic, () => this.#shareProgress(topic));
    for (const { behind } of this.#topics.values()) {
      for (const subscription of [...behind]) this.#catchUp(subscription);
    }
  }

  #shareProgress(topic: Topic): void {
    const { meter, epoch } = this.#options.sidecar.rollout;
    this.#share(topic, (last) => {
      last.progress = progressFields(meter.progress(), epoch);
    });
  }

  /** Encodes frames once, and sends them to all who are up to date. */
  #share(topic: Topic, complete: (last: Frame) => void): void {
    if (topic.live.size === 0) return;
    const last = (frame: Frame) => {
      frame.groups_finished.push(...topic.groupsFinished);
      complete(frame);
    };
    for (const json of frames(topic, topic.changed, { attemptOf: this.#attemptOf, last })) {
      for (const { client } of topic.live) this.#send(client, json);
    }
  }

  /** Sends what a client lacks as far as it reads. An error in it ends this client alone. */
  #catchUp(subscription: Subscription): void {
    if (subscription.client.isClosing) return;
    try {
      this.#bring(subscription);
    } catch (error) {
      this.#options.failed?.(error);
      this.#end(subscription.client, CLOSE.internal, "internal_error");
    }
  }

  /** Sends the missing part to a subscription, which shares frames once it lacks nothing. */
  #bring(subscription: Subscription): void {
    const { client, topic, cursors } = subscription;
    const { epoch } = this.#options.sidecar.rollout;
    const hasRoom = () => client.socket.getBufferedAmount() <= this.#limits.sendQueueBytes / 2;
    if (!hasRoom()) return;
    const over = isOver(topic);
    let isDone = false;
    const last = (frame: Frame) => {
      isDone = true;
      if (subscription.epoch !== epoch) frame.weight_epoch = epoch;
      subscription.epoch = epoch;
      frame.groups_finished.push(...subscription.groupsFinished.splice(0));
      if (over) frame.state = "ended";
    };
    for (const json of frames(topic, cursors, { attemptOf: this.#attemptOf, last })) {
      if (!this.#send(client, json)) return;
      if (!isDone && !hasRoom()) return;
    }
    if (over) {
      this.#forget(subscription);
      return;
    }
    cursors.clear();
    topic.behind.delete(subscription);
    topic.live.add(subscription);
  }

  /** Sends a frame of this alone. false: the client has been dropped. */
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

function nameOf(filter: Filter): string {
  if (filter.kind === "request") return `request:${filter.request}`;
  return filter.kind === "group" ? `group:${filter.group}` : filter.kind;
}

function requestsOf(subject: Subject, all: Iterable<Request>): Iterable<Request> {
  if (typeof subject === "string") return all;
  return "requests" in subject ? subject.requests : [subject];
}

function isComplete(group: Group): boolean {
  return group.finished === group.requests.length;
}

/** The newest of a client's name: JoinableGroups writes it behind a number of its own, `g7:name`. */
function groupNamed(name: string, requests: Iterable<Request>): Group | null {
  let newest: Group | null = null;
  for (const request of requests) {
    const { group } = request;
    const { groupId } = group;
    const isFirst = group.requests[0] === request;
    if (isFirst && groupId.slice(groupId.indexOf(":") + 1) === name) newest = group;
  }
  return newest;
}
