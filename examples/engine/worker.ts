// An engine to copy: a worker on a server with an HTTP API of its own, which keeps nothing of a request between two calls.
// POST /step {tokens, seed, temperature, n} answers {tokens, logprobs}: 1 to n tokens drawn after `tokens`, one after the
// other, by a random generator that starts at `seed`. GET /health answers 200.
// The rollout decides what runs where (at most `slots` chunks at a time), checks tokens (ids, logprobs, number), and makes
// text of them. Offsets count output tokens. Ids are numbers and texts with a brand; tests make them with core/base/ids.ts.
// The size of an answer is not bounded here, as an engine's must be: see engines/vllm/whole-answer.ts.
// Timers are those of the runtime; the `clock` of EngineAccess is for measuring.

import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { text } from "node:stream/consumers";
import * as v from "valibot";
import { AppError, errorText, RefusedError } from "../../src/core/base/errors.ts";
import { fold32 } from "../../src/core/base/hash.ts";
import type { RequestId, WeightEpoch, WorkerId } from "../../src/core/base/ids.ts";
import { type DrawKey, NO_SHAPING, type SamplingParams } from "../../src/core/request/request.ts";
import { type EngineOperation, operationName } from "../../src/core/rollout/operation.ts";
import type {
  EngineWorker,
  OpenOptions,
  SamplingSupport,
  WorkerCommand,
  WorkerEvent,
  WorkerListener,
} from "../../src/core/rollout/worker.ts";
import type { EngineAccess } from "../../src/engines/kind.ts";
import { parseJson } from "../../src/proto/json.ts";

const TOKENS = v.pipe(v.array(v.number()), v.minLength(1));
const ANSWER = v.object({ tokens: TOKENS, logprobs: TOKENS });

/** Tokens of a step at most: more of them ask less often, and go on longer for a request that has been stopped. */
const STEP_TOKENS = 16;
/** Steps, and questions whether the server lives, are tried `attemptsMax` times. */
const LIMITS = {
  attemptsMax: 4,
  retryMs: 250,
  stepMsMax: 120_000,
  pollMs: 1_000,
  pollMsMax: 5_000,
};
/** The API tells no bounds: the server refuses a prompt that is too long. */
const CAPACITY = { slots: 16, contextTokens: 131_072, kvTokens: 16 * 131_072, kvBytesPerToken: 0 };
/** Figures that the API does not tell. Whoever tells `steps` must tell `busyMs`: their ratio is the time of a step. */
const UNKNOWN = {
  ...{ waiting: 0, kvTokensUsed: 0, steps: 0, busyMs: 0, draftMs: 0, preemptions: 0, kvLoads: 0 },
  ...{ prefillTokens: 0, recomputedTokens: 0, draftedTokens: 0, acceptedTokens: 0, drafts: 0 },
  kvLoadFailures: 0,
};

type Run = Extract<WorkerCommand, { kind: "run" }>;
type Options = EngineAccess &
  OpenOptions & { readonly url: string; readonly limits?: typeof LIMITS };

/** @throws AppError worker_failed: the server is not there. It is called again later. */
export async function openExampleWorker(options: Options): Promise<EngineWorker> {
  const worker = new ExampleWorker(options);
  const problem = await worker.problem();
  if (problem !== null) throw new AppError("worker_failed", problem);
  void worker.watch();
  return worker;
}

class ExampleWorker implements EngineWorker {
  readonly workerId: WorkerId;
  readonly name: string;
  readonly capacity = CAPACITY;
  readonly #options: Options;
  readonly #limits: typeof LIMITS;
  #epoch: WeightEpoch;
  #listener: WorkerListener | null = null;
  #events: WorkerEvent[] = [];
  /** Chunks that run. One whose signal is aborted says nothing more. */
  readonly #running = new Map<RequestId, { readonly run: Run; readonly stop: AbortController }>();
  #outputTokens = 0;
  /** Failed or closed. */
  #isOver = false;

  constructor(options: Options) {
    this.workerId = options.workerId;
    this.name = options.url;
    this.#epoch = options.epoch;
    this.#options = options;
    this.#limits = options.limits ?? LIMITS;
  }

  listen(listener: WorkerListener): void {
    this.#listener = listener;
    this.#tell();
  }

