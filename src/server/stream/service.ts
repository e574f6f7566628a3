// /v1/stream: clients follow responses as they are generated. Once per turn of the rollout, a frame is built for each
// filter and format that anybody listens to, and shared. A client that does not read is dropped with a
// reason; it never makes another one wait, nor the rollout. Tokens without a follower cost nothing. (It is long:
// subscribing, a turn and catching up share the one frame and the sets of who is where.)

import { AppError } from "../../core/base/errors.ts";
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
  keyOf,
  STREAM_FORMATS,
  type StreamFormat,
} from "./frame.ts";
import { decodeJson, encodeJson } from "./json-codec.ts";
import { progressEntry } from "./progress.ts";
import { decodeProtobuf, encodeProtobuf } from "./protobuf-codec.ts";
import {
  type Client,
  type Cursor,
  FINISHED,
  type GroupTracks,
  isGroupFinished,
  isOver,
  JOINED,
  newTopic,
  pieces,
  RESTARTED,
  type Subscription,
  TOKENS,
  type Topic,
  type Track,
  tell,
  tellLength,
} from "./topic.ts";
import { Tracks } from "./tracks.ts";

export interface StreamLimits {
  readonly clientsMax: number;
  /** Of one client. */
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
  /** It must not have taken a request yet. */
  readonly sidecar: Sidecar;
  /** null: text cannot be requested. */
  readonly text: Text | null;
  readonly limits?: Partial<StreamLimits>;
  /** 32 random bits. */
  readonly random: () => number;
  /** Runs something again and again; returns what ends it. */
  readonly every: (act: () => void, ms: number) => () => void;
  /** Called with an error that ended one client and was not the client's. */
  readonly failed?: (error: unknown) => void;
}

/** Counters since the service began; gauges as of now. */
export interface StreamStats {
  readonly clients: number;
  readonly subscriptions: number;
  readonly framesSent: number;
  readonly bytesSent: number;
  /** Clients that the service ended, by close code. */
  readonly closed: Readonly<Record<number, number>>;
}

const PROGRESS_MS = 250;

export class StreamService implements SocketService {
  readonly #options: StreamServiceOptions;
  readonly #limits: StreamLimits;
  readonly #tracks: Tracks;
  readonly #clients = new Map<Socket, Client>();
  readonly #topics = new Map<string, Topic>();
  readonly #touched: Topic[] = [];
  readonly #dirty: Track[] = [];
  readonly #frame = new Frame();
  readonly #closed: Record<number, number> = {};
  #subscriptions = 0;
  #framesSent = 0;
  #bytesSent = 0;
  #isFlushDue = false;
  #hasAdvanced = false;
  /** null: no subscribers. */
  #stopListening: (() => void) | null = null;
  #stopTicking: (() => void) | null = null;
  #all: Topic | null = null;
  #progress: Topic | null = null;

  constructor(options: StreamServiceOptions) {
    this.#options = options;
    this.#limits = { ...STREAM_LIMITS, ...options.limits };
    this.#tracks = new Tracks(options.random() >>> 0);
    options.sidecar.observe({
      joined: (request) => this.#joined(request),
      restarted: (request) => this.#tracks.restarted(request),
      groupFinished: (group) => this.#retired(group),
    });
  }

