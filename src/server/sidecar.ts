// The sidecar behind every protocol: submits clients' requests to the rollout and reports events back to them. It knows
// no wire format; the routes know no rollout.

import { assert } from "../core/base/assert.ts";
import { AppError } from "../core/base/errors.ts";
import type { WeightEpoch } from "../core/base/ids.ts";
import type { Group, RolloutRequest } from "../core/request/buffer.ts";
import {
  type DrawKey,
  drawKey,
  type SamplingParams,
  withoutPromptReport,
} from "../core/request/request.ts";
import { outOfBounds, problemOf } from "../core/request/sampling-bounds.ts";
import type { RolloutReader } from "../core/rollout/events.ts";
import { Rollout, type RolloutOptions } from "../core/rollout/rollout.ts";
import { Waits } from "../fleet/waits.ts";
import { JoinableGroups } from "./joinable-groups.ts";
import type { Kept } from "./kept.ts";
import { invalid } from "./route.ts";
import { type SessionScope, SessionTable } from "./sessions.ts";

/** A client's request: `n` responses to one prompt. */
export interface GenerationSpec {
  readonly prompt: Int32Array;
  readonly n: number;
  /** Sampling parameters. `seed` counts only with `seeded`; otherwise random numbers are fresh. */
  readonly sampling: SamplingParams;
  readonly seeded: boolean;
  /** The client's name for the group; null: the prompt decides. */
  readonly group: string | null;
  /** The client's name for the conversation that the prompt is a turn of; null or absent: none. */
  readonly session?: string | null;
  /** The tool whose output the prompt ends with; null or absent: none, or not known. */
  readonly tool?: string | null;
  /** Lower is served earlier. */
  readonly priority: number;
  /** All tokens of a response are of one weight epoch; see Wanted in core/request/buffer.ts, also for `stalenessMax`. */
  readonly isStrict?: boolean;
  readonly stalenessMax?: number;
  /** The names of the responses' random numbers, where they are chosen already; missing ones are chosen here. */
  readonly draws?: readonly DrawKey[];
}

export type Generation = ReturnType<Sidecar["generate"]>;

/** A reader of events, for streams, metrics and logs. */
export type SidecarReader = RolloutReader<GenerationSpec>;

const LIMITS = {
  /** Maximum of unfinished requests; more are refused with `queue_full`. */
  requestsMax: 65_536,
  /** Limit of groups that later requests may join: more than one iteration has (1,000). */
  groupsMax: 4_096,
  /** Limit of the groups' prompts and finished responses, which later siblings draft from. */
  keptBytesMax: 256 * 2 ** 20,
  /** How long after its last turn a session is kept: as long as a tool may take. */
  sessionMsMax: 600_000,
};
export type SidecarLimits = Readonly<typeof LIMITS>;

export interface SidecarOptions {
  readonly rollout: Omit<RolloutOptions, "listener" | "vocabularySize">;
  /** Vocabulary size of the model, which limits prompts and workers. */
  readonly vocabularySize: number;
  readonly limits?: Partial<SidecarLimits>;
  readonly random: () => number;
  /** Called with an error of a reader; all others continue. */
  readonly failed?: (error: unknown) => void;
}

type SessionFields = Pick<GenerationSpec, "prompt" | "n" | "sampling" | "group" | "session">;

/** Several responses to one prompt begin several sessions, so that a client's name cannot be for any of them. */
function sessionOf({ n, session, group, sampling }: SessionFields): SessionScope {
  const { adapter = null, cacheSalt: salt = null } = sampling;
  return {
    scope: JSON.stringify([group, adapter, salt]),
    name: n === 1 ? (session ?? null) : null,
  };
}

export class Sidecar {
  readonly rollout: Rollout;
  /** The server's own waits, beside those of the rollout. */
  readonly waits: Waits;
  readonly #options: SidecarOptions;
  readonly #groups: JoinableGroups;
  readonly sessions: SessionTable;
  readonly #requestsMax: number;
  #isDraining = false;

  constructor(options: SidecarOptions) {
    this.#options = options;
    const { vocabularySize } = options;
    const listener = {
      finished: (request: RolloutRequest) => {
        this.#groups.finished(request);
        this.sessions.finished(request);
      },
      threw: (error: unknown) => options.failed?.(error),
    };
    this.rollout = new Rollout({ ...options.rollout, vocabularySize, listener });
    this.waits = new Waits(options.rollout.clock);
    const limits = { ...LIMITS, ...options.limits };
    this.#requestsMax = limits.requestsMax;
    this.sessions = new SessionTable({
      msMax: limits.sessionMsMax,
      clock: options.rollout.clock,
      later: options.rollout.later,
      letGo: (request) => this.rollout.letGo(request),
    });
    const closed = (group: Group) => this.sessions.closed(group);
    this.#groups = new JoinableGroups({ rollout: this.rollout, ...limits, closed });
  }

  /** Prompt and response of the turn before this prompt in its session; null: there is none. */
  turnBefore(spec: SessionFields): Int32Array | null {
    return this.sessions.textBefore(sessionOf(spec), spec.prompt);
  }

  /** Memory of groups that later requests may join. */
  get kept(): Kept {
    return this.#groups.kept;
  }

  get isDraining(): boolean {
    return this.#isDraining;
  }

  /** Tokens of prompt + output that every worker has room for. */
  get contextTokens(): number {
    const { workers } = this.rollout;
    return Math.min(
      ...workers.map(({ capacity }) => Math.min(capacity.contextTokens, capacity.kvTokens)),
    );
  }

