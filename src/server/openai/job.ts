// A job: all responses of one HTTP request, and their readers. It outlives the connection, so that a repeated request
// can take it over. It knows no wire format.

import { present } from "../../core/base/assert.ts";
import { AppError, RefusedError } from "../../core/base/errors.ts";
import type { RunJournal } from "../../core/journal/run-journal.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import type { RolloutReader } from "../../core/rollout/events.ts";
import type { Text } from "../../text/text.ts";
import { internal } from "../http-errors.ts";
import { promptBytes, responseBytes } from "../kept.ts";
import type { Generation, GenerationSpec, Sidecar } from "../sidecar.ts";
import type { Trajectories } from "../trajectories/trajectories.ts";
import { Output, type ParsedMessage } from "./output.ts";
import type { StopRules } from "./sampling-fields.ts";
import { calledTool, callsIn } from "./tool-calls.ts";

/** Called after each turn in which outputs have grown, and with the error that ended the job. It throws nothing. */
export type JobReader = (outputs: readonly Output[], failure: AppError | null) => void;

/** What a job generates, and what it makes of its responses. */
export interface Work {
  /** Generation parameters, one entry for each prompt, and what ends its responses. */
  readonly specs: readonly GenerationSpec[];
  readonly stops: readonly StopRules[];
  /** The client's name for the responses of each prompt. Default: only the whole request has a name. */
  readonly names?: readonly string[] | undefined;
  /** The model's text; null: no text is needed. */
  readonly text: Text | null;
  /** Makes a message of a response that has ended; the job is done when each has one. Default: none is made. */
  readonly parse?: ((output: Output) => Promise<ParsedMessage>) | null;
}

export interface JobOptions {
  /** The client's id, or a fresh one. */
  readonly id: string;
  readonly sidecar: Sidecar;
  readonly coalescer: OutputCoalescer;
  /** Records the turns of sessions. Default: nothing does. */
  readonly trajectories?: Trajectories | null;
  /** Begins the journal of the responses to each prompt, which have just joined. Default: none is kept. */
  readonly journal?:
    | ((responses: readonly (readonly RolloutRequest[])[]) => RunJournal | null)
    | null;
}

/** Maximum pause between two updates of the readers. */
const REST_MS_MAX = 200;
/** Shorter pauses are skipped: a timer cannot measure them. */
const REST_MS_MIN = 2;

/**
 * Collects events until the next turn of the event loop, so that each reader gets one update. Updating thousands
 * of readers takes longer than receiving the events; so it pauses as long as it has just worked, and
 * under load tokens go out in fewer, larger pieces.
 */
export class OutputCoalescer {
  readonly #jobs = new Set<Job>();
  readonly #failed: (error: unknown) => void;
  readonly #cpuMs: () => number;
  #isPlanned = false;

  /** `failed`: called with an error of a job, which has failed; the others continue. */
  constructor(failed: (error: unknown) => void, cpuMs = cpuTimeMs) {
    this.#failed = failed;
    this.#cpuMs = cpuMs;
  }

