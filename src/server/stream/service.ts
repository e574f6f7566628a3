// /v1/stream: clients follow responses as they are generated. Once per turn of the rollout, a frame is built for each
// filter and format that anybody listens to, and shared. A client that does not read is dropped with a
// reason; it never makes another one wait, nor the rollout. Tokens without a follower cost nothing.

import { AppError } from "../../core/base/errors.ts";
import { type GroupId, requestId } from "../../core/base/ids.ts";
import type { Group, Request } from "../../core/request/buffer.ts";
import type { Decoded } from "../../proto/checked.ts";
import { CLOSE, closeReason } from "../../proto/close-codes.ts";
import type { Text } from "../../text/text.ts";
import type { Socket, SocketService } from "../http.ts";
import type { Sidecar } from "../sidecar.ts";
import {
  type ClientMessage,
  type Filter,
  Frame,
  progressFields,
  STREAM_FORMATS,
  type StreamFormat,
  type Subscribe,
} from "./frame.ts";
import { decodeJson, encodeJson } from "./json-codec.ts";
import { decodeProtobuf, encodeProtobuf } from "./protobuf-codec.ts";
import {
  type Client,
  type Cursor,
  clear,
  declareTo,
  FINISHED,
  isOver,
  JOINED,
  keyOf,
  newTopic,
  note,
  pieces,
  RESTARTED,
  type Subject,
  type Subscription,
  TOKENS,
  type Topic,
  tell,
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
  /** null: text cannot be requested. */
  readonly text: Text | null;
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
  /** Topics of one group or one response. */
  #narrow = 0;
  readonly #frame: Frame;
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
    this.#frame = new Frame(options.random());
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
    const given = query.get("format") ?? "json";
    const format = STREAM_FORMATS.find((known) => known === given);
    const client: Client = {
      socket,
      format: format ?? "json",
      subscriptions: new Map(),
      isClosing: false,
    };
    this.#clients.set(socket, client);
    if (format === undefined) {
      this.#end(
        client,
        CLOSE.version,
        `format is ${given}, not one of ${STREAM_FORMATS.join(", ")}`,
      );
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
    const decoded = decode(client.format, data);
    if (decoded === null) {
      const wanted = client.format === "json" ? "text" : "binary";
      this.#end(client, CLOSE.text, `frames of the ${client.format} format are ${wanted}`);
    } else if (decoded.kind !== "ok") {
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
    const topic = this.#topics.get(subject) ?? this.#opened(subject);
    const { rollout } = this.#options.sidecar;
    const text = message.text ? this.#options.text : null;
    const cursors = new Map<Request, Cursor>();
    for (const request of requestsOf(subject, rollout.requests)) {
      cursors.set(request, this.#cursor(request, message, text));
    }
    const groupsFinished =
      typeof subject !== "string" && "groupId" in subject && isComplete(subject)
        ? [subject.groupId as string]
        : [];
    const { epoch } = rollout;
    const subscription: Subscription = { client, topic, cursors, text, epoch, groupsFinished };
    client.subscriptions.set(topic.key, subscription);
    this.#subscriptions += 1;
    topic.behind.add(subscription);
    this.#stopListening ??= this.#listen();
    this.#frame.begin(topic.key);
    this.#frame.state = "subscribed";
    this.#frame.weightEpoch = epoch;
    if (this.#sendFrame(client)) this.#catchUp(subscription);
  }

  #opened(subject: Subject): Topic {
    const topic = newTopic(subject);
    this.#topics.set(subject, topic);
    if (typeof subject !== "string") this.#narrow += 1;
    return topic;
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
    if (message.text && this.#options.text === null) {
      return new AppError("invalid_field", "text: this server has no tokenizer");
    }
    if (typeof subject === "string" || !("response" in subject)) return null;
    const { length } = subject.response;
    const attempt = this.#frame.attemptOf(subject);
    if ((message.attempt ?? attempt) !== attempt || message.offset <= length) return null;
    const problem = `offset is ${message.offset}, but the response has ${length} tokens`;
    return new AppError("conflict", problem);
  }

  #cursor(request: Request, message: Subscribe, text: Text | null): Cursor {
    const { response } = request;
    const { kind } = message.filter;
    const current = this.#frame.attemptOf(request);
    const attempt = message.attempt ?? current;
    const isAll = kind === "all" || kind === "progress";
    const offset = isAll ? response.length : message.offset;
    const detokenizer = text?.detokenizer({ skipSpecial: true }) ?? null;
    // A character may have begun in the tokens that the client has.
    if (attempt === current) detokenizer?.push(response.tokens().subarray(0, offset));
    return { offset, attempt, isDeclared: false, detokenizer };
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
    this.#frame.begin(key);
    this.#frame.state = "unsubscribed";
    this.#sendFrame(client);
  }

  #refuse(client: Client, key: string, error: AppError): void {
    this.#frame.begin(key);
    this.#frame.refused = { code: error.code, message: error.message };
    this.#sendFrame(client);
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
    if (topic.live.size + topic.behind.size === 0) {
      this.#topics.delete(topic.subject);
      if (typeof topic.subject !== "string") this.#narrow -= 1;
    }
    if (this.#subscriptions > 0) return;
    this.#stopListening?.();
    this.#stopListening = null;
    this.#touched.clear();
  }

  #listen(): () => void {
    const stopObserving = this.#options.sidecar.observe({
      joined: (request) => this.#happened(request, JOINED, 0),
      tokens: (request, offset) => this.#happened(request, TOKENS, offset),
      finished: (request) => {
        this.#happened(request, FINISHED, request.response.length);
        if (isComplete(request.group)) this.#groupFinished(request.group);
      },
      restarted: (request) => this.#happened(request, RESTARTED, 0),
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

  #happened(request: Request, flag: number, from: number): void {
    this.#note(this.#topics.get("progress"), request, flag, from);
    this.#note(this.#topics.get("all"), request, flag, from);
    if (this.#narrow === 0) return;
    this.#note(this.#topics.get(request.group), request, flag, from);
    this.#note(this.#topics.get(request), request, flag, from);
  }

  #note(topic: Topic | undefined, request: Request, flag: number, from: number): void {
    if (topic === undefined) return;
    note(topic, request, flag, from);
    if (flag === JOINED) declareTo(topic, request, this.#frame.attemptOf(request));
    this.#touch(topic);
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
    clear(topic);
  }

  /** Sends one frame of the turn to all clients that are up to date, and as much as possible to the others. */
  #sendTurn(topic: Topic): void {
    const over = isOver(topic);
    if (topic.live.size > 0) {
      this.#frame.begin(topic.key);
      tell(topic, this.#frame);
      if (this.#hasAdvanced) this.#frame.weightEpoch = this.#options.sidecar.rollout.epoch;
      if (over) this.#frame.state = "ended";
      this.#share(topic);
    }
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
    if (topic.live.size === 0) return;
    const { rollout } = this.#options.sidecar;
    this.#frame.begin(topic.key);
    tell(topic, this.#frame);
    this.#frame.progress = progressFields(rollout.meter.progress(), rollout.epoch);
    this.#share(topic);
  }

  /** Encodes the frame once for each format, and sends it to all who are up to date. */
  #share(topic: Topic): void {
    if (this.#frame.isEmpty) return;
    const encoded: Partial<Record<StreamFormat, string | Uint8Array>> = {};
    for (const { client } of topic.live) {
      encoded[client.format] ??= encode(client.format, this.#frame);
      this.#send(client, encoded[client.format] ?? "");
    }
  }

  /** Sends what a client lacks as far as it reads. An error in it, as of its text, ends this client alone. */
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
    const { client, topic, text } = subscription;
    const { epoch } = this.#options.sidecar.rollout;
    const hasRoom = () => client.socket.getBufferedAmount() <= this.#limits.sendQueueBytes / 2;
    if (!hasRoom()) return;
    const frame = this.#frame;
    const run = pieces(subscription, frame);
    for (;;) {
      frame.begin(topic.key);
      const isDone = run.next().done === true;
      if (isDone && subscription.epoch !== epoch) {
        frame.weightEpoch = epoch;
        subscription.epoch = epoch;
      }
      if (isDone) frame.groupsFinished.push(...subscription.groupsFinished.splice(0));
      const over = isDone && isOver(topic);
      if (over) frame.state = "ended";
      if (!frame.isEmpty && !this.#sendFrame(client)) return;
      if (over) this.#forget(subscription);
      if (isDone && !over && text === null) {
        subscription.cursors.clear();
        topic.behind.delete(subscription);
        topic.live.add(subscription);
      }
      if (isDone || !hasRoom()) return;
    }
  }

  /** false: the client has been dropped. */
  #sendFrame(client: Client): boolean {
    return this.#send(client, encode(client.format, this.#frame));
  }

  #send(client: Client, data: string | Uint8Array): boolean {
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

function encode(format: StreamFormat, frame: Frame): string | Uint8Array {
  return format === "json" ? encodeJson(frame) : encodeProtobuf(frame);
}

/** null: text where bytes belong, or the other way round. */
function decode(format: StreamFormat, data: string | Uint8Array): Decoded<ClientMessage> | null {
  if (format === "json") return typeof data === "string" ? decodeJson(data) : null;
  return typeof data === "string" ? null : decodeProtobuf(data);
}
