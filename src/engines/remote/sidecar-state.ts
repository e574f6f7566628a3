// What the sidecar knows about one session with a host: which runs are current. Turns the port's commands into those of
// the wire, and events back. Owns no socket; checks what events say against what was asked, for the rollout trusts its
// workers.

import type { RequestId } from "../../core/base/ids.ts";
import { problemOf } from "../../core/rollout/token-check.ts";
import type { KvBlob, WorkerCommand, WorkerEvent } from "../../core/rollout/worker.ts";
import { KvInbox, wireKv } from "./kv-parts.ts";
import type { KvPart, WireCommand, WireEvent, WireKv } from "./message.ts";

interface CurrentRun {
  readonly requestId: RequestId;
  readonly promptTokens: number;
  /** Output tokens that have come, those from before the run included; `have <= chunkEnd <= tokensMax`. */
  have: number;
  readonly chunkEnd: number;
  readonly tokensMax: number;
  /** The KV was requested: the run ends where it is. */
  isEnding: boolean;
}

type TokensEvent = Extract<WireEvent, { kind: "tokens" }>;
type ChunkDone = Extract<WireEvent, { kind: "chunk_done" }>;
type RunCommand = Extract<WorkerCommand, { kind: "run" }>;

/** A run behind its KV. */
export interface KvRun {
  readonly kv: KvBlob;
  /** false: the run has ended, or another one has taken its place. */
  readonly isWanted: () => boolean;
  /** Begins the run, and returns the command for it. */
  readonly begin: () => WireCommand;
}

/** A probability is at most 1; what rounding adds to its logarithm is less. */
const LOGPROB_MAX = 1e-3;

export type Translated =
  | { readonly kind: "ok"; readonly events: WorkerEvent[] }
  /** The host has said what cannot be. */
  | { readonly kind: "invalid"; readonly problem: string };

export class SidecarState {
  readonly #vocabularySize: number;
  readonly #kv: KvInbox;
  #runCount = 0;
  #isMoving = false;
  readonly #runs = new Map<number, CurrentRun>();
  readonly #runOf = new Map<RequestId, number>();
  /** Runs that have not begun: their KV is sent first. */
  readonly #behindKv = new Map<RequestId, RunCommand>();
  /** Prompt and output, in tokens, of requests whose KV may be on the worker and that do not run. */
  readonly #parked = new Map<RequestId, number>();

  /** `kvBytesMax`: of one KV that the host sends. */
  constructor(vocabularySize: number, kvBytesMax: number) {
    this.#vocabularySize = vocabularySize;
    this.#kv = new KvInbox(kvBytesMax);
  }

  /** Commands to be sent at once; a run that `sendKv` takes follows its KV. KV that it cannot send is recomputed. */
  commands(commands: readonly WorkerCommand[], sendKv: (run: KvRun) => boolean): WireCommand[] {
    const wire: WireCommand[] = [];
    for (const command of commands) {
      if (command.kind !== "run" || !this.#runBehindKv(command, sendKv)) {
        this.#translate(command, wire);
      }
    }
    return wire;
  }

  /** Adds a part of KV; returns its problem, or null. */
  kvPart(part: KvPart): string | null {
    return this.#kv.add(part);
  }

  /** Whether a request runs without any event since the last call, not even one that the engine is busy. */
  takeStandstill(): boolean {
    const isStill = this.#runs.size > 0 && !this.#isMoving;
    this.#isMoving = false;
    return isStill;
  }

  /** `isCurrent` false: of weights that the rollout has left behind, or does not have yet; no run is concerned. */
  events(events: readonly WireEvent[], isCurrent: boolean): Translated {
    const translated: WorkerEvent[] = [];
    for (const event of events) {
      if (!isCurrent && isOfRun(event)) {
        if (event.kind === "exported") this.#kv.clear();
        continue;
      }
      const problem = this.#take(event, translated);
      if (problem !== null) return { kind: "invalid", problem };
    }
    return { kind: "ok", events: translated };
  }

