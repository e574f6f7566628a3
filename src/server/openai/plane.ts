// What all routes of the data plane share: the options, the running jobs, and the one way from a checked
// request to an answer.

import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { EncodeOptions, Encoder, Text } from "../../text/text.ts";
import type { EngineCalls } from "../engine-calls.ts";
import { CLIENT_GONE } from "../http-errors.ts";
import type { Kept } from "../kept.ts";
import { type Exchange, invalid } from "../route.ts";
import type { GenerationSpec, Sidecar } from "../sidecar.ts";
import type { Trajectories } from "../trajectories/trajectories.ts";
import type { Answer } from "./answer.ts";
import type { CommonFields } from "./common-fields.ts";
import { eventStream } from "./event-stream.ts";
import { indexBeyond, type TokenList } from "./fields.ts";
import { Job, type JobPlan, OutputCoalescer } from "./job.ts";
import { numberedNames, type TokenNames, writtenNames } from "./json.ts";
import { type Origin, originOf } from "./origin.ts";
import { ChatRenderer } from "./rendering.ts";
import type { RequestJournals } from "./request-journals.ts";
import { RetriedJobs, type RetryLimits } from "./retries.ts";
import {
  checkPromptReport,
  type Drawing,
  drawingOf,
  type SamplingContext,
  type SamplingFields,
} from "./sampling-fields.ts";

export interface DataPlaneLimits extends RetryLimits {
  /** Responses that one request may ask for, over all its prompts. */
  readonly responsesMax: number;
  /** Time after which a streaming client that reads nothing is dropped. */
  readonly stallMsMax: number;
}

const DATA_PLANE_LIMITS: DataPlaneLimits = {
  responsesMax: 16_384,
  stallMsMax: 30_000,
  graceMs: 30_000,
  leftMax: 1024,
  keptBytesMax: 256 * 2 ** 20,
};

export interface DataPlaneOptions {
  readonly sidecar: Sidecar;
  readonly text: Text;
  readonly encoder: Encoder;
  /** Names under which clients may ask for the model; the first is the one in answers. */
  readonly modelNames: readonly [string, ...string[]];
  /** Adapters that are served under their names. Default: none. */
  readonly adapters?: () => ReadonlySet<string>;
  /** false: only engines know the texts of tokens. Default: true. */
  readonly hasText?: boolean;
  /** Routes that only engines have. Default: none has any. */
  readonly engines?: EngineCalls;
  /** Default: one that asks `engines` and `encoder`. */
  readonly chats?: ChatRenderer;
  /** Tokens that end a response unless `ignore_eos`; the first is the EOS proper. */
  readonly eosTokenIds: readonly number[];
  /** The name of the weights of an epoch, as the trainer gave it. */
  readonly version: (epoch: WeightEpoch) => string;
  /** Called with the weights that a request expects, before the request begins. */
  readonly expected?: (hint: Pick<Origin, "version" | "salt"> & { readonly by: string }) => void;
  /** Trainers' headers that name a session. Default: none. */
  readonly sessionHeaders?: readonly string[];
  readonly limits?: Partial<DataPlaneLimits>;
  /** Called with an error that ended one request and is not the client's. */
  readonly failed?: (error: unknown) => void;
  /** Keeps requests with an id over the end of the process. Default: nothing does. */
  readonly journals?: RequestJournals | null;
  /** Records the turns of sessions. Default: nothing does. */
  readonly trajectories?: Trajectories;
  /** Runs `run` after `ms`; returns what prevents it. Default: setTimeout. */
  readonly after?: (ms: number, run: () => void) => () => void;
}

export interface RequestFields {
  readonly params: SamplingFields;
  /** Prefix of their names in messages. Default: none. */
  readonly at?: string;
  readonly topLogprobs: number;
  /** null: as many as the context has room for. */
  readonly tokensMax: number | null;
  /** Arguments for the engine; those that place the request are removed. */
  readonly extraArgs: Record<string, unknown>;
  /** Further fields of the engine's own endpoint. */
  readonly beside?: Readonly<Record<string, unknown>>;
  /** The tool whose output the prompt ends with; null or absent: none, or not known. */
  readonly tool?: string | null;
  /** `tokensMax` beyond the context is cut, not refused. */
  readonly clamps?: boolean;
}