  stats(): StreamStats {
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
    client.subscriptions.clear();
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

  #subscribe(client: Client, message: Extract<ClientMessage, { kind: "subscribe" }>): void {
    // A client that subscribes now gets nothing of the current turn twice.
    this.#flush();
    const { filter } = message;
    const { subscriptionsMax } = this.#limits;
    if (client.subscriptions.size >= subscriptionsMax) {
      const problem = `a client has at most ${subscriptionsMax} subscriptions`;
      this.#refuse(client, keyOf(filter), new AppError("queue_full", problem));
      return;
    }
    const found = this.#find(filter);
    if (found instanceof AppError) {
      this.#refuse(client, keyOf(filter), found);
      return;
    }
    const { key } = found;
    if (client.subscriptions.has(key)) {
      this.#refuse(client, key, new AppError("conflict", `you are subscribed to ${key}`));
      return;
    }
    const text = message.text ? this.#options.text : null;
    const problem = this.#problemOf(found, message);
    if (problem !== null) {
      this.#refuse(client, key, problem);
      return;
    }
    const topic = this.#opened(found);
    const epoch = this.#options.sidecar.rollout.epoch;
    const { group } = topic;
    const groupsFinished =
      group !== null && isGroupFinished(group) ? [group.group.groupId as string] : [];
    const cursors = new Map<Track, Cursor>();
    const subscription: Subscription = { client, topic, cursors, text, epoch, groupsFinished };
    for (const track of this.#tracksOf(topic)) {
      cursors.set(track, this.#cursor(track, { message, text }));
    }
    client.subscriptions.set(key, subscription);
    this.#subscriptions += 1;
    topic.behind.add(subscription);
    this.#listen();
    this.#frame.begin(key);
    this.#frame.state = "subscribed";
    this.#frame.weightEpoch = epoch;
    if (this.#sendFrame(client)) this.#catchUp(subscription);
  }

  #problemOf(
    topic: Topic,
    message: Extract<ClientMessage, { kind: "subscribe" }>,
  ): AppError | null {
    if (message.text && this.#options.text === null) {
      return new AppError("invalid_field", "text: this server has no tokenizer");
    }
    if (topic.track === null) return null;
    const { attempt, request } = topic.track;
    const { length } = request.response;
    if ((message.attempt ?? attempt) !== attempt || message.offset <= length) return null;
    const has = `the response has ${length} tokens`;
    return new AppError("conflict", `offset is ${message.offset}, but ${has}`);
  }

  #cursor(
    track: Track,
    options: {
      message: Extract<ClientMessage, { kind: "subscribe" }>;
      text: Text | null;
    },
  ): Cursor {
    const { message, text } = options;
    const { response } = track.request;
    const { kind } = message.filter;
    const detokenizer = text?.detokenizer({ skipSpecial: true }) ?? null;
    const attempt = message.attempt ?? track.attempt;
    let { offset } = message;
    if (kind === "all" || kind === "progress") offset = response.length;
    // A character may have begun in the tokens that the client has.
    if (attempt === track.attempt) detokenizer?.push(response.tokens().subarray(0, offset));
    return { offset, attempt, isDeclared: false, detokenizer };
  }

  #unsubscribe(client: Client, filter: Filter): void {
    const found = this.#find(filter);
    const key = found instanceof AppError ? keyOf(filter) : found.key;
    const subscription = client.subscriptions.get(key);
    if (subscription === undefined) {
      this.#refuse(client, key, new AppError("not_found", `you are not subscribed to ${key}`));
      return;
    }
    this.#flush();
    client.subscriptions.delete(key);
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

