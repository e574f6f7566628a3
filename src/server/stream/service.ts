// /v1/stream: clients follow responses as they are generated. Once per turn of the rollout, each subscription gets what
// it lacks. A client that does not read is dropped with a reason; it never makes another one wait, nor the rollout. Tokens
// without a follower cost nothing.

import type { Later } from "../../core/base/clock.ts";
import { contain } from "../../core/base/contain.ts";
import type { ErrorCode } from "../../core/base/errors.ts";
import { requestId } from "../../core/base/ids.ts";
import type { Group, RolloutRequest } from "../../core/request/buffer.ts";
import { CLOSE, closeReason } from "../../proto/close-codes.ts";
import type { CompletedGroups } from "../completed-groups.ts";
import type { Socket, SocketService } from "../http.ts";
import type { Sidecar } from "../sidecar.ts";
import { decodeClientMessage, type Filter, type Subscribe } from "./client-message.ts";
import {
  bringOn,
  type Frame,
  keyOf,
  type ProgressFields,
  progressFields,
  type StreamCursor,
  type Subject,
  type Subscription,
} from "./subscription.ts";

const LIMITS = {
  clientsMax: 2_048,
  subscriptionsMax: 256,
  /** Limit of a client's message, in bytes. */
  frameBytesMax: 16_384,
  /** Limit of the bytes that wait for one client to read them: a second of all tokens at a million a second. */
  sendQueueBytes: 4 * 2 ** 20,
};
export type StreamLimits = Readonly<typeof LIMITS>;

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
  /** Subscriptions of each connected client, by their keys. */
  readonly #clients = new Map<Socket, Map<string, Subscription>>();
  /** Subscriptions by their keys. It is looked up at every event, so a key may be of what is not there yet. */
  readonly #followers = new Map<string, Set<Subscription>>();
  /** Keys under which a group is followed. */
  readonly #keys = new WeakMap<Group, readonly string[]>();
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
    this.#limits = { ...LIMITS, ...options.limits };
    this.#firstAttempt = options.random();
  }

  /** Counters since the service began; gauges as of now. `closed`: clients that it ended, by close code. */
  stats() {
    return {
      clients: this.#clients.size,
      subjects: this.#followers.size,
      framesSent: this.#framesSent,
      bytesSent: this.#bytesSent,
      closed: { ...this.#closed },
    };
  }

  open(socket: Socket): void {
    const { clientsMax } = this.#limits;
    this.#clients.set(socket, new Map());
    if (this.#options.sidecar.isDraining) this.#end(socket, CLOSE.goingAway, "draining");
    else if (this.#clients.size > clientsMax) {
      this.#end(socket, CLOSE.tryLater, `more than ${clientsMax} clients`);
    }
  }

  message(socket: Socket, data: string | Uint8Array): void {
    if (!this.#clients.has(socket)) return;
    const { frameBytesMax } = this.#limits;
    if (data.length > frameBytesMax) {
      this.#end(socket, CLOSE.invalid, `invalid_message: more than ${frameBytesMax} bytes`);
    } else if (typeof data !== "string") this.#end(socket, CLOSE.text, "frames are text");
    else {
      const decoded = decodeClientMessage(data);
      if (decoded.kind === "ok") this.#subscribe(socket, decoded.message);
      else this.#end(socket, CLOSE.invalid, `${decoded.kind}: ${decoded.problem}`);
    }
  }

  close(socket: Socket): void {
    const subscriptions = this.#clients.get(socket);
    this.#clients.delete(socket);
    for (const subscription of subscriptions?.values() ?? []) this.#forget(subscription);
  }

  drain(socket: Socket): void {
    for (const subscription of [...(this.#clients.get(socket)?.values() ?? [])]) {
      if (!subscription.isLive) this.#catchUp(subscription);
    }
  }

  end(): void {
    this.#flush();
    for (const socket of this.#clients.keys()) this.#end(socket, CLOSE.goingAway, "draining");
  }

  #subscribe(socket: Socket, asked: Subscribe): void {
    // A client that subscribes now gets nothing of the current turn twice.
    this.#flush();
    const subscriptions = this.#clients.get(socket);
    // It did not read what that sent.
    if (subscriptions === undefined) return;
    const { filter, isWhole } = asked;
    // Another server's numbers mean nothing here.
    const isOurs = asked.resumed?.server === this.#firstAttempt;
    const none = { requests: 0, have: new Map() };
    const resumed = asked.resumed && { ...asked.resumed, ...(isOurs ? null : none) };
    const message: Subscribe = { ...asked, resumed };
    const { completed, sidecar } = this.#options;
    const { rollout } = sidecar;
    const key = keyOf(filter);
    const requests = this.#requestsOf(key, message);
    const refused = subscriptions.has(key)
      ? refusal("conflict", `you are subscribed to ${key}`)
      : this.#refusalOf(subscriptions.size, filter, requests.length);
    if (refused !== null) {
      this.#send(socket, key, { refused });
      return;
    }
    const sent = requests.filter((request) => {
      const { requestId: id } = request.spec;
      const isHad = resumed !== null && id < resumed.requests && !resumed.have.has(id);
      return !isEnded(request) || (isWhole && !isHad);
    });
    // A client that resumes may lack no token of a group, but its end.
    const followed = resumed === null ? sent : requests;
    const groups = [...new Set(followed.map(({ group }) => group))];
    const isOfOne = filter.request !== undefined;
    const openGroups = groups.filter((group) => !completed.has(group));
    const isComplete = resumed !== null && groups.length > 0 && openGroups.length === 0;
    const subscription: Subscription = {
      socket,
      message,
      key,
      epoch: rollout.epoch,
      open: new Set<Subject>(isOfOne ? requests : openGroups),
      cursors: new Map(sent.map((request) => [request, this.#cursor(request, message)])),
      groupsFinished: isOfOne ? [] : groups.filter(isFinished).map(({ groupId }) => groupId),
      isLive: false,
      isOver: isOfOne ? requests.some(isEnded) : filter.group !== undefined && isComplete,
    };
    subscriptions.set(key, subscription);
    this.#followers.getOrInsertComputed(key, () => new Set()).add(subscription);
    this.#stopListening ??= this.#listen();
    const begun = {
      server: this.#firstAttempt,
      requests: rollout.meter.counts.requests,
      joined: subscription.cursors.size,
    };
    const first: Frame = { state: "subscribed", begun, weight_epoch: rollout.epoch };
    if (this.#send(socket, key, first)) this.#catchUp(subscription);
  }

  #refusalOf(count: number, { request: id }: Filter, existing: number) {
    const { subscriptionsMax } = this.#limits;
    if (count >= subscriptionsMax) {
      return refusal("queue_full", `a client has at most ${subscriptionsMax} subscriptions`);
    }
    // Requests are numbered as they join.
    const { requests: begun } = this.#options.sidecar.rollout.meter.counts;
    if (id === undefined || id >= begun || existing > 0) return null;
    return refusal("not_found", `request ${id} is over, and not kept`);
  }

  /** Number of a response's attempt, which changes when it restarts; its tokens so far are void then. */
  readonly #attemptOf = ({ response }: RolloutRequest): number =>
    (this.#firstAttempt + response.restarts) >>> 0;

  #cursor(request: RolloutRequest, { filter, isWhole, resumed }: Subscribe): StreamCursor {
    const { length } = request.response;
    const had = resumed?.have.get(request.spec.requestId);
    return {
      offset: filter.progress === true ? length : (had?.offset ?? (isWhole ? 0 : length)),
      attempt: had?.attempt ?? this.#attemptOf(request),
      isDeclared: false,
    };
  }

  /** The existing responses that a subscription is for, in the order of their numbers if it resumes. */
  #requestsOf(key: string, { filter, resumed }: Subscribe): RolloutRequest[] {
    const { sidecar, completed } = this.#options;
    const { request: id } = filter;
    if (id !== undefined) {
      const kept = resumed === null ? null : completed.request(id);
      const request = sidecar.rollout.request(requestId(id)) ?? kept;
      return request === null ? [] : [request];
    }
    const kept = resumed === null ? [] : completed.groups.flatMap(({ requests }) => requests);
    const found = [...sidecar.rollout.requests, ...kept].filter(
      ({ group }) => isAll(key) || this.#keysOf(group).includes(key),
    );
    // A connection that breaks again has brought the first ones.
    return resumed === null ? found : found.sort((a, b) => a.spec.requestId - b.spec.requestId);
  }

  /** Keys of a group's names: the server's, and the client's, which JoinableGroups writes behind a number: `g7:name`. */
  #keysOf(group: Group): readonly string[] {
    return this.#keys.getOrInsertComputed(group, ({ groupId }) => {
      const colon = groupId.indexOf(":");
      const names = colon < 0 ? [groupId] : [groupId, groupId.slice(colon + 1)];
      return names.map((name) => keyOf({ group: name }));
    });
  }

  /** Subscriptions to a group or to everything, and to one response of it. */
  *#following(group: Group, request: RolloutRequest | null): Generator<Subscription> {
    if (request !== null) {
      yield* this.#followers.get(keyOf({ request: request.spec.requestId })) ?? [];
    }
    for (const key of this.#keysOf(group)) yield* this.#followers.get(key) ?? [];
    yield* this.#followers.get("all") ?? [];
    yield* this.#followers.get("progress") ?? [];
  }

  /** Takes a subscription away from its client. */
  #forget(subscription: Subscription): void {
    const { socket, key } = subscription;
    this.#clients.get(socket)?.delete(key);
    this.#touched.delete(subscription);
    const others = this.#followers.get(key);
    others?.delete(subscription);
    if (others?.size === 0) this.#followers.delete(key);
    if (this.#followers.size > 0) return;
    this.#stopListening?.();
    this.#stopListening = null;
  }

  #listen(): () => void {
    const stopObserving = this.#options.sidecar.observe({
      joined: (request) => {
        const { group } = request;
        for (const subscription of this.#following(group, request)) {
          const { message, open, cursors, key } = subscription;
          if (!isAll(key)) open.add(message.filter.request === undefined ? group : request);
          subscription.isOver = false;
          cursors.set(request, this.#cursor(request, message));
          this.#touch(subscription);
        }
      },
      tokens: (request, offset) => this.#changed(request, offset),
      finished: (request) => {
        const { group, response } = request;
        this.#changed(request, response.length);
        this.#over(group, request);
        if (!isFinished(group)) return;
        for (const one of this.#following(group, null)) one.groupsFinished.push(group.groupId);
      },
      restarted: (request) => this.#changed(request, 0, this.#attemptOf(request) - 1),
      groupFinished: (group) => this.#over(group, null),
      advanced: () => {
        for (const subscriptions of this.#clients.values()) {
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

  /** Nothing more comes of a response, or of its group: a subscription ends with the last that it has sent something of. */
  #over(group: Group, request: RolloutRequest | null): void {
    for (const subscription of this.#following(group, request)) {
      if (!subscription.open.delete(request ?? group)) continue;
      subscription.isOver = subscription.open.size === 0;
      this.#touch(subscription);
    }
  }

  /** Called for every new part of a response, of which a client that has all so far has `offset` tokens of `attempt`. */
  #changed(request: RolloutRequest, offset: number, attempt = this.#attemptOf(request)): void {
    for (const subscription of this.#following(request.group, request)) {
      const { cursors } = subscription;
      if (!cursors.has(request)) cursors.set(request, { offset, attempt, isDeclared: true });
      this.#touch(subscription);
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
    const followers = [...(this.#followers.get("progress") ?? [])];
    const progress = followers.length === 0 ? undefined : progressFields(meter.progress(), epoch);
    for (const subscription of followers) this.#catchUp(subscription, progress);
    for (const socket of [...this.#clients.keys()]) this.drain(socket);
  }

  /** Sends what a client lacks as far as it reads. An error in it ends this client alone. */
  #catchUp(subscription: Subscription, progress?: ProgressFields): void {
    const { socket } = subscription;
    if (!this.#clients.has(socket)) return;
    contain(
      () => this.#bring(subscription, progress),
      (error) => {
        this.#options.failed?.(error);
        this.#end(socket, CLOSE.internal, "internal_error");
      },
    );
  }

  /** Sends the missing part to a subscription, which is live once it lacks nothing. */
  #bring(subscription: Subscription, progress?: ProgressFields): void {
    const { socket, key, cursors, groupsFinished, isOver } = subscription;
    const { epoch } = this.#options.sidecar.rollout;
    const roomMax = this.#limits.sendQueueBytes / 2;
    // What is new goes out at once; `#send` drops a client that does not read it.
    const hasRoom = () => subscription.isLive || socket.getBufferedAmount() <= roomMax;
    if (!hasRoom()) return;
    let isDone = false;
    const last = (): Frame => {
      isDone = true;
      const isNewEpoch = subscription.epoch !== epoch;
      subscription.epoch = epoch;
      return {
        ...(groupsFinished.length > 0 && { groups_finished: groupsFinished.splice(0) }),
        ...(isNewEpoch && { weight_epoch: epoch }),
        ...(progress !== undefined && { progress }),
        ...(isOver && { state: "ended" }),
      };
    };
    const send = (frame: Frame) => this.#send(socket, key, frame) && (isDone || hasRoom());
    if (!bringOn(subscription, { attemptOf: this.#attemptOf, last, send })) return;
    if (isOver) this.#forget(subscription);
    cursors.clear();
    subscription.isLive = true;
  }

  /** false: the client has been dropped. */
  #send(socket: Socket, subscription: string, frame: Frame): boolean {
    if (!this.#clients.has(socket)) return false;
    const data = JSON.stringify({ subscription, ...frame });
    const sent = socket.send(data);
    this.#framesSent += 1;
    this.#bytesSent += data.length;
    if (sent > 0) return true;
    const waiting = socket.getBufferedAmount();
    if (sent < 0 && waiting <= this.#limits.sendQueueBytes) return true;
    this.#end(socket, CLOSE.tryLater, `slow_consumer: ${waiting} bytes wait to be read`);
    return false;
  }

  #end(socket: Socket, code: number, reason: string): void {
    if (!this.#clients.has(socket)) return;
    this.#closed[code] = (this.#closed[code] ?? 0) + 1;
    this.close(socket);
    socket.close(code, closeReason(reason));
  }
}

function refusal(code: ErrorCode, message: string) {
  return { code, message };
}

/** Whether a subscription's key is of everything, and not of a name. */
function isAll(key: string): boolean {
  return key === "all" || key === "progress";
}

function isEnded({ status }: RolloutRequest): boolean {
  return status === "finished";
}

/** Whether all of its requests have ended; further ones may still join. */
function isFinished(group: Group): boolean {
  return group.finished === group.requests.length;
}
