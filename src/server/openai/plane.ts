// What all routes of the data plane share: the options, the running jobs, and the one way from a checked
// request to an answer.

import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { EncodeOptions, Encoder, Text } from "../../text/text.ts";
import type { EngineCalls } from "../engine-calls.ts";
import { CLIENT_GONE } from "../http-errors.ts";
import type { Kept } from "../kept.ts";
import type { Exchange } from "../route.ts";
import type { GenerationSpec, Sidecar } from "../sidecar.ts";
import { eventStream, type StreamView } from "./event-stream.ts";
import { indexBeyond, type TokenList } from "./fields.ts";
import { Job, type JobPlan, OutputCoalescer } from "./job.ts";
import { NumberedNames, type TokenNames, WrittenNames } from "./json.ts";
import type { Origin } from "./origin.ts";
import type { RequestJournals } from "./request-journals.ts";
import { AdoptableJobs, type RetryLimits } from "./retries.ts";
import { type Drawing, invalid, type SamplingContext, type StopRules } from "./sampling-fields.ts";

export interface DataPlaneLimits extends RetryLimits {
  /** Responses that one request may ask for, over all its prompts. */
  readonly responsesMax: number;
  /** A streaming client that takes nothing for so long is dropped. */
  readonly stallMsMax: number;
}

const DATA_PLANE_LIMITS: DataPlaneLimits = {
  responsesMax: 16_384,
  stallMsMax: 30_000,
  graceMs: 30_000,
  orphansMax: 1024,
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
  /** Extra arguments of requests that keep nothing from token to token. Default: none is known not to. */
  readonly statelessArgs?: readonly string[];
  /** Tokens that end a response unless `ignore_eos`; the first is the EOS proper. */
  readonly eosTokenIds: readonly number[];
  /** The name of the weights of an epoch, as the trainer gave it. */
  readonly version: (epoch: WeightEpoch) => string;
  /** Hears which weights a request expects, before it begins. */
  readonly expected?: (hint: Pick<Origin, "version" | "salt">) => void;
  readonly limits?: Partial<DataPlaneLimits>;
  /** Called with an error that ended one request and is not the client's. */
  readonly failed?: (error: unknown) => void;
  /** Keeps requests with an id over the end of the process. Default: nothing does. */
  readonly journals?: RequestJournals | null;
  /** Runs `run` after `ms`; returns what prevents it. Default: setTimeout. */
  readonly after?: (ms: number, run: () => void) => () => void;
}

/** How one request's answer is written. */
export interface Answer {
  whole(job: Job): string;
  stream(job: Job): StreamView;
}

export interface Prepared {
  readonly specs: readonly GenerationSpec[];
  readonly stops: StopRules;
  /** As JobPlan. */
  readonly stopsOf?: readonly StopRules[];
  readonly names?: readonly string[];
  readonly wantsText: boolean;
  readonly isStream: boolean;
  /** The body's own id; the X-Request-Id header goes before it. */
  readonly requestId: string | null;
  readonly answer: Answer;
  /** As JobPlan. */
  readonly parse?: Exclude<JobPlan["parse"], undefined>;
}

const NO_TEXT =
  "needs the model's tokenizer.json, which is not on this machine: send stop_token_ids, or give --tokenizer DIR";

const NO_ADAPTERS: ReadonlySet<string> = new Set();

export class DataPlane {
  readonly sidecar: Sidecar;
  readonly text: Text;
  readonly encoder: Encoder;
  readonly hasText: boolean;
  /** null: no engine has routes of its own. */
  readonly engines: EngineCalls | null;
  readonly modelName: string;
  readonly modelNames: readonly string[];
  readonly limits: DataPlaneLimits;
  /** Wall-clock seconds. */
  readonly startedS = Math.floor(Date.now() / 1000);
  readonly version: (epoch: WeightEpoch) => string;
  readonly writtenNames: TokenNames;
  readonly numberedNames: TokenNames;
  readonly #adapters: () => ReadonlySet<string>;
  readonly #eosTokenIds: readonly number[];
  readonly #statelessArgs: ReadonlySet<string>;
  readonly #after: (ms: number, run: () => void) => () => void;
  readonly #retries: AdoptableJobs;
  readonly #coalescer: OutputCoalescer;
  readonly #failed: (error: unknown) => void;
  readonly #expected: (hint: Pick<Origin, "version" | "salt">) => void;
  readonly #jobs = new Set<Job>();
  readonly #journals: RequestJournals | null;