  /** null: it can be. */
  #take(event: WireEvent, translated: WorkerEvent[]): string | null {
    switch (event.kind) {
      case "tokens": {
        const current = this.#runs.get(event.run);
        // Of a run that was released since.
        if (current === undefined) return null;
        const problem = this.#tokensProblem(event, current);
        if (problem !== null) return problem;
        const { requestId } = current;
        const { offset, tokens, logprobs, top } = event;
        this.#isMoving = true;
        current.have = Math.max(current.have, offset + tokens.length);
        translated.push({ kind: "tokens", requestId, offset, tokens, logprobs, top });
        return null;
      }
      case "chunk_done": {
        const current = this.#runs.get(event.run);
        if (current === undefined) return null;
        const problem = endProblem(event, current);
        if (problem !== null) return problem;
        const { requestId, promptTokens, have } = current;
        this.#isMoving = true;
        this.#endRun(requestId);
        if (event.finish === null) this.#parked.set(requestId, promptTokens + have);
        const { finish, refusal, drafts } = event;
        const more = { ...(refusal && { refusal }), ...(drafts && { drafts }) };
        translated.push({ kind: "chunk_done", requestId, finish, ...more });
        return null;
      }
      case "exported": {
        const { requestId } = event;
        const kv = this.#kv.resolve(event.kv);
        if (typeof kv === "string") return kv;
        const held = this.#parked.get(requestId) ?? 0;
        this.#parked.delete(requestId);
        if (kv !== null && held > 0 && kv.tokens > held) {
          return `request ${requestId} has KV of ${kv.tokens} tokens, of ${held} that it has`;
        }
        // Nobody is waiting for KV of a request that is not parked.
        translated.push({ kind: "exported", requestId, kv: held > 0 ? kv : null });
        return null;
      }
      case "stats":
        if (event.stats.running + event.stats.waiting > 0) this.#isMoving = true;
        translated.push(event);
        return null;
      case "evicted":
        this.#parked.delete(event.requestId);
        translated.push(event);
        return null;
      default:
        translated.push(event);
        return null;
    }
  }

  #tokensProblem(event: TokensEvent, { requestId, have, chunkEnd }: CurrentRun): string | null {
    const { offset, logprobs } = event;
    const expected = { length: have, tokensMax: chunkEnd };
    const problem = offset > have ? `tokens from ${offset}, after ${have}` : null;
    const wrong = problem ?? problemOf(event, expected, this.#vocabularySize);
    if (wrong !== null) return `request ${requestId} has ${wrong}`;
    const logprob = logprobs.find((one) => one > LOGPROB_MAX);
    return logprob === undefined ? null : `request ${requestId} has logprob ${logprob}`;
  }

  #runBehindKv(command: RunCommand, sendKv: (run: KvRun) => boolean): boolean {
    const { kv, request } = command;
    const { requestId } = request;
    this.#endRun(requestId);
    if (kv === null || kv.bytes.byteLength === 0) return false;
    this.#behindKv.set(requestId, command);
    const isWanted = () => this.#behindKv.get(requestId) === command;
    const isSent = sendKv({ kv, isWanted, begin: () => this.#run(command, wireKv(kv)) });
    if (!isSent) this.#behindKv.delete(requestId);
    return isSent;
  }

  #translate(command: WorkerCommand, wire: WireCommand[]): void {
    switch (command.kind) {
      case "run":
        wire.push(this.#run(command, null));
        return;
      case "release":
        this.#endRun(command.requestId);
        this.#parked.delete(command.requestId);
        wire.push(command);
        return;
      case "export":
      case "park": {
        const run = this.#runs.get(this.#runOf.get(command.requestId) ?? -1);
        if (run !== undefined) run.isEnding = true;
        wire.push(command);
        return;
      }
      case "advance":
        for (const requestId of [...this.#runOf.keys()]) this.#endRun(requestId);
        this.#behindKv.clear();
        this.#parked.clear();
        wire.push(command);
        return;
      // Only to workers that keep KV of finished turns.
      case "adopt":
        return;
      default:
        wire.push(command);
    }
  }

  #run(command: RunCommand, kv: WireKv | null): WireCommand {
    const { request, output, chunkTokens, priority } = command;
    const { requestId, prompt } = request;
    const { tokensMax } = request.sampling;
    this.#endRun(requestId);
    this.#runCount += 1;
    const run = this.#runCount;
    const have = output.length;
    const chunkEnd = Math.min(tokensMax, have + chunkTokens);
    const promptTokens = prompt.length;
    this.#runs.set(run, { requestId, promptTokens, have, chunkEnd, tokensMax, isEnding: false });
    this.#parked.delete(requestId);
    this.#isMoving = true;
    this.#runOf.set(requestId, run);
    // The protocol has no turns: such a request is not drafted for there.
    const draft = command.draft?.turn === undefined ? command.draft : null;
    return { kind: "run", run, request, output, chunkTokens, priority, kv, draft };
  }

  #endRun(requestId: RequestId): void {
    this.#behindKv.delete(requestId);
    const run = this.#runOf.get(requestId);
    if (run === undefined) return;
    this.#runOf.delete(requestId);
    this.#runs.delete(run);
  }
}

function isOfRun({ kind }: WireEvent): boolean {
  return kind === "tokens" || kind === "chunk_done" || kind === "exported" || kind === "evicted";
}

/** A contradiction in the end of a run: a response that ends before its limit, or that goes on after it. */
function endProblem({ finish }: ChunkDone, run: CurrentRun): string | null {
  const { requestId, have, chunkEnd, tokensMax, isEnding } = run;
  if (finish === null && ((have < chunkEnd && !isEnding) || have === tokensMax)) {
    return `request ${requestId} goes on after ${have} tokens, of ${chunkEnd} asked for and ${tokensMax} at most`;
  }
  if (finish === "length" && have < tokensMax) {
    return `request ${requestId} is at its end after ${have} tokens of ${tokensMax}`;
  }
  return null;
}
