// What the sidecar knows about one session with a host: which prompts and outputs the host has, which
// runs are current. Turns the port's commands into those of the wire, sending nothing twice, and events
// back. Owns no socket; checks what events say against what was asked, for the rollout trusts its workers.

import type { RequestId } from "../../base/ids.ts";
import type { KvBlob, WorkerCommand, WorkerEvent } from "../../rollout/worker.ts";
import type { HostLimits, WireCommand, WireEvent, WirePrompt } from "./message.ts";
import { TokenLogs } from "./token-logs.ts";

interface CurrentRun {
  readonly requestId: RequestId;
  readonly tokensMax: number;
}

/** Room in a message for what surrounds a run's KV. */
const RUN_BYTES = 64 * 1024;

export type Translated =
  | { readonly kind: "ok"; readonly events: WorkerEvent[] }
  /** The host has said what cannot be. */
  | { readonly kind: "invalid"; readonly problem: string };

export class SidecarState {
  readonly #limits: HostLimits;
  readonly #vocabularySize: number;
  /** By the array itself: all requests of a group share their prompt. The one used longest ago first. */
  readonly #prompts = new Map<Int32Array, number>();
  #promptTokens = 0;
  #promptCount = 0;
  #kvBytesLeft = 0;
  readonly #logs = new TokenLogs();
  #runCount = 0;
  readonly #runs = new Map<number, CurrentRun>();
  readonly #runOf = new Map<RequestId, number>();

  constructor(limits: HostLimits, vocabularySize: number) {
    this.#limits = limits;
    this.#vocabularySize = vocabularySize;
  }

  /** `kvBytesMax`: KV beyond it is not sent, and recomputed. */
  commands(commands: readonly WorkerCommand[], kvBytesMax: number): WireCommand[] {
    const wire: WireCommand[] = [];
    this.#kvBytesLeft = kvBytesMax;
    for (const command of commands) this.#translate(command, wire);
    return wire;
  }

  events(events: readonly WireEvent[]): Translated {
    const translated: WorkerEvent[] = [];
    for (const event of events) {
      if (event.kind === "tokens") {
        const current = this.#runs.get(event.run);
        // Of a run that was released since.
        if (current === undefined) continue;
        const problem = this.#tokensProblem(event, current);
        if (problem !== null) return { kind: "invalid", problem };
        const { requestId } = current;
        const { offset, tokens, logprobs, top } = event;
        this.#logs.append(requestId, offset, tokens);
        translated.push({ kind: "tokens", requestId, offset, tokens, logprobs, top });
      } else if (event.kind === "chunk_done") {
        const current = this.#runs.get(event.run);
        if (current === undefined) continue;
        const { requestId } = current;
        this.#endRun(requestId);
        if (event.finish !== null) this.#logs.forget(requestId);
        const { finish, refusal } = event;
        const why = refusal === undefined ? {} : { refusal };
        translated.push({ kind: "chunk_done", requestId, finish, ...why });
      } else {
        translated.push(event);
      }
    }
    return { kind: "ok", events: translated };
  }

  #tokensProblem(
    { offset, tokens }: Extract<WireEvent, { kind: "tokens" }>,
    { requestId, tokensMax }: CurrentRun,
  ): string | null {
    if (offset + tokens.length > tokensMax) {
      return `request ${requestId} has more tokens than its ${tokensMax}`;
    }
    for (let i = 0; i < tokens.length; i += 1) {
      const token = tokens[i] ?? -1;
      if (token < 0 || token >= this.#vocabularySize) {
        return `request ${requestId} has token ${token}, out of vocabulary`;
      }
    }
    return null;
  }

  #translate(command: WorkerCommand, wire: WireCommand[]): void {
    switch (command.kind) {
      case "run":
        this.#run(command, wire);
        return;
      case "register_group": {
        const { groupId, ttlMs } = command;
        const prompt = this.#prompt(command.prompt, wire);
        wire.push({ kind: "register_group", groupId, prompt, ttlMs });
        return;
      }
      case "release":
        this.#endRun(command.requestId);
        this.#logs.forget(command.requestId);
        wire.push(command);
        return;
      case "advance":
      case "reload":
        for (const requestId of [...this.#runOf.keys()]) this.#endRun(requestId);
        wire.push(command);
        return;
      default:
        wire.push(command);
    }
  }

  #run(command: Extract<WorkerCommand, { kind: "run" }>, wire: WireCommand[]): void {
    const { requestId, sampling } = command.request;
    const { prompt: tokens, ...request } = command.request;
    const prompt = this.#prompt(tokens, wire);
    const outputFrom = this.#logs.commonPrefix(requestId, command.output);
    const output = command.output.subarray(outputFrom);
    this.#logs.begin(requestId, outputFrom, output);
    this.#endRun(requestId);
    this.#runCount += 1;
    const run = this.#runCount;
    this.#runs.set(run, { requestId, tokensMax: sampling.tokensMax });
    this.#runOf.set(requestId, run);
    this.#forgetOutputs(wire);
    const { chunkTokens, priority, draft } = command;
    const kv = this.#takesKv(command.kv, prompt, output) ? command.kv : null;
    wire.push({
      kind: "run",
      run,
      request,
      prompt,
      outputFrom,
      output,
      chunkTokens,
      priority,
      kv,
      draft,
    });
  }

  /** A run travels in one message, whole. */
  #takesKv(kv: KvBlob | null, prompt: WirePrompt, output: Int32Array): boolean {
    const kvBytes = kv?.bytes.byteLength ?? 0;
    const bytes = kvBytes + output.byteLength + (prompt.tokens?.byteLength ?? 0) + RUN_BYTES;
    if (bytes > this.#limits.messageBytesMax || kvBytes > this.#kvBytesLeft) return false;
    this.#kvBytesLeft -= kvBytes;
    return true;
  }

  #endRun(requestId: RequestId): void {
    const run = this.#runOf.get(requestId);
    if (run === undefined) return;
    this.#runOf.delete(requestId);
    this.#runs.delete(run);
  }

  #prompt(tokens: Int32Array, wire: WireCommand[]): WirePrompt {
    const known = this.#prompts.get(tokens);
    if (known !== undefined) {
      this.#prompts.delete(tokens);
      this.#prompts.set(tokens, known);
      return { promptId: known, tokens: null };
    }
    const promptIds: number[] = [];
    for (const [old, promptId] of this.#prompts) {
      const isRoom = this.#promptTokens + tokens.length <= this.#limits.promptTokensMax;
      if (isRoom && this.#prompts.size < this.#limits.requestsMax) break;
      this.#prompts.delete(old);
      this.#promptTokens -= old.length;
      promptIds.push(promptId);
    }
    if (promptIds.length > 0) wire.push({ kind: "forget", promptIds, requestIds: [] });
    this.#promptCount += 1;
    const promptId = this.#promptCount;
    this.#prompts.set(tokens, promptId);
    this.#promptTokens += tokens.length;
    return { promptId, tokens };
  }

  /** Those that do not run now, longest ago first; what runs is bounded by the worker's slots. */
  #forgetOutputs(wire: WireCommand[]): void {
    const { outputTokensMax, requestsMax } = this.#limits;
    const requestIds: RequestId[] = [];
    for (const id of this.#logs.ids()) {
      if (this.#logs.tokens <= outputTokensMax && this.#logs.size < requestsMax) break;
      if (this.#runOf.has(id)) continue;
      this.#logs.forget(id);
      requestIds.push(id);
    }
    if (requestIds.length > 0) wire.push({ kind: "forget", promptIds: [], requestIds });
  }
}
