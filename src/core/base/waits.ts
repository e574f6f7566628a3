// Where a request waits, from its accepted connection to its first token, in the order in which it may meet these waits. The
// code takes its bounds from here, /v1/waiting its names, and ARCHITECTURE.md its table (scripts/gen-reference.ts).

interface RequestWait {
  /** Who holds the request. */
  readonly heldIn: string;
  readonly enteredBy: string;
  /** What ends the wait, as messages name it. */
  readonly endedBy: string;
  /** Bound, seconds; null: it is no time, and `atBound` says what it is. */
  readonly seconds: number | null;
  /** What happens at the bound: an error with its status, or how the request goes on. */
  readonly atBound: string;
}

const THREAD = "504 `deadline_exceeded`";
const ORDER =
  "twice as many requests as were open have ended (a turn of a session that goes on is a 64th)";

export const WAITS = {
  body_room: {
    heldIn: "`server/body.ts`: room for a body",
    enteredBy: "the headers",
    endedBy: "other bodies that are read",
    seconds: 5,
    atBound: "429 `queue_full`",
  },
  body: {
    heldIn: "`server/body.ts`: its bytes",
    enteredBy: "room",
    endedBy: "the last byte",
    seconds: 60,
    atBound: "408 `request_timeout`",
  },
  thread_queue: {
    heldIn:
      "`text/job-lane.ts`: the queue of the JSON thread (above 256 KiB), or of a tokenizer thread (above 512 characters)",
    enteredBy: "the last byte; each text or chat to encode",
    endedBy: "the jobs before it",
    seconds: 600,
    atBound: THREAD,
  },
  thread: {
    heldIn: "`text/job-lane.ts`: that thread",
    enteredBy: "its turn",
    endedBy: "the thread",
    seconds: 30,
    atBound: THREAD,
  },
  rendering: {
    heldIn: "`server/engine-calls.ts`: an engine that renders a chat",
    enteredBy: "a chat that no other request has asked for",
    endedBy: "the engine's answer",
    seconds: 60,
    atBound: "the next engine; after the last one 502 `worker_failed`",
  },
  order: {
    heldIn:
      "`core/schedule`: the policy's order; ahead of it a reservation, suspects, and begun turns of sessions",
    enteredBy: "`Scheduler.enqueue`",
    endedBy: "a dispatch",
    seconds: null,
    atBound: `${ORDER}: it goes first (\`bounded-wait.ts\`)`,
  },
  no_open_worker: {
    heldIn: "the same, while no engine is open",
    enteredBy: "the last engine's end",
    endedBy: "an engine",
    seconds: 3600,
    atBound: "503 `no_open_worker`; a pause begins it anew",
  },
  no_large_worker: {
    heldIn: "`Scheduler.stranded`: no engine that is open has room for it",
    enteredBy: "a turn without one",
    endedBy: "a larger engine",
    seconds: 3600,
    atBound: "503 `no_large_worker`; 502 at once where none may come back",
  },
  retry: {
    heldIn: "`core/rollout/failures.ts`: its worker has just died",
    enteredBy: "the worker's `failed`",
    endedBy: "time",
    seconds: 0.5,
    atBound: "it is scheduled",
  },
  paused_too_long: {
    heldIn: "`core/rollout/pause.ts`: generation is paused",
    enteredBy: "`pause`, `sleep` or a weight update",
    endedBy: "a resume",
    seconds: 24 * 3600,
    atBound: "503 `paused_too_long`; each call of an update: `--weights-timeout-s`",
  },
  kv_out: {
    heldIn: "`core/rollout/dispatch.ts`: KV on its way out of an engine",
    enteredBy: "a dispatch elsewhere, or others' want of room",
    endedBy: "an engine",
    seconds: 60,
    atBound: "it goes on without its KV",
  },
  kv_in: {
    heldIn: "`core/rollout/dispatch.ts`: KV on its way in",
    enteredBy: "the KV pool has it",
    endedBy: "the KV pool",
    seconds: 30,
    atBound: "it goes on without its KV",
  },
  turn: {
    heldIn: "`core/rollout/loop.ts`, `engines/vllm/event-outbox.ts`: commands, events",
    enteredBy: "a dispatch; a token",
    endedBy: "the end of the turn",
    seconds: null,
    atBound: "the same turn of the event loop",
  },
  engine: {
    heldIn: "the engine's queue and prefill",
    enteredBy: "`run`",
    endedBy: "its first token",
    seconds: 600,
    atBound:
      "silent or full for so long, it is asked again, 14 times at most, then 502; an engine that is gone: " +
      "1 to 2 s, then elsewhere. An embedded engine: none, it computes in this process",
  },
} as const satisfies Readonly<Record<string, RequestWait>>;

export type WaitName = keyof typeof WAITS;

/** Names of waits whose bound is a time. */
type TimedWait = {
  [Name in WaitName]: (typeof WAITS)[Name]["seconds"] extends number ? Name : never;
}[WaitName];

export function waitMsMax(name: TimedWait): number {
  return WAITS[name].seconds * 1000;
}

/** A wait that lasts now, of a request or of somebody else. */
export interface OpenWait {
  /** Absent: it is no request's. */
  readonly name?: WaitName;
  /** The waiting call or part: "update_weights". */
  readonly what: string;
  /** Whom the wait is for: "engine 1". */
  readonly forWhom: string;
  /** Reason in words: "it has not answered /update_weights". */
  readonly reason: string;
  /** Deadline, ms after the start; null: there is none, and `reason` says what ends the wait. */
  readonly msMax: number | null;
  readonly sinceMs: number;
}
