// The third step of a request: its generations begin as a job, or the job of an earlier request is taken over, and the
// answer is written, whole or as a stream.

import { CLIENT_GONE } from "../http-errors.ts";
import type { Kept } from "../kept.ts";
import { Repeats } from "../repeats.ts";
import type { Exchange } from "../route.ts";
import { eventStream } from "./event-stream.ts";
import { Job, OutputCoalescer } from "./job.ts";
import type { Plan, PlaneParts } from "./plan.ts";

/** A job with an id in its body: whoever asks again gets the same responses, during the job and for a while after. */
interface SharedJob {
  readonly job: Job;
  clients: number;
  /** Cancels the timer that ends the job; null: it has a client. */
  cancelExpiry: (() => void) | null;
}

interface Lease {
  readonly job: Job;
  /** Ends the hold: the client has everything, or has left. */
  release(): void;
}

/** A request's id as answers write it: `cmpl-ID-0` is its first prompt, as in vLLM. Captures it with the number and without. */
const WRITTEN_ID = /^(?:generate-tokens-|cmpl-|chatcmpl-)((.+?)(?:-\d+)?)$/s;

export class Jobs {
  readonly #parts: PlaneParts;
  readonly #shared: Repeats<SharedJob>;
  readonly #coalescer: OutputCoalescer;
  readonly #jobs = new Set<Job>();

  constructor(parts: PlaneParts) {
    this.#parts = parts;
    const { sidecar, limits, failed } = parts;
    this.#coalescer = new OutputCoalescer(failed);
    this.#shared = new Repeats({
      bytesMax: limits.keptBytesMax,
      isFree: ({ job }, isSame) => job.isAborted || (job.isDone && !isSame),
      dropped: ({ job, cancelExpiry }) => {
        cancelExpiry?.();
        job.forget();
      },
    });
    sidecar.observe({
      // No new client gets results of old weights.
      advanced: () => this.#shared.forget(({ job, clients }) => clients === 0 || job.isDone),
      broken: (error) => {
        for (const job of this.#jobs) job.fail(error);
      },
    });
  }

  /** Memory of requests without a client, which may ask for them again. */
  get kept(): Kept {
    return this.#shared.kept;
  }

  /** Aborts the requests with these ids, or all (null); returns how many there were. */
  abort(requestIds: readonly string[] | null): number {
    // A client's own id may end in a number.
    const meant = (id: string) => [id, ...(WRITTEN_ID.exec(id)?.slice(1) ?? [])];
    const wanted = new Set(requestIds?.flatMap(meant));
    return this.abortNamed((id) => requestIds === null || wanted.has(id));
  }

  /** Aborts the requests, or prompts of requests, whose id `isMeant` accepts; returns how many there were. */
  abortNamed(isMeant: (id: string) => boolean): number {
    let aborted = 0;
    for (const job of [...this.#jobs]) {
      const isWhole = isMeant(job.id);
      const prompts = isWhole ? [] : [...(job.work.names ?? []).entries()];
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
    const varies = plan.specs.some(({ seeded }) => seeded) && this.#parts.variesSeeds();
    if (plan.isStream) return noted(this.#streamed(plan, exchange, lease), varies);
    try {
      const isDone = await doneBefore(lease.job, exchange.signal);
      if (!isDone) return new Response(null, { status: CLIENT_GONE });
      const headers = { "content-type": "application/json" };
      return noted(new Response(plan.answer.whole(lease.job), { headers }), varies);
    } finally {
      lease.release();
    }
  }

  /** Takes over the job of the body's id, or begins one. @throws AppError conflict: another body has this id; and as Job. */
  #leased(plan: Plan, exchange: Exchange, digest: string): Lease {
    const { requestId: id } = plan;
    if (id === null) {
      const job = this.#begun(plan, exchange, null);
      return { job, release: () => job.forget() };
    }
    const name = `${exchange.url.pathname} ${id}`;
    const problem = () =>
      `request_id: another request with the id ${JSON.stringify(id)} is being served`;
    const found = this.#shared.find(name, digest, problem);
    const fresh = () => this.#begun(plan, exchange, digest);
    const shared =
      found ?? this.#shared.add(name, digest, { job: fresh(), clients: 0, cancelExpiry: null });
    this.#shared.use(name);
    shared.cancelExpiry?.();
    shared.clients += 1;
    let isReleased = false;
    const release = () => {
      if (isReleased) return;
      isReleased = true;
      shared.clients -= 1;
      if (shared.clients === 0) this.#left(name, shared);
    };
    return { job: shared.job, release };
  }

  #left(name: string, shared: SharedJob): void {
    const { limits, later } = this.#parts;
    const expire = () => this.#shared.forget((one) => one === shared);
    shared.cancelExpiry = later(expire, limits.graceMs);
    if (this.#shared.rest(name, shared, shared.job.bytes, limits.leftMax)) return;
    shared.cancelExpiry();
    shared.job.forget();
  }

  #streamed({ answer }: Plan, exchange: Exchange, { job, release }: Lease): Response {
    const { failed: crashed, later } = this.#parts;
    const { stallMsMax } = this.#parts.limits;
    const { took, ended } = exchange.streams();
    const closed = () => {
      ended();
      release();
    };
    try {
      const options = { stallMsMax, crashed, later, took, closed, signal: exchange.signal };
      return eventStream(job, answer.stream(job), options);
    } catch (error) {
      closed();
      throw error;
    }
  }

  /** Begins the plan's job. `digest` null: it has no id. */
  #begun(plan: Plan, { headers, url }: Exchange, digest: string | null): Job {
    const { sidecar, trajectories, journals } = this.#parts;
    const { requestId } = plan;
    const key = { path: url.pathname, id: requestId ?? "", digest: digest ?? "" };
    const kept = digest === null ? null : journals;
    const draws = kept?.drawsOf(key) ?? [];
    const specs = plan.specs.map((spec, i) => (draws[i] ? { ...spec, draws: draws[i] } : spec));
    const job = new Job(
      { ...plan, specs },
      {
        id: headers.get("x-request-id") ?? requestId ?? crypto.randomUUID().replaceAll("-", ""),
        sidecar,
        coalescer: this.#coalescer,
        trajectories,
        journal: kept && ((responses) => kept.begin(key, responses)),
      },
    );
    this.#jobs.add(job);
    const forget = () => this.#jobs.delete(job);
    job.done.then(forget, forget);
    return job;
  }
}

/** The answer, with a header if its seed may draw other tokens next time. */
export function noted(answer: Response, varies: boolean): Response {
  if (varies) answer.headers.set("x-foretoken-seed", "varies");
  return answer;
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
