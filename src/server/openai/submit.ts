// The third step of a request: its generations begin as a job, or the job of an earlier request is taken over, and the
// answer is written, whole or as a stream.

import type { Encoder } from "../../text/text.ts";
import { CLIENT_GONE } from "../http-errors.ts";
import type { Kept } from "../kept.ts";
import type { Exchange } from "../route.ts";
import { invalid } from "../route.ts";
import type { Sidecar } from "../sidecar.ts";
import type { Trajectories } from "../trajectories/trajectories.ts";
import { eventStream } from "./event-stream.ts";
import { Job, type JobPlan, OutputCoalescer } from "./job.ts";
import type { Plan } from "./plan.ts";
import type { RequestJournals } from "./request-journals.ts";
import { type Lease, RetriedJobs, type RetryLimits } from "./retries.ts";
import { noted } from "./sampling-fields.ts";
import type { ServedModel } from "./served-model.ts";

export interface JobLimits extends RetryLimits {
  /** Time after which a streaming client that reads nothing is dropped. */
  readonly stallMsMax: number;
}

export interface JobsOptions {
  readonly sidecar: Sidecar;
  readonly model: ServedModel;
  readonly encoder: Encoder;
  readonly limits: JobLimits;
  /** Called with an error that ended one request and is not the client's. */
  readonly failed: (error: unknown) => void;
  /** Keeps requests with an id beyond the end of the process; null: nothing does. */
  readonly journals: RequestJournals | null;
  /** Whether engines draft in a way that lets a seed draw other tokens each time. */
  readonly variesSeeds: () => boolean;
  /** Records the turns of sessions. Default: nothing does. */
  readonly trajectories?: Trajectories | undefined;
  /** Runs `run` after `ms`; returns a function that cancels it. */
  readonly after: (ms: number, run: () => void) => () => void;
}

const NO_TEXT =
  "needs the model's tokenizer.json, which is not on this machine: send stop_token_ids, or give --tokenizer DIR";

/** Prefix and suffix that answers put around a request's id: `cmpl-ID-0` is its first prompt, as in vLLM. */
const WRITTEN_ID = /^(?:generate-tokens-|cmpl-|chatcmpl-)(.+?)(?:-\d+)?$/s;

export class Jobs {
  readonly #options: JobsOptions;
  readonly #retries: RetriedJobs;
  readonly #coalescer: OutputCoalescer;
  readonly #jobs = new Set<Job>();

  constructor(options: JobsOptions) {
    this.#options = options;
    const { sidecar, limits, after, failed } = options;
    this.#coalescer = new OutputCoalescer({ failed });
    this.#retries = new RetriedJobs({ ...limits, after });
    sidecar.observe({
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

  /** Aborts the requests with these ids, or all (null); returns how many there were. */
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

  /** Aborts the requests, or prompts of requests, whose id `isMeant` accepts; returns how many there were. */
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

  /** Begins the plan's job, or takes over that of an earlier request, and answers. @throws AppError as Sidecar.generate; conflict. */
  async submit(plan: Plan, exchange: Exchange): Promise<Response> {
    const digest = await exchange.digest();
    exchange.release();
    const lease = this.#leased(plan, exchange, digest);
    const varies = plan.specs.some(({ seeded }) => seeded) && this.#options.variesSeeds();
    if (plan.isStream) return noted(this.#streamed(plan, exchange, lease), varies);
    try {
      const isDone = await doneBefore(lease.job, exchange.signal);
      if (!isDone) return new Response(null, { status: CLIENT_GONE });
      const headers = { "content-type": "application/json" };
      return noted(new Response(plan.answer().whole(lease.job), { headers }), varies);
    } finally {
      lease.release();
    }
  }

  #leased(plan: Plan, { headers, url }: Exchange, digest: string): Lease {
    const { journals, model } = this.#options;
    const { requestId: id, names, stops, wantsText } = plan;
    const key = { path: url.pathname, id, digest };
    return this.#retries.lease(key, () => {
      const draws = journals?.drawsOf(key) ?? [];
      const specs = plan.specs.map((spec, i) => {
        const row = draws[i];
        return row === undefined ? spec : { ...spec, draws: row };
      });
      const needsText = wantsText || hasStrings(stops);
      return this.#begun({
        id: headers.get("x-request-id") ?? id ?? crypto.randomUUID().replaceAll("-", ""),
        specs,
        stops,
        names,
        text: needsText && model.hasText ? model.text : null,
        parse: this.#parserOf(plan),
        journal: (responses) => journals?.begin(key, responses) ?? null,
      });
    });
  }

  #streamed({ answer }: Plan, exchange: Exchange, { job, release }: Lease): Response {
    const { failed: crashed, after } = this.#options;
    const { stallMsMax } = this.#options.limits;
    const { took, ended } = exchange.streams();
    const closed = () => {
      ended();
      release();
    };
    try {
      const options = { stallMsMax, crashed, after, took, closed, signal: exchange.signal };
      return eventStream(job, answer().stream(job), options);
    } catch (error) {
      closed();
      throw error;
    }
  }

  /** Parser of a finished response. Without a tokenizer here, an engine makes the text at the end of the response. */
  #parserOf({ parse = null, wantsText, stops }: Plan): NonNullable<Plan["parse"]> | null {
    const { model, encoder } = this.#options;
    if (model.hasText) return parse;
    if (hasStrings(stops)) throw invalid("stop", NO_TEXT);
    if (parse !== null || !wantsText) return parse;
    return async (output) => {
      const tokens = output.textTokens();
      const { signal } = new AbortController();
      const content = tokens.length === 0 ? "" : await encoder.decode(tokens, signal);
      return { content, reasoning: null, toolCalls: [] };
    };
  }

  #begun(plan: JobPlan): Job {
    const { sidecar, trajectories } = this.#options;
    const job = new Job(plan, { sidecar, coalescer: this.#coalescer, trajectories });
    this.#jobs.add(job);
    const forget = () => this.#jobs.delete(job);
    job.done.then(forget, forget);
    return job;
  }
}

function hasStrings(stops: Plan["stops"]): boolean {
  return stops.some(({ strings }) => strings.length > 0);
}

/** Waits until the job has ended. false: the client disconnected before. */
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
