// Deadlines that clients set for a group or an iteration, in time or output tokens. Past one, the responses that carry it
// end with what they have and the finish reason "deadline". They are checked ten times a second, also during a pause.

import type { Clock, Later } from "../core/base/clock.ts";
import type { Group, RolloutRequest } from "../core/request/buffer.ts";
import type { Sidecar, SidecarReader } from "./sidecar.ts";

export interface DeadlineNotice {
  readonly of: string;
  readonly requests: number;
  readonly seconds: number;
  readonly tokens: number;
  /** Name and length of the response with the most tokens. */
  readonly longest: string;
  /** Estimated time that the iteration would have taken beyond the deadline; null: unknown, or a group's deadline. */
  readonly savedS: number | null;
}

interface Scope {
  readonly startMs: number;
  msMax: number;
  tokensMax: number;
  /** Unfinished requests; `tokens` counts those of the finished ones. */
  readonly open: Set<RolloutRequest>;
  tokens: number;
}

const LOOK_MS = 100;

interface DeadlinesOptions {
  readonly sidecar: Sidecar;
  readonly clock: Clock;
  readonly every: Later;
  readonly ended: (notice: DeadlineNotice) => void;
}

export class Deadlines {
  readonly #options: DeadlinesOptions;
  /** Deadlines by group, or by the iteration's number. */
  readonly #scopes = new Map<Group | number, Scope>();
  /** Scopes of each request that is not finished. */
  readonly #of = new Map<RolloutRequest, (Group | number)[]>();
  readonly stop: () => void;
  readonly observer: SidecarReader = {
    joined: (request, { deadline }) => {
      if (deadline == null) return;
      const { group_s, group_tokens, iteration_s, iteration_tokens } = deadline;
      const { iteration } = this.#options.sidecar.rollout.meter;
      this.#add(request, request.group, { seconds: group_s, tokens: group_tokens });
      this.#add(request, iteration, { seconds: iteration_s, tokens: iteration_tokens });
    },
    finished: (request) => {
      for (const key of this.#of.get(request) ?? []) {
        const scope = this.#scopes.get(key);
        if (scope?.open.delete(request) !== true) continue;
        scope.tokens += request.response.length;
        // Of an iteration more may come.
        if (scope.open.size === 0 && typeof key !== "number") this.#scopes.delete(key);
      }
      this.#of.delete(request);
    },
  };

  constructor(options: DeadlinesOptions) {
    this.#options = options;
    this.stop = options.every(() => this.look(), LOOK_MS);
  }

  look(): void {
    const { sidecar, clock } = this.#options;
    const { iteration } = sidecar.rollout.meter;
    for (const [key, scope] of this.#scopes) {
      if (scope.open.size === 0 && key !== iteration) this.#scopes.delete(key);
      let { tokens } = scope;
      for (const { response } of scope.open) tokens += response.length;
      const ms = clock.nowMs() - scope.startMs;
      if (scope.open.size > 0 && (ms >= scope.msMax || tokens >= scope.tokensMax)) {
        this.#end(key, scope, { ms, tokens });
      }
    }
  }

  #add(
    request: RolloutRequest,
    key: Group | number,
    { seconds, tokens }: Record<"seconds" | "tokens", number | null | undefined>,
  ): void {
    if (seconds == null && tokens == null) return;
    const scope = this.#scopes.getOrInsertComputed(key, () => ({
      startMs: this.#options.clock.nowMs(),
      msMax: Number.POSITIVE_INFINITY,
      tokensMax: Number.POSITIVE_INFINITY,
      open: new Set(),
      tokens: 0,
    }));
    scope.open.add(request);
    this.#of.set(request, [...(this.#of.get(request) ?? []), key]);
    // The earliest of several counts.
    if (seconds != null) scope.msMax = Math.min(scope.msMax, seconds * 1000);
    if (tokens != null) scope.tokensMax = Math.min(scope.tokensMax, tokens);
  }

  #end(key: Group | number, scope: Scope, { ms, tokens }: { ms: number; tokens: number }): void {
    const { rollout } = this.#options.sidecar;
    const open = [...scope.open].sort((a, b) => b.response.length - a.response.length);
    const savedS = typeof key === "number" ? rollout.meter.progress().etaS : null;
    const [first] = open;
    for (const request of open) rollout.end(request, "deadline");
    rollout.meter.count("deadline_saved_s", savedS ?? 0);
    this.#options.ended({
      of: typeof key === "number" ? `iteration ${key}` : `group ${key.groupId}`,
      requests: open.length,
      seconds: ms / 1000,
      tokens,
      savedS,
      longest: `group ${first?.spec.groupId} response ${first?.spec.sampleIndex}: ${first?.response.length} tokens`,
    });
  }
}