export interface Prepared extends Pick<JobPlan, "specs" | "stops" | "names" | "parse"> {
  readonly wantsText: boolean;
  readonly isStream: boolean;
  /** The body's own id, which a retry has too; in the answer the X-Request-Id header goes before it, as in vLLM. */
  readonly requestId: string | null;
  readonly answer: Answer;
}

const NO_TEXT =
  "needs the model's tokenizer.json, which is not on this machine: send stop_token_ids, or give --tokenizer DIR";

/** Prefix and suffix that answers put around a request's id: `cmpl-ID-0` is its first prompt, as in vLLM. */
const WRITTEN_ID = /^(?:generate-tokens-|cmpl-|chatcmpl-)(.+?)(?:-\d+)?$/s;

const NO_ADAPTERS: ReadonlySet<string> = new Set();

export class DataPlane {
  readonly sidecar: Sidecar;
  readonly text: Text;
  readonly encoder: Encoder;
  readonly hasText: boolean;
  /** null: no engine has routes of its own. */
  readonly engines: EngineCalls | null;
  readonly chats: ChatRenderer;
  readonly modelName: string;
  readonly limits: DataPlaneLimits;
  readonly startedS = Math.floor(Date.now() / 1000);
  readonly version: (epoch: WeightEpoch) => string;
  readonly writtenNames: TokenNames;
  readonly numberedNames: TokenNames;
  readonly #options: DataPlaneOptions;
  readonly #after: (ms: number, run: () => void) => () => void;
  readonly #failed: (error: unknown) => void;
  readonly #retries: RetriedJobs;
  readonly #coalescer: OutputCoalescer;
  readonly #jobs = new Set<Job>();

