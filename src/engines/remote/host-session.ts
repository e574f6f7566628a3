// A host's state of one session with a sidecar: runs, and requests on its worker. Translates commands of the wire into
// the port's, and events back; a request that can never run is the worker's to refuse. Provides the commands that restore
// the worker's state. Owns no socket.

import { type GroupId, type RequestId, requestId } from "../../core/base/ids.ts";
import type { KvBlob, WorkerCommand, WorkerEvent, WorkerStats } from "../../core/rollout/worker.ts";
import { KvInbox, wireKv } from "./kv-parts.ts";
import { BARRIER_ID } from "./limits.ts";
import type { HostLimits, KvPart, WireCommand, WireEvent } from "./message.ts";

type WireRun = Extract<WireCommand, { kind: "run" }>;

/** A command that ends the session. */
export class Refused extends Error {
  /** invalid_message: a value that cannot be; unexpected_message: at the wrong moment. */
  readonly reason: "invalid_message" | "unexpected_message";

  constructor(reason: Refused["reason"], problem: string) {
    super(problem);
    this.reason = reason;
  }
}

export class HostSession {
  readonly #limits: HostLimits;
  readonly #kv: KvInbox;
  /** Requests that run. */
  readonly #runOf = new Map<RequestId, number>();
  /** Requests of which the worker holds something, running or parked. */
  readonly #held = new Set<RequestId>();
  readonly #groups = new Set<GroupId>();
  #runMax = 0;
  /** The worker's last report before the session; null: none. */
  readonly #before: WorkerStats | null;

  constructor(limits: HostLimits, before: WorkerStats | null = null) {
    this.#before = before;
    this.#limits = limits;
    this.#kv = new KvInbox(limits.kvBytesMax);
  }

  /** Adds a part of KV; returns its problem, or null. */
  kvPart(part: KvPart): string | null {
    return this.#kv.add(part);
  }

  /** @throws Refused. */
  commands(wire: readonly WireCommand[]): WorkerCommand[] {
    return wire.map((command) => this.#translate(command));
  }

  /** Events to be sent at once. `sendKv`: sends an event behind its KV, and behind others; false: the KV cannot be sent. */
  events(
    events: readonly WorkerEvent[],
    sendKv: (kv: KvBlob | null, event: WireEvent) => boolean,
  ): WireEvent[] {
    const wire: WireEvent[] = [];
    for (const event of events) {
      switch (event.kind) {
        case "tokens": {
          const run = this.#runOf.get(event.requestId);
          if (run === undefined) break;
          const { offset, tokens, logprobs, top } = event;
          wire.push({ kind: "tokens", run, offset, tokens, logprobs, top });
          break;
        }
        case "chunk_done": {
          const run = this.#runOf.get(event.requestId);
          if (run === undefined) break;
          this.#runOf.delete(event.requestId);
          if (event.finish !== null) this.#held.delete(event.requestId);
          const { finish, refusal, drafts } = event;
          const more = { ...(refusal && { refusal }), ...(drafts && { drafts }) };
          wire.push({ kind: "chunk_done", run, finish, ...more });
          break;
        }
        case "exported": {
          this.#held.delete(event.requestId);
          if (!sendKv(event.kv, { ...event, kv: wireKv(event.kv) })) {
            wire.push({ ...event, kv: null });
          }
          break;
        }
        case "evicted":
          this.#held.delete(event.requestId);
          wire.push(event);
          break;
        case "stats":
          wire.push({ kind: "stats", stats: statsSince(this.#before, event.stats) });
          break;
        default:
          wire.push(event);
      }
    }
    return wire;
  }

  /**
   * Commands that restore the worker's state before the session. The last one queries a request that no
   * sidecar has: once `exported` answers it, nothing of this session follows.
   */
  ending(): WorkerCommand[] {
    return [
      ...[...this.#held].map((id) => ({ kind: "release", requestId: id }) as const),
      ...[...this.#groups].map((groupId) => ({ kind: "drop_group", groupId }) as const),
      { kind: "export", requestId: requestId(BARRIER_ID) },
    ];
  }

  #translate(command: WireCommand): WorkerCommand {
    switch (command.kind) {
      case "run":
        return this.#run(command);
      case "release":
        this.#runOf.delete(command.requestId);
        this.#held.delete(command.requestId);
        return command;
      case "register_group":
        this.#groups.add(command.groupId);
        if (this.#groups.size > this.#limits.requestsMax) {
          throw new Refused("invalid_message", `more than ${this.#limits.requestsMax} groups`);
        }
        return command;
      case "drop_group":
        this.#groups.delete(command.groupId);
        return command;
      case "advance":
        this.#runOf.clear();
        this.#held.clear();
        this.#groups.clear();
        return command;
      case "delta":
      case "export":
      case "park":
        return command;
    }
  }

  #run({ run, kv: sent, ...command }: WireRun): WorkerCommand {
    const id = command.request.requestId;
    const what = `request ${id}`;
    if (run <= this.#runMax) throw new Refused("invalid_message", `run ${run} is not a new one`);
    if (this.#runOf.has(id)) throw new Refused("unexpected_message", `${what} runs already`);
    this.#runMax = run;
    const kv = this.#kv.resolve(sent);
    if (typeof kv === "string") throw new Refused("invalid_message", `${what}: ${kv}`);
    if (this.#held.size > this.#limits.requestsMax) {
      throw new Refused("invalid_message", `more than ${this.#limits.requestsMax} requests`);
    }
    this.#runOf.set(id, run);
    this.#held.add(id);
    return { ...command, kv };
  }
}

/** The numbers that are no counts. */
const GAUGES: ReadonlySet<string> = new Set<keyof WorkerStats>([
  "running",
  "waiting",
  "kvTokensUsed",
  "stepError",
]);

/** `before`: what the worker said last before the session; null: nothing. */
function statsSince(before: WorkerStats | null, now: WorkerStats): WorkerStats {
  if (before === null) return now;
  const earlier = new Map<string, unknown>(Object.entries(before));
  const since = Object.entries(now).map(([name, value]: [string, unknown]) => {
    const isCount = typeof value === "number" && !GAUGES.has(name);
    return [name, isCount ? value - Number(earlier.get(name) ?? 0) : value];
  });
  return Object.fromEntries(since);
}