  /** A field that the API lacks is refused by its name in requests of clients, who get a 400. */
  supports({ adapter, topLogprobs, engineFields, shaping }: SamplingParams): SamplingSupport {
    const fields = Object.keys(engineFields ?? {});
    if ((adapter ?? null) !== null) fields.push("model");
    if (topLogprobs > 0) fields.push("logprobs");
    for (const [key, value] of Object.entries(shaping ?? {})) {
      const name = key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
      const isOff = `${value}` === `${NO_SHAPING[key as keyof typeof NO_SHAPING]}`;
      if (!isOff) fields.push(key === "tokensMin" ? "min_tokens" : name);
    }
    const [field] = fields;
    if (field === undefined) return { kind: "divided" };
    return { kind: "refused", field, reason: "is not supported by this engine" };
  }

  /** Loads of weights, sleep and the like: 404 says that the engine has no such operation. */
  async perform(operation: EngineOperation) {
    return { status: 404, body: { error: `this engine lacks ${operationName(operation)}` } };
  }

  send(commands: readonly WorkerCommand[]): void {
    if (this.#isOver) return;
    for (const command of commands) this.#obey(command);
  }

  async close(): Promise<void> {
    this.#isOver = true;
    this.#stop(...this.#running.keys());
    this.#events = [];
  }

  /** Other commands are updates of draft groups, for engines that draft. */
  #obey(command: WorkerCommand): void {
    if (command.kind === "run") void this.#generate(command);
    else if (command.kind === "park") this.#park(command.requestId);
    else if (command.kind === "export") {
      this.#park(command.requestId);
      this.#tell({ kind: "exported", requestId: command.requestId, kv: null });
    } else if (command.kind === "adopt") {
      this.#tell({ kind: "evicted", requestId: command.requestId });
    } else if (command.kind === "release") {
      this.#stop(command.requestId);
      const isOther = (event: WorkerEvent) =>
        !("requestId" in event) || event.requestId !== command.requestId;
      this.#events = this.#events.filter(isOther);
    } else if (command.kind === "advance") {
      this.#stop(...this.#running.keys());
      this.#epoch = command.epoch;
      this.#events = [];
      this.#tell({ kind: "advanced", epoch: command.epoch });
    }
  }

  /** The server keeps nothing: the request goes on, here or elsewhere, when its tokens are sent again. */
  #park(requestId: RequestId): void {
    if (this.#running.get(requestId)?.run.request.divisible !== true) return;
    this.#stop(requestId);
    this.#tell({ kind: "chunk_done", requestId, finish: null });
  }