  /** Begins `spec.n` responses. @throws AppError draining, no_worker, queue_full, context_length_exceeded, invalid_field. */
  generate(spec: GenerationSpec, reader: RolloutReader) {
    const divisible = this.#check(spec);
    const { sampling, seeded, priority, tool = null, isStrict = false, stalenessMax = 0 } = spec;
    const { adapter = null, cacheSalt: salt = null } = sampling;
    const scope = { name: spec.group, adapter, salt };
    const session = sessionOf(spec);
    const place = this.sessions.place(session, spec.prompt);
    const { key, group: root } = place;
    const isLater = root !== null && this.#groups.rejoin(root);
    const group = isLater ? root : this.#groups.groupFor(spec.prompt, scope);
    // Whether a session without a name goes on is not known before it has.
    const isTurn = isLater || session.name !== null;
    const turn = isTurn && {
      turn: { ...place.turn, prompt: isLater ? spec.prompt : group.prompt },
    };
    const { random } = this.#options;
    const requests: RolloutRequest[] = [];
    for (let index = 0; index < spec.n; index += 1) {
      const named = seeded ? drawKey(sampling.seed, "", index) : null;
      const draw = spec.draws?.[index] ?? named ?? { hi: random(), lo: random() };
      const drawn = index === 0 ? sampling : withoutPromptReport(sampling);
      const shared = { divisible, priority, isStrict, stalenessMax, tool, ...(turn || {}) };
      const wanted = { sampling: drawn, draw, ...shared };
      const request = this.rollout.join(group, wanted, isLater ? place.previous : null);
      const own = index === 0 ? key : `${key}.${index}`;
      this.sessions.joined(request, { ...session, key: own, isLater });
      this.rollout.events.own(request, reader);
      requests.push(request);
      this.rollout.events.tell((one) => one.joined?.(request, spec));
    }
    return {
      requests: requests as readonly RolloutRequest[],
      /** Ends one response with the tokens it has. */
      end: (index: number, reason: "abort" | "stop") => {
        const request = requests[index];
        assert(request !== undefined, `response ${index} is one of the generation's`);
        this.rollout.end(request, reason);
      },
      abort: () => {
        for (const request of requests) this.rollout.end(request, "abort");
      },
      /** Closes the group to later requests, and frees what was kept for them. */
      release: () => this.#groups.close(group),
    };
  }

  get reportsExperts(): boolean {
    const { workers } = this.rollout;
    return workers.length > 0 && workers.every((worker) => worker.reportsExperts === true);
  }

  unfinishedOf(adapter: string): number {
    const unfinished = [...this.rollout.requests].filter(({ status }) => status !== "finished");
    return unfinished.filter(({ spec }) => spec.sampling.adapter === adapter).length;
  }

  /** Adds a reader of all events; returns a function that removes it. */
  observe(reader: SidecarReader): () => void {
    return this.rollout.events.add(reader as RolloutReader<unknown>);
  }

  /** Begins the next epoch, whose weights all workers have: KV and drafts of the old one are dropped. */
  advance(epoch: WeightEpoch): void {
    this.#groups.closeAll();
    this.rollout.advance(epoch);
    this.rollout.events.tell((reader) => reader.advanced?.(epoch));
  }

  /** Reports the end of a rollout of /v1/rollouts, which is a whole iteration. */
  rolloutOver(): void {
    this.rollout.events.tell((reader) => reader.rolloutOver?.());
  }

  /** Refuses new requests; resolves when all are finished. */
  async drain(): Promise<void> {
    this.#isDraining = true;
    this.#groups.closeAll();
    if (this.rollout.unfinished === 0) return;
    const reason = "it ends when all responses have finished";
    const wait = { what: "drain", forWhom: "responses", reason, msMax: null };
    const { promise, resolve } = Promise.withResolvers<void>();
    const stop = this.observe({
      finished: () => {
        if (this.rollout.unfinished === 0) resolve();
      },
    });
    await this.waits.during(wait, () => promise);
    stop();
  }

  /** Throws if the server cannot take the request; returns whether every worker supports its parameters in chunks. */
  #check(spec: GenerationSpec): boolean {
    const { prompt, n, sampling } = spec;
    if (this.#isDraining) throw new AppError("draining", "the server takes no new requests");
    const { workers } = this.rollout;
    if (workers.length === 0) throw new AppError("no_worker", "no worker is in service");
    if (this.rollout.unfinished + n > this.#requestsMax) {
      const problem = `${this.#requestsMax} requests are in flight, the server's maximum`;
      throw new AppError("queue_full", problem);
    }
    if (prompt.length === 0) throw invalid("prompt", "holds no tokens");
    const { vocabularySize } = this.#options;
    const wild = prompt.find((token) => token < 0 || token >= vocabularySize);
    if (wild !== undefined) {
      throw invalid("prompt", `holds token ${wild}, not in 0..${vocabularySize - 1}`);
    }
    const wanted = prompt.length + sampling.tokensMax;
    if (wanted > this.contextTokens) {
      const most = `This model's maximum context length is ${this.contextTokens} tokens`;
      const all = `the prompt has ${prompt.length} tokens and max_tokens is ${sampling.tokensMax}`;
      const message = `${most}. However, ${all}: ${wanted} tokens in all.`;
      throw new AppError("context_length_exceeded", message);
    }
    const wrong = outOfBounds(sampling, this.#options);
    if (wrong !== null) throw invalid(wrong.field, problemOf(wrong));
    let divisible = true;
    for (const worker of workers) {
      const support = worker.supports(sampling);
      if (support.kind === "refused")
        throw invalid(support.field, `${support.reason} (${worker.name})`);
      if (support.kind === "whole") divisible = false;
    }
    return divisible;
  }
}
