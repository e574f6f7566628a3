// Calls of the data plane to a route that only some engines have (a chat rendered or parsed with the engine's own
// tokenizer, template and parsers). Any engine that has the route can answer: none of it depends on weights.

import { AppError, RefusedError } from "../core/base/errors.ts";
import type { ControlAnswer } from "../core/rollout/worker.ts";
import { type AnswerLimits, answerOf } from "../pool/engine-answer.ts";
import { connected, type WorkerPool } from "../pool/pool.ts";
import { fieldOf } from "./route.ts";
import type { Sidecar } from "./sidecar.ts";

export interface EngineCall {
  readonly path: string;
  readonly body: unknown;
  /** Aborts when the answer is no longer needed. */
  readonly signal: AbortSignal;
}

/** missing: no engine has the route; `reasons` names each and what it said. */
export type EngineReply =
  | { readonly kind: "answer"; readonly body: unknown }
  | { readonly kind: "missing"; readonly reasons: string };

export interface EngineCalls {
  /** @throws RefusedError: an engine refused the request; AppError no_worker, worker_failed. */
  post(call: EngineCall): Promise<EngineReply>;
}

/** Statuses of an engine that lacks the route: unknown (404), another method's (405), disabled (403). */
const MISSING: ReadonlySet<number> = new Set([403, 404, 405, 501]);
/** Time for milliseconds of CPU work on a server that may be starved for seconds. */
const MS_MAX = 60_000;

export class PoolCalls implements EngineCalls {
  readonly #pool: WorkerPool;
  readonly #sidecar: Sidecar;
  readonly #later: AnswerLimits["later"];
  /** The engine that is asked first; it takes turns. */
  #turn = 0;

  constructor(parts: { pool: WorkerPool; sidecar: Sidecar; later: AnswerLimits["later"] }) {
    this.#pool = parts.pool;
    this.#sidecar = parts.sidecar;
    this.#later = parts.later;
  }

  async post({ path, body, signal }: EngineCall): Promise<EngineReply> {
    const engines = connected(this.#pool.members).filter(({ member }) => member.state === "ready");
    if (engines.length === 0) throw new AppError("no_worker", "no worker is in service");
    this.#turn += 1;
    const missing: string[] = [];
    const broken: string[] = [];
    for (let i = 0; i < engines.length; i += 1) {
      const engine = engines[(this.#turn + i) % engines.length];
      if (engine === undefined) continue;
      const { epoch: nextEpoch } = this.#sidecar.rollout;
      const answer = await answerOf(
        engine.worker,
        { method: "POST", path, query: {}, body, nextEpoch },
        { msMax: MS_MAX, later: this.#later, sidecar: this.#sidecar, signal },
      );
      if (answer.status === 200) return { kind: "answer", body: answer.body };
      if (signal.aborted) throw new AppError("interrupted", "the client disconnected");
      const said = `${engine.member.source.name}: ${messageOf(answer)}`;
      if (MISSING.has(answer.status)) missing.push(said);
      else if (answer.status < 500)
        throw new RefusedError({ status: answer.status, message: said });
      else broken.push(said);
    }
    if (broken.length === 0) return { kind: "missing", reasons: missing.join("; ") };
    throw new AppError("worker_failed", `${path}: ${broken.join("; ")}`);
  }
}

function messageOf({ status, body }: ControlAnswer): string {
  const error = fieldOf(body, "error");
  const text = fieldOf(error, "message") ?? error ?? fieldOf(body, "detail");
  return `HTTP ${status}: ${typeof text === "string" ? text : JSON.stringify(body)}`;
}