  touch(job: Job): void {
    this.#jobs.add(job);
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    setImmediate(() => this.#turn());
  }

  #turn(): void {
    const startMs = this.#cpuMs();
    const startWallMs = performance.now();
    const jobs = [...this.#jobs];
    this.#jobs.clear();
    for (const job of jobs) {
      try {
        job.settle();
      } catch (error) {
        this.#failed(error);
        job.crash(error);
      }
    }
    // What the readers do with it is done by the time that the loop comes round again.
    setImmediate(() => {
      // Embedded engines' threads use this process's CPU time too: no turn has worked longer than it took.
      const workedMs = Math.min(this.#cpuMs() - startMs, performance.now() - startWallMs);
      const restMs = Math.min(workedMs, REST_MS_MAX);
      if (restMs < REST_MS_MIN) this.#resume();
      else setTimeout(() => this.#resume(), restMs);
    });
  }

  #resume(): void {
    if (this.#jobs.size > 0) this.#turn();
    else this.#isPlanned = false;
  }
}

/** CPU time of this process: time in which others had the core was no work, and is no reason to pause. */
function cpuTimeMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

export class Job {
  readonly id: string;
  readonly created = Math.floor(Date.now() / 1000);
  readonly work: Work;
  readonly outputs: Output[] = [];
  readonly #outputs = new Map<RolloutRequest, Output>();
  readonly done: Promise<void>;
  readonly #options: JobOptions;
  readonly #generations: Generation[] = [];
  #journal: RunJournal | null = null;
  readonly #readers = new Set<JobReader>();
  readonly #dirty = new Set<Output>();
  readonly #parsing = new Set<Output>();
  #unfinished: number;
  #isDone = false;
  #hasFailed = false;
  readonly #ended = Promise.withResolvers<void>();

  /** Begins all responses, or none. @throws AppError as Sidecar.generate. */
  constructor(work: Work, options: JobOptions) {
    this.id = options.id;
    this.work = work;
    this.#options = options;
    this.done = this.#ended.promise;
    // Callers that await it get the error; an unhandled rejection would end the process.
    this.done.catch(() => undefined);
    this.#unfinished = work.specs.reduce((sum, { n }) => sum + n, 0);
    try {
      for (const [i, spec] of work.specs.entries()) {
        this.#begin(spec, present(work.stops[i], "each prompt has its rules"));
      }
    } catch (error) {
      this.abort();
      throw error;
    }
    this.#journal = options.journal?.(this.#generations.map(({ requests }) => requests)) ?? null;
  }

  get isDone(): boolean {
    return this.#isDone;
  }

  /** Whether a response was aborted, or the job failed. */
  get isAborted(): boolean {
    return (
      this.#hasFailed || (this.#isDone && this.outputs.some(({ finish }) => finish === "abort"))
    );
  }

  get promptTokens(): number {
    return this.work.specs.reduce((sum, { prompt }) => sum + prompt.length, 0);
  }

  /** Prompt tokens in prefix caches: of each prompt the least of its responses. null: an engine did not report it. */
  get promptTokensCached(): number | null {
    let total = 0;
    for (const { requests } of this.#generations) {
      let least = Number.POSITIVE_INFINITY;
      for (const { response } of requests) {
        if (response.promptTokensCached === null) return null;
        least = Math.min(least, response.promptTokensCached);
      }
      total += least;
    }
    return total;
  }

  get bytes(): number {
    let bytes = 0;
    for (const { prompt } of this.work.specs) bytes += promptBytes(prompt);
    for (const { request, textBytes } of this.outputs) bytes += responseBytes(request) + textBytes;
    return bytes;
  }

  get completionTokens(): number {
    return this.outputs.reduce((sum, { tokens }) => sum + tokens, 0);
  }

  /** Brings all outputs up to date for a new reader; returns a function that removes it. */
  read(reader: JobReader): () => void {
    for (const output of this.outputs) output.advance();
    this.#readers.add(reader);
    return () => this.#readers.delete(reader);
  }

  /** Ends the job for good: no client can fetch it again. */
  forget(): void {
    this.abort();
    void this.#journal?.remove();
  }

  abort(): void {
    for (const generation of this.#generations) generation.abort();
  }

  abortPrompt(index: number): void {
    this.#generations[index]?.abort();
  }

  /** Ends the job because its processing threw an error: its result is unknown. */
  crash(error: unknown): void {
    this.#fail(internal(error));
    this.abort();
  }

  fail(error: unknown): void {
    const message = "the rollout has stopped; restart the server";
    this.#fail(new AppError("worker_failed", message, { cause: error }));
  }

  settle(): void {
    if (this.#isDone) return;
    const grown = [...this.#dirty];
    this.#dirty.clear();
    for (const output of grown) output.advance();
    // A stop string has ended its response just now, so it gets no later update.
    for (const output of grown) if (output.finish !== null) this.#dirty.delete(output);
    this.#parse(grown);
    for (const read of [...this.#readers]) read(grown, null);
    if (this.#unfinished > 0 || this.#dirty.size > 0 || this.#parsing.size > 0) return;
    this.#isDone = true;
    this.#ended.resolve();
  }

  #parse(grown: readonly Output[]): void {
    const { parse = null } = this.work;
    for (const output of grown) {
      if (output.finish === null) continue;
      if (parse === null) this.#record(output);
      else if (output.message === null && !this.#parsing.has(output)) {
        this.#parsing.add(output);
        parse(output).then(
          (message) => {
            output.message = message;
            this.#record(output);
            output.request.tool = calledTool(message) ?? output.request.tool;
            this.#parsing.delete(output);
            this.#touch(output);
          },
          (error: unknown) => {
            this.#fail(error instanceof AppError ? error : internal(error));
            this.abort();
          },
        );
      }
    }
  }

  /** Records an output that has ended as a turn of its session: only what the client gets of the response. */
  #record({ request, tokens, finish, message }: Output): void {
    if (finish === null) return;
    const toolCalls = callsIn(message);
    this.#options.trajectories?.ended(request, { tokens, finish, toolCalls });
  }

  #begin(spec: GenerationSpec, stops: StopRules): void {
    const { text } = this.work;
    const { skipSpecial } = stops;
    const base = this.outputs.length;
    const generation = this.#options.sidecar.generate(spec, this.#events);
    this.#generations.push(generation);
    const { session = null, group } = spec;
    if (session !== null) {
      this.#options.trajectories?.began({ name: session, group }, generation.requests);
    }
    for (const [index, request] of generation.requests.entries()) {
      const output = new Output({
        index: base + index,
        request,
        reporting: generation.requests[0] ?? request,
        stops,
        detokenizer: text === null ? null : () => text.detokenizer({ skipSpecial }),
        stopped: () => generation.end(index, "stop"),
      });
      this.outputs.push(output);
      this.#outputs.set(request, output);
    }
  }

  readonly #events: RolloutReader = {
    tokens: (request) => {
      this.#journal?.changed(request);
      const output = this.#outputOf(request);
      // Responses without a follower are read once, at their end.
      if (this.#readers.size > 0 || output.isWatched) this.#touch(output);
    },
    finished: (request) => {
      const { response } = request;
      this.#journal?.finished(request);
      this.#unfinished -= 1;
      if (response.refusal === null) {
        this.#touch(this.#outputOf(request));
        return;
      }
      // What one response is refused for, the request is: as vLLM, which answers with the error alone.
      this.#fail(new RefusedError(response.refusal));
      this.abort();
    },
    restarted: (request) => {
      this.#journal?.changed(request);
      const output = this.#outputOf(request);
      output.restart();
      this.#touch(output);
    },
    threw: (error) => this.crash(error),
  };

  #outputOf(request: RolloutRequest): Output {
    return present(this.#outputs.get(request), "a response is one of the job's");
  }

  #fail(failure: AppError): void {
    if (this.#isDone) return;
    this.#isDone = true;
    this.#hasFailed = true;
    for (const { request } of this.outputs) {
      this.#options.trajectories?.failed(request, `failed: ${failure.message}`);
    }
    this.#ended.reject(failure);
    for (const read of [...this.#readers]) read([], failure);
  }

  #touch(output: Output): void {
    this.#dirty.add(output);
    this.#options.coalescer.touch(this);
  }
}
