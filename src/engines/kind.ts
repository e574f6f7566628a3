// The interface of a kind of engine: its URLs, the function that opens a worker on one, and the requests that a server
// answers before that. Each engine's folder has its rows (kind.ts); kinds.ts lists them.

import type { Clock } from "../core/base/clock.ts";
import type { RequestId } from "../core/base/ids.ts";
import type { EngineWorker, OpenOptions } from "../core/rollout/worker.ts";

/** An event of an engine for the operator's log. None is an error of the rollout. */
export type EngineNotice =
  | { readonly kind: "retry"; readonly requestId: RequestId; readonly reason: string }
  | { readonly kind: "warning"; readonly message: string };

export interface EngineAccess {
  /** Bearer token that is sent to the engine; null: none. */
  readonly token: string | null;
  readonly clock: Clock;
  readonly notice: (notice: EngineNotice) => void;
}

export interface ListedModel {
  readonly id: string;
  /** The model's folder on the server's machine, or its name; null: not reported. */
  readonly root: string | null;
}

/** An inference server that names its model. */
export interface EngineServer {
  /** The engine's HTTP address, from its URL. */
  readonly httpUrl: (url: string) => string;
  /** @throws AppError worker_failed, which names the URL: it is unreachable, still loading, or lists no model. */
  readonly servedModel: (url: string, token: string | null) => Promise<ListedModel>;
  /** The engine may draft by itself, so its sampling is tested before it serves. */
  readonly mayDraft: boolean;
}

export interface EngineKind {
  /** Schemes of its URLs, without "://". */
  readonly schemes: readonly string[];
  /** The form of its URLs in messages: "http://HOST:PORT". */
  readonly form: string;
  /** null: it names no model. Then `--model` or `--tokenizer` gives the vocabulary, and text is encoded here. */
  readonly server: EngineServer | null;
  /**
   * Returns the function that opens a worker on the engine, and may be called again for the next worker. It throws
   * AppError worker_failed while the engine does not answer, and is then called again; the log names the URL.
   */
  readonly opener: (
    url: string,
    access: EngineAccess,
  ) => (options: OpenOptions) => Promise<EngineWorker>;
}