  /** The topic of a filter: the existing one, or a new one. */
  #find(filter: Filter): Topic | AppError {
    const there = this.#topics.get(keyOf(filter));
    if (there !== undefined) return there;
    if (filter.kind === "request") {
      const track = this.#tracks.track(filter.request);
      if (track !== null) {
        return track.topic ?? newTopic(filter, { key: keyOf(filter), track, group: null });
      }
      return new AppError("not_found", `there is no request ${filter.request}`);
    }
    if (filter.kind === "group") {
      const group = this.#tracks.group(filter.group);
      if (group === null) return new AppError("not_found", `there is no group ${filter.group}`);
      const named = { kind: "group" as const, group: group.group.groupId };
      return group.topic ?? newTopic(named, { key: keyOf(named), track: null, group });
    }
    return newTopic(filter, { key: filter.kind, track: null, group: null });
  }

  #opened(topic: Topic): Topic {
    if (this.#topics.has(topic.key)) return topic;
    this.#topics.set(topic.key, topic);
    if (topic.track !== null) topic.track.topic = topic;
    if (topic.group !== null) topic.group.topic = topic;
    if (topic.filter.kind === "all") this.#all = topic;
    if (topic.filter.kind === "progress") this.#progress = topic;
    return topic;
  }

  /** Takes a subscription away from its topic, and the topic with its last one. */
  #forget(subscription: Subscription): void {
    const { topic } = subscription;
    topic.live.delete(subscription);
    topic.behind.delete(subscription);
    this.#subscriptions -= 1;
    if (topic.live.size + topic.behind.size === 0) this.#drop(topic);
    if (this.#subscriptions > 0) return;
    this.#stopListening?.();
    this.#stopListening = null;
    this.#stopTicking?.();
    this.#stopTicking = null;
    for (const track of this.#dirty) track.flags = 0;
    this.#dirty.length = 0;
  }

  #drop(topic: Topic): void {
    this.#topics.delete(topic.key);
    if (topic.track !== null) topic.track.topic = null;
    if (topic.group !== null) topic.group.topic = null;
    if (topic.filter.kind === "all") this.#all = null;
    if (topic.filter.kind !== "progress") return;
    this.#progress = null;
    for (const track of topic.dirty) track.progressFlags = 0;
  }

  #tracksOf(topic: Topic): Iterable<Track> {
    if (topic.track !== null) return [topic.track];
    return topic.group?.tracks ?? this.#tracks.all();
  }

  #listen(): void {
    if (this.#stopListening !== null) return;
    this.#stopListening = this.#options.sidecar.observe({
      tokens: (request, offset) => this.#happened(request, TOKENS, offset),
      finished: (request) => {
        const track = this.#happened(request, FINISHED, request.response.length);
        if (track !== null && isGroupFinished(track.group)) this.#groupFinished(track.group);
      },
      restarted: (request) => {
        const track = this.#happened(request, RESTARTED, 0);
        // Tokens of this turn before the restart are void.
        if (track !== null) track.from = 0;
      },
      advanced: () => {
        this.#hasAdvanced = true;
        this.#dueFlush();
      },
    });
    this.#stopTicking = this.#options.every(() => this.#tick(), PROGRESS_MS);
  }

  #joined(request: Request): void {
    const track = this.#tracks.joined(request);
    if (this.#stopListening !== null) this.#mark(track, JOINED, 0);
  }

  #happened(request: Request, flag: number, from: number): Track | null {
    const track = this.#tracks.of(request);
    if (track !== null) this.#mark(track, flag, from);
    return track;
  }

  #mark(track: Track, flag: number, from: number): void {
    const isFollowed =
      this.#all !== null ||
      this.#progress !== null ||
      track.topic !== null ||
      track.group.topic !== null;
    if (!isFollowed) return;
    if (track.flags === 0) {
      track.from = from;
      this.#dirty.push(track);
      this.#dueFlush();
    }
    track.flags |= flag;
  }

  #groupFinished(group: GroupTracks): void {
    for (const topic of [this.#all, this.#progress, group.topic]) {
      if (topic === null) continue;
      const { groupId } = group.group;
      topic.groupsFinished.push(groupId);
      for (const { groupsFinished } of topic.behind) groupsFinished.push(groupId);
      this.#touch(topic);
    }
  }

  #retired(group: Group): void {
    const tracks = this.#tracks.retired(group);
    if (tracks?.topic == null) return;
    this.#touch(tracks.topic);
    this.#dueFlush();
  }

  #touch(topic: Topic): void {
    if (topic.isTouched) return;
    topic.isTouched = true;
    this.#touched.push(topic);
  }

  /** Everything that happens before the next microtask is one turn. */
  #dueFlush(): void {
    if (this.#isFlushDue) return;
    this.#isFlushDue = true;
    queueMicrotask(() => this.#flush());
  }

  #flush(): void {
    this.#isFlushDue = false;
    if (this.#hasAdvanced) for (const topic of this.#topics.values()) this.#touch(topic);
    for (const track of this.#dirty) this.#route(track);
    for (const topic of this.#touched) {
      topic.isTouched = false;
      if (topic.filter.kind === "progress") continue;
      try {
        this.#sendTurn(topic);
      } catch (error) {
        this.#crashed(topic, error);
      }
    }
    this.#touched.length = 0;
    for (const track of this.#dirty) track.flags = 0;
    this.#dirty.length = 0;
    this.#hasAdvanced = false;
  }

  /** This topic's frame could not be built: its subscribers have a gap, and restart. */
  #crashed(topic: Topic, error: unknown): void {
    this.#options.failed?.(error);
    if (topic === this.#progress) for (const track of topic.dirty) track.progressFlags = 0;
    topic.dirty.length = 0;
    topic.groupsFinished.length = 0;
    const clients = new Set([...topic.live, ...topic.behind].map(({ client }) => client));
    for (const client of clients) this.#end(client, CLOSE.internal, "internal_error");
  }

  #route(track: Track): void {
    this.#add(this.#all, track);
    this.#add(track.group.topic, track);
    this.#add(track.topic, track);
    if (this.#progress === null) return;
    if (track.progressFlags === 0) this.#progress.dirty.push(track);
    track.progressFlags |= track.flags;
    if ((track.flags & JOINED) !== 0) this.#declareTo(this.#progress, track);
  }

  #add(topic: Topic | null, track: Track): void {
    if (topic === null) return;
    topic.dirty.push(track);
    this.#touch(topic);
  }

  /** One frame of the turn for all who are up to date; and a try for those who are not. */
  #sendTurn(topic: Topic): void {
    const over = isOver(topic);
    if (topic.live.size > 0) {
      this.#frame.begin(topic.key);
      for (const track of topic.dirty) tell(track, this.#frame);
      this.#frame.groupsFinished.push(...topic.groupsFinished);
      if (this.#hasAdvanced) this.#frame.weightEpoch = this.#options.sidecar.rollout.epoch;
      if (over) this.#frame.state = "ended";
      this.#share(topic);
    }
    if (topic.behind.size > 0) {
      for (const track of topic.dirty) {
        if ((track.flags & JOINED) !== 0) this.#declareTo(topic, track);
      }
      for (const subscription of [...topic.behind]) this.#catchUp(subscription);
    }
    topic.dirty.length = 0;
    topic.groupsFinished.length = 0;
    if (over) for (const subscription of [...topic.live]) this.#over(subscription);
  }

  /** Clients that are behind also get a new response, from its first token on. */
  #declareTo(topic: Topic, track: Track): void {
    const { attempt } = track;
    for (const { cursors } of topic.behind) {
      if (cursors.has(track)) continue;
      cursors.set(track, { offset: 0, attempt, isDeclared: false, detokenizer: null });
    }
  }

  #tick(): void {
    this.#flush();
    const topic = this.#progress;
    if (topic !== null) {
      try {
        if (topic.live.size > 0) this.#shareProgress(topic);
      } catch (error) {
        this.#crashed(topic, error);
      }
      for (const track of topic.dirty) track.progressFlags = 0;
      topic.dirty.length = 0;
      topic.groupsFinished.length = 0;
    }
    for (const other of this.#topics.values()) {
      for (const subscription of [...other.behind]) this.#catchUp(subscription);
    }
  }

  #shareProgress(topic: Topic): void {
    this.#frame.begin(topic.key);
    for (const track of topic.dirty) tellLength(track, this.#frame);
    this.#frame.groupsFinished.push(...topic.groupsFinished);
    this.#frame.progress = progressEntry(this.#options.sidecar.rollout);
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

  /** It shares frames once it lacks nothing. */
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
      if (over) this.#over(subscription);
      if (isDone && !over && text === null) {
        subscription.cursors.clear();
        topic.behind.delete(subscription);
        topic.live.add(subscription);
      }
      if (isDone || !hasRoom()) return;
    }
  }

  #over(subscription: Subscription): void {
    subscription.client.subscriptions.delete(subscription.topic.key);
    this.#forget(subscription);
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

function encode(format: StreamFormat, frame: Frame): string | Uint8Array {
  return format === "json" ? encodeJson(frame) : encodeProtobuf(frame);
}

/** null: text where bytes belong, or the other way round. */
function decode(format: StreamFormat, data: string | Uint8Array): Decoded<ClientMessage> | null {
  if (format === "json") return typeof data === "string" ? decodeJson(data) : null;
  return typeof data === "string" ? null : decodeProtobuf(data);
}