  #stop(...ids: RequestId[]): void {
    for (const id of ids) {
      this.#running.get(id)?.stop.abort();
      this.#running.delete(id);
    }
  }

  /** Runs a chunk to its end. An error ends this request alone, unless the server is gone. */
  async #generate(run: Run): Promise<void> {
    const { requestId } = run.request;
    const stop = new AbortController();
    this.#running.set(requestId, { run, stop });
    const end = await this.#chunk(run, stop.signal).catch(async (error: unknown) => {
      const problem = stop.signal.aborted ? null : await this.problem();
      if (problem !== null) this.#fail(problem);
      const refusal = { status: wrongStatus(error) ?? 502, message: errorText(error) };
      return { finish: "abort", refusal } as const;
    });
    if (stop.signal.aborted) return;
    this.#stop(requestId);
    const counts = { outputTokens: this.#outputTokens, running: this.#running.size };
    this.#tell(
      { kind: "chunk_done", requestId, ...end },
      { kind: "stats", stats: { ...UNKNOWN, ...counts } },
    );
  }

  /**
   * Draws a chunk's tokens; how it ended. A response must not depend on its chunks, but the server's generator knows only a
   * seed. So a step ends at the next multiple of STEP_TOKENS of the output, and its seed is that of the position where it
   * begins. A chunk that begins in between draws the last tokens of the output again, and skips them.
   */
  async #chunk({ request, output, chunkTokens }: Run, signal: AbortSignal) {
    const { requestId, prompt, draw, sampling } = request;
    const { temperature, tokensMax, stopTokenIds } = sampling;
    const end = Math.min(output.length + chunkTokens, tokensMax);
    let made = [...output.subarray(0, output.length - (output.length % STEP_TOKENS))];
    while (made.length < end) {
      const at = made.length;
      const n = Math.min(end, at - (at % STEP_TOKENS) + STEP_TOKENS) - at;
      const body = { tokens: [...prompt, ...made], seed: seedAt(draw, at), temperature, n };
      const { tokens, logprobs } = await this.#step(requestId, body, signal);
      signal.throwIfAborted();
      made.push(...tokens);
      const known = output.subarray(at, made.length);
      if (known.some((token, i) => token !== tokens[i])) {
        made = [...output]; // Other weights drew it.
        continue;
      }
      if (known.length === tokens.length) continue;
      // Only these end a response before `tokensMax`: the model's end of text is one, unless the client ignores it.
      const stopAt = tokens.findIndex((id, i) => i >= known.length && stopTokenIds.includes(id));
      const fresh = [known.length, stopAt < 0 ? tokens.length : stopAt + 1] as const;
      const columns = {
        tokens: Int32Array.from(tokens.slice(...fresh)),
        logprobs: Float32Array.from(logprobs.slice(...fresh)),
      };
      this.#outputTokens += columns.tokens.length;
      this.#tell({ kind: "tokens", requestId, offset: at + known.length, ...columns, top: null });
      if (stopAt >= 0) return { finish: "stop" } as const;
    }
    return { finish: made.length < tokensMax ? null : "length" } as const;
  }

  async #step(requestId: RequestId, body: object, signal: AbortSignal) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        const within = AbortSignal.any([signal, AbortSignal.timeout(this.#limits.stepMsMax)]);
        return v.parse(ANSWER, parseJson(await this.#ask("/step", within, body)));
      } catch (error) {
        const isLast = signal.aborted || attempt === this.#limits.attemptsMax;
        if (isLast || wrongStatus(error) !== null) throw error;
        this.#options.notice({ kind: "retry", requestId, reason: errorText(error) });
      }
      await pause(this.#limits.retryMs);
    }
  }

  async #ask(path: string, signal: AbortSignal, body?: object): Promise<string> {
    const { url, token } = this.#options;
    // Not by fetch: it asks the proxy of the environment for every address.
    const asked = request(`http${url.slice(url.indexOf(":"))}${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: token === null ? {} : { authorization: `Bearer ${token}` },
      ...{ signal, agent: false },
    });
    asked.on("error", () => {});
    asked.end(body === undefined ? body : JSON.stringify(body));
    const [answer] = (await once(asked, "response")) as [IncomingMessage];
    const said = await text(answer);
    const status = answer.statusCode ?? 0;
    if (status === 200) return said;
    const message = `${path} answers ${status}: ${said.slice(0, 400)}`;
    throw new RefusedError({ status, message });
  }

  /** Reason why the server cannot serve; null: it can. */
  problem(): Promise<string | null> {
    const within = AbortSignal.timeout(this.#limits.pollMsMax);
    return this.#ask("/health", within).then(() => null, errorText);
  }

  /** Notices that a server is gone which nothing is asked of. */
  async watch(): Promise<void> {
    for (let failures = 0; !this.#isOver; ) {
      await pause(this.#limits.pollMs);
      const problem = await this.problem();
      failures = problem === null ? 0 : failures + 1;
      if (problem !== null && failures === this.#limits.attemptsMax) this.#fail(problem);
    }
  }

  #fail(message: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#stop(...this.#running.keys());
    this.#tell({ kind: "failed", message });
  }

  /** Events wait for the end of the turn, since a listener is not called within `send`, and for a listener. */
  #tell(...events: WorkerEvent[]): void {
    this.#events.push(...events);
    queueMicrotask(() => {
      if (this.#listener === null || this.#events.length === 0) return;
      const events = this.#events;
      this.#events = [];
      this.#listener(this.#epoch, events);
    });
  }
}

/** A 4xx: the request is wrong. null: the server is. */
const wrongStatus = (error: unknown) => (error instanceof RefusedError ? error.status : null);

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms).unref());

/** 52 bits, which JSON holds exactly. Two steps of one seed would draw with the same numbers. */
function seedAt({ hi, lo }: DrawKey, position: number): number {
  return (fold32(hi, position) >>> 6) * 67_108_864 + (fold32(lo, position) >>> 6);
}