  constructor(options: DataPlaneOptions) {
    const { after = later, failed = () => undefined } = options;
    this.#options = options;
    this.sidecar = options.sidecar;
    this.text = options.text;
    this.encoder = options.encoder;
    this.engines = options.engines ?? null;
    this.chats = options.chats ?? new ChatRenderer({ ...options, engines: this.engines });
    this.hasText = options.hasText ?? true;
    this.modelName = options.modelNames[0];
    this.limits = { ...DATA_PLANE_LIMITS, ...options.limits };
    this.version = options.version;
    this.writtenNames = writtenNames(options.text);
    this.numberedNames = numberedNames(options.text);
    this.#after = after;
    this.#failed = failed;
    this.#coalescer = new OutputCoalescer({ failed });
    this.#retries = new RetriedJobs({ ...this.limits, after });
    options.sidecar.observe({
      advanced: () => this.#retries.clear(),
      broken: (error) => {
        for (const job of this.#jobs) job.fail(error);
      },
    });
  }

  /** Memory of requests without a client, which may ask for them again. */
  get kept(): Kept {
    return this.#retries.kept;
  }

  /** Gives up the requests that clients named so, or all (null); returns how many there were. */
  abort(requestIds: readonly string[] | null): number {
    const wanted = new Set(requestIds ?? []);
    for (const id of requestIds ?? []) {
      const [, own] = WRITTEN_ID.exec(id) ?? [];
      if (own !== undefined) wanted.add(own);
      // A client's own id may end in a number.
      wanted.add(id.replace(/^(?:generate-tokens-|cmpl-|chatcmpl-)/, ""));
    }
    return this.abortNamed((id) => requestIds === null || wanted.has(id));
  }

  /** Gives up the requests, or prompts of requests, with such an id; returns how many there were. */
  abortNamed(isMeant: (id: string) => boolean): number {
    let aborted = 0;
    for (const job of [...this.#jobs]) {
      const isWhole = isMeant(job.id);
      const prompts = isWhole ? [] : [...(job.plan.names ?? []).entries()];
      const meant = prompts.filter(([, name]) => isMeant(name));
      if (isWhole) job.abort();
      for (const [index] of meant) job.abortPrompt(index);
      aborted += isWhole ? 1 : meant.length;
    }
    return aborted;
  }

  /** null: no worker is in service. */
  get contextTokens(): number | null {
    const tokens = this.sidecar.contextTokens;
    return Number.isFinite(tokens) ? tokens : null;
  }

  #samplingContext(at: string): SamplingContext {
    return {
      vocabularySize: this.text.vocabularySize,
      eosTokenIds: this.#options.eosTokenIds,
      reportsExperts: this.sidecar.reportsExperts,
      ...(this.hasText
        ? { tokensIn: (word: string) => this.text.encode(word, { addSpecial: false }).length }
        : {}),
      at,
    };
  }

  get modelNames(): readonly string[] {
    return this.#options.modelNames;
  }

  get adapters(): ReadonlySet<string> {
    return this.#options.adapters?.() ?? NO_ADAPTERS;
  }

  /** The model's name in answers to a client that used this name. */
  answeredName(model: string | null | undefined): string {
    return this.checkModel(model) ?? this.modelName;
  }

  /** The adapter that a client means; null: none. @throws AppError not_found for a model that is not served here. */
  checkModel(model: string | null | undefined): string | null {
    if (model === null || model === undefined || this.modelNames.includes(model)) return null;
    if (this.adapters.has(model)) return model;
    throw new AppError("not_found", `The model \`${model}\` does not exist.`);
  }

  /** Options for encoding the texts of a request. `truncates`: longer texts are cut. */
  encoding(
    exchange: Exchange,
    { addSpecial, truncates }: { addSpecial: boolean; truncates: boolean },
  ): EncodeOptions {
    const tokensMax = truncates ? null : this.contextTokens;
    return { addSpecial, tokensMax, signal: exchange.signal };
  }

  /** `tokensMax`: of prompt and response; null: no bound. @throws InvalidFieldError naming `field`. */
  promptOf(
    tokens: TokenList,
    field: string,
    tokensMax: number | null = this.contextTokens,
  ): Int32Array {
    if (tokens.length === 0) throw invalid(field, "holds no tokens");
    if (tokensMax !== null && tokens.length >= tokensMax) throw noRoom(tokens.length, tokensMax);
    const { vocabularySize } = this.text;
    const wrong = indexBeyond(tokens, vocabularySize);
    if (wrong >= 0) {
      throw invalid(field, `holds token ${tokens[wrong]}, not in 0..${vocabularySize - 1}`);
    }
    return new Int32Array(tokens);
  }

  /**
   * Checks the parameters of a request before its prompts are encoded; returns what makes the request of them.
   * @throws InvalidFieldError; AppError not_found.
   */
  begin(exchange: Exchange, fields: Partial<CommonFields>, own: RequestFields) {
    const { at = "", params } = own;
    this.checkModel(fields.model);
    checkPromptReport(fields.stream, params, at);
    const { sessionHeaders } = this.#options;
    const by = `request ${exchange.id}`;
    const origin = originOf(exchange.headers, fields, own.extraArgs, sessionHeaders);
    const drawing = drawingOf(params, own, this.#samplingContext(at));
    return (
      prompts: readonly Int32Array[],
      how: Pick<Prepared, "wantsText" | "answer" | "parse">,
    ): Prepared => ({
      specs: this.#specsOf(prompts, drawing, { fields, own, origin, by }),
      stops: prompts.map(() => drawing.stops),
      isStream: fields.stream ?? false,
      requestId: fields.request_id ?? null,
      ...how,
    });
  }

  #specsOf(
    prompts: readonly Int32Array[],
    { sampling: drawn, seeded, n }: Drawing,
    asked: { fields: Partial<CommonFields>; own: RequestFields; origin: Origin; by: string },
  ): GenerationSpec[] {
    const { fields, own, origin, by } = asked;
    const adapter = this.checkModel(fields.model);
    const { group, session, salt } = origin;
    const { tool = null, clamps = false } = own;
    const [priority, deadline] = [fields.priority ?? 0, fields.deadline ?? null];
    const sampling = {
      ...drawn,
      ...(adapter !== null && { adapter }),
      ...(salt !== null && { cacheSalt: salt }),
    };
    this.checkCount(prompts.length * n, "n", `is ${n}: with ${prompts.length} prompts that is`);
    const specs = prompts.map((prompt) => {
      const room = (this.contextTokens ?? 0) - prompt.length;
      if (room < 1 && this.contextTokens !== null) throw noRoom(prompt.length, this.contextTokens);
      const most = Math.max(1, room);
      const wanted = own.tokensMax ?? most;
      const tokensMax = clamps ? Math.min(wanted, most) : wanted;
      const wants = { ...sampling, tokensMax };
      return { prompt, n, sampling: wants, seeded, group, session, tool, priority, deadline };
    });
    // A request that is refused says nothing about weights.
    this.#options.expected?.({ ...origin, by });
    return specs;
  }

  /** @throws InvalidFieldError naming `field`: a request is for too many responses. */
  checkCount(count: number, field: string, asks: string): void {
    const { responsesMax } = this.limits;
    if (count <= responsesMax) return;
    throw invalid(field, `${asks} ${count} responses, more than ${responsesMax} in one request`);
  }

  /** @throws AppError as Sidecar.generate; conflict. */
  async respond(exchange: Exchange, prepared: Prepared): Promise<Response> {
    const { isStream, answer } = prepared;
    const { journals = null } = this.#options;
    const { requestId: id } = prepared;
    const name = exchange.headers.get("x-request-id") ?? id;
    const digest = await exchange.digest();
    exchange.release();
    const key = { path: exchange.url.pathname, id, digest };
    const lease = this.#retries.lease(key, () => {
      const draws = journals?.drawsOf(key) ?? [];
      const specs = prepared.specs.map((spec, i) => {
        const row = draws[i];
        return { ...spec, ...(row === undefined ? {} : { draws: row }) };
      });
      const { stops, names } = prepared;
      const needsText = prepared.wantsText || hasStrings(stops);
      return this.#keep({
        id: name ?? crypto.randomUUID().replaceAll("-", ""),
        ...{ specs, stops },
        ...(names === undefined ? {} : { names }),
        text: needsText && this.hasText ? this.text : null,
        parse: this.#parserOf(prepared),
        journal: (responses) => journals?.begin(key, responses) ?? null,
      });
    });
    const { job } = lease;
    if (isStream) {
      const hold = exchange.streams();
      const closed = () => {
        hold.ended();
        lease.release();
      };
      try {
        return eventStream(job, answer.stream(job), {
          ...{ stallMsMax: this.limits.stallMsMax, crashed: this.#failed, after: this.#after },
          ...{ signal: exchange.signal, took: hold.took, closed },
        });
      } catch (error) {
        closed();
        throw error;
      }
    }
    try {
      if (!(await doneBefore(job, exchange.signal)))
        return new Response(null, { status: CLIENT_GONE });
      const headers = { "content-type": "application/json" };
      return new Response(answer.whole(job), { headers });
    } finally {
      lease.release();
    }
  }

  /** Parser of a finished response. Without a tokenizer here, an engine makes the text at the end of the response. */
  #parserOf({ parse = null, wantsText, stops }: Prepared): NonNullable<JobPlan["parse"]> | null {
    if (this.hasText) return parse;
    if (hasStrings(stops)) throw invalid("stop", NO_TEXT);
    if (parse !== null || !wantsText) return parse;
    return async (output) => {
      const tokens = output.textTokens();
      const { signal } = new AbortController();
      const content = tokens.length === 0 ? "" : await this.encoder.decode(tokens, signal);
      return { content, reasoning: null, toolCalls: [] };
    };
  }

  #keep(plan: JobPlan): Job {
    const { trajectories } = this.#options;
    const context = { sidecar: this.sidecar, coalescer: this.#coalescer, trajectories };
    const job = new Job(plan, context);
    this.#jobs.add(job);
    const forget = () => this.#jobs.delete(job);
    job.done.then(forget, forget);
    return job;
  }
}

function hasStrings(stops: Prepared["stops"]): boolean {
  return stops.some(({ strings }) => strings.length > 0);
}

function noRoom(tokens: number, tokensMax: number): AppError {
  // vLLM's sentence (renderers/params.py): NeMo Gym and verifiers search for "maximum context length".
  const message = `This model's maximum context length is ${tokensMax} tokens. However, your prompt contains ${tokens} input tokens, which leaves no room for output tokens. Please reduce the length of the input prompt.`;
  return new AppError("context_length_exceeded", message);
}

/** false: the client went first. */
async function doneBefore(job: Job, signal: AbortSignal): Promise<boolean> {
  if (job.isDone || signal.aborted) return job.isDone;
  const gone = Promise.withResolvers<false>();
  const leave = () => gone.resolve(false);
  signal.addEventListener("abort", leave, { once: true });
  try {
    return await Promise.race([job.done.then(() => true), gone.promise]);
  } finally {
    signal.removeEventListener("abort", leave);
  }
}

function later(ms: number, run: () => void): () => void {
  const timer = setTimeout(run, ms);
  timer.unref();
  return () => clearTimeout(timer);
}