  constructor(options: DataPlaneOptions) {
    this.sidecar = options.sidecar;
    this.text = options.text;
    this.encoder = options.encoder;
    this.engines = options.engines ?? null;
    this.hasText = options.hasText ?? true;
    this.modelNames = options.modelNames;
    this.#adapters = options.adapters ?? (() => NO_ADAPTERS);
    this.modelName = options.modelNames[0];
    this.limits = { ...DATA_PLANE_LIMITS, ...options.limits };
    this.version = options.version;
    this.writtenNames = new WrittenNames(options.text);
    this.numberedNames = new NumberedNames(options.text);
    this.#eosTokenIds = options.eosTokenIds;
    this.#statelessArgs = new Set(options.statelessArgs);
    this.#after = options.after ?? later;
    this.#journals = options.journals ?? null;
    this.#failed = options.failed ?? (() => undefined);
    this.#expected = options.expected ?? (() => undefined);
    this.#coalescer = new OutputCoalescer({ failed: this.#failed });
    this.#retries = new AdoptableJobs({ ...this.limits, after: this.#after });
    options.sidecar.observe({
      advanced: () => this.#retries.clear(),
      broken: (error) => {
        for (const job of this.#jobs) job.fail(error);
      },
    });
  }

  /** Of requests whose clients have gone, or may ask again. */
  get kept(): Kept {
    return this.#retries.kept;
  }

  /** Jobs that are not finished. */
  get jobs(): Iterable<Job> {
    return this.#jobs;
  }

  /** null: no worker is in service. */
  get contextTokens(): number | null {
    const tokens = this.sidecar.contextTokens;
    return Number.isFinite(tokens) ? tokens : null;
  }

  samplingContext(at: string): SamplingContext {
    return {
      vocabularySize: this.text.vocabularySize,
      eosTokenIds: this.#eosTokenIds,
      reportsExperts: this.sidecar.reportsExperts,
      statelessArgs: this.#statelessArgs,
      ...(this.hasText
        ? { tokensIn: (word: string) => this.text.encode(word, { addSpecial: false }).length }
        : {}),
      at,
    };
  }

  get adapters(): ReadonlySet<string> {
    return this.#adapters();
  }

  /** What answers call the model that a client named so. */
  answeredName(model: string | null | undefined): string {
    return this.checkModel(model) ?? this.modelName;
  }

  /** The adapter that a client means; null: none. @throws AppError not_found for a model that is not served here. */
  checkModel(model: string | null | undefined): string | null {
    if (model === null || model === undefined || this.modelNames.includes(model)) return null;
    if (this.adapters.has(model)) return model;
    throw new AppError("not_found", `The model \`${model}\` does not exist.`);
  }

  /** How the texts of a request are encoded. `truncates`: it wants what is too long cut. */
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

  /** One spec for each prompt. `tokensMax` null: as many as the context has room for. */
  specsOf(
    prompts: readonly Int32Array[],
    drawing: Drawing,
    about: {
      tokensMax: number | null;
      clamps: boolean;
      origin: Origin;
      priority: number;
      /** As the client named it. */
      model: string | null | undefined;
    },
  ): GenerationSpec[] {
    const { sampling: drawn, seeded, n } = drawing;
    const adapter = this.checkModel(about.model);
    const { origin, priority } = about;
    this.#expected(origin);
    const sampling = {
      ...drawn,
      ...(adapter !== null && { adapter }),
      ...(origin.salt !== null && { cacheSalt: origin.salt }),
    };
    const { responsesMax } = this.limits;
    if (prompts.length * n > responsesMax) {
      const problem = `is ${n}: with ${prompts.length} prompts that is ${prompts.length * n} responses, more than ${responsesMax} in one request`;
      throw invalid("n", problem);
    }
    return prompts.map((prompt) => {
      const room = (this.contextTokens ?? 0) - prompt.length;
      if (room < 1 && this.contextTokens !== null) throw noRoom(prompt.length, this.contextTokens);
      const most = Math.max(1, room);
      const wanted = about.tokensMax ?? most;
      const tokensMax = about.clamps ? Math.min(wanted, most) : wanted;
      const { group, session } = origin;
      return { prompt, n, sampling: { ...sampling, tokensMax }, seeded, group, session, priority };
    });
  }

  /** @throws AppError as Sidecar.generate; conflict. */
  async respond(exchange: Exchange, prepared: Prepared): Promise<Response> {
    const { stops, isStream, answer } = prepared;
    const id = exchange.headers.get("x-request-id") ?? prepared.requestId;
    const digest = await exchange.digest();
    exchange.release();
    const path = exchange.url.pathname;
    const key = { path, id, digest, adoptable: !isStream };
    const lease = this.#retries.lease(key, () => {
      const draws = this.#journals?.drawsOf(key) ?? [];
      const specs = prepared.specs.map((spec, i) => {
        const row = draws[i];
        return { ...spec, ...(row === undefined ? {} : { draws: row }) };
      });
      const { stopsOf, names } = prepared;
      const hasStrings = (stopsOf ?? [stops]).some(({ strings }) => strings.length > 0);
      const needsText = prepared.wantsText || hasStrings;
      const text = needsText && this.hasText ? this.text : null;
      const jobId = id ?? crypto.randomUUID().replaceAll("-", "");
      const own = {
        ...(stopsOf === undefined ? {} : { stopsOf }),
        ...(names === undefined ? {} : { names }),
      };
      const journal: NonNullable<JobPlan["journal"]> = (responses) =>
        this.#journals?.begin(key, responses) ?? null;
      const parse = this.#parserOf(prepared);
      const plan = { id: jobId, specs, stops, ...own, text, parse, journal };
      return this.#keep(new Job(plan, { sidecar: this.sidecar, coalescer: this.#coalescer }));
    });
    const { job } = lease;
    if (isStream) {
      const hold = exchange.streams();
      try {
        return eventStream(job, answer.stream(job), {
          stallMsMax: this.limits.stallMsMax,
          crashed: this.#failed,
          took: hold.took,
          after: this.#after,
          closed: (gone) => {
            hold.ended();
            lease.release(gone);
          },
        });
      } catch (error) {
        hold.ended();
        lease.release(true);
        throw error;
      }
    }
    let isGone = true;
    try {
      isGone = !(await doneBefore(job, exchange.signal));
      if (isGone) return new Response(null, { status: CLIENT_GONE });
      const headers = { "content-type": "application/json" };
      return new Response(answer.whole(job), { headers });
    } finally {
      lease.release(isGone);
    }
  }

  /** Without a tokenizer here, an engine makes a response's text when it has ended. */
  #parserOf({
    parse = null,
    wantsText,
    stops,
    stopsOf = [stops],
  }: Prepared): NonNullable<JobPlan["parse"]> | null {
    if (this.hasText) return parse;
    if (stopsOf.some(({ strings }) => strings.length > 0)) throw invalid("stop", NO_TEXT);
    if (parse !== null || !wantsText) return parse;
    return async (output) => {
      const tokens = output.textTokens();
      const { signal } = new AbortController();
      const content = tokens.length === 0 ? "" : await this.encoder.decode(tokens, signal);
      return { content, reasoning: null, toolCalls: [] };
    };
  }

  #keep(job: Job): Job {
    this.#jobs.add(job);
    const forget = () => this.#jobs.delete(job);
    job.done.then(forget, forget);
    return job;
  }
}

function noRoom(tokens: number, tokensMax: number): AppError {
  // vLLM's sentence (renderers/params.py): NeMo Gym and verifiers search for "maximum context length".
  const message = `This model's maximum context length is ${tokensMax} tokens. However, your prompt contains ${tokens} input tokens, which leaves no room for output tokens. Please reduce the length of the input prompt.`;
  return new AppError("context_length_exceeded", message);
}

/** false: the client went first. */
async function doneBefore(job: Job, signal: AbortSignal): Promise<boolean> {
  if (job.isDone) return true;
  if (signal.aborted) return false;
  let leave: () => void = () => undefined;
  const gone = new Promise<boolean>((resolve) => {
    leave = () => resolve(false);
    signal.addEventListener("abort", leave, { once: true });
  });
  try {
    return await Promise.race([job.done.then(() => true), gone]);
  } finally {
    signal.removeEventListener("abort", leave);
  }
}

function later(ms: number, run: () => void): () => void {
  const timer = setTimeout(run, ms);
  timer.unref();
  return () => clearTimeout(timer);
}
