// GET, POST and DELETE /workers, as vllm-router and SGLang's gateway have them: engines come and go while the server
// runs. Before anything is known of the model, the addresses that come are kept for the pool that opens them.

import { createHash } from "node:crypto";
import { assert } from "../core/base/assert.ts";
import { AppError } from "../core/base/errors.ts";
import type { Member, WorkerSource } from "../fleet/engines.ts";
import type { WorkerPool } from "../fleet/pool.ts";
import { isLoopbackHost } from "./access.ts";
import {
  bound,
  decoded,
  type Exchange,
  invalid,
  jsonResponse,
  type Route,
  type RouteInfo,
  type Row,
  textIn,
} from "./route.ts";

export interface EngineAddress {
  readonly url: string;
  /** The token that the client gave for it; null: none. Tokens of the server's own do not go where clients say. */
  readonly token: string | null;
}

export interface WorkerRegistryOptions {
  /** Makes the source of an engine. @throws AppError usage: no engine has such a URL. */
  readonly sourceOf: (engine: EngineAddress) => WorkerSource;
  readonly hasFixed: boolean;
  /** Time for a removed worker to end its running requests. */
  readonly drainMs: number;
}

/** Worker type of an engine for prefill and decode; SGLang's gateway has types for one of them alone, too. */
const REGULAR = "regular";
const WORKERS_MAX = 1024;
const URL_CHARACTERS_MAX = 2048;
/** Length of an id: 128 bits in hexadecimal. */
const ID_CHARACTERS = 32;

export class WorkerRegistry {
  readonly #options: WorkerRegistryOptions;
  readonly #early = new Map<string, EngineAddress & { readonly source: WorkerSource }>();
  /** API tokens that clients gave; engines named at the start have none here. */
  readonly #tokens = new WeakMap<WorkerSource, string | null>();
  readonly #first = Promise.withResolvers<void>();
  #pool: WorkerPool | null = null;
  #hasChanged = false;

  constructor(options: WorkerRegistryOptions) {
    this.#options = options;
  }

  get first(): Promise<void> {
    return this.#first.promise;
  }

  /** Engines that clients named before there was a pool. */
  get early(): readonly EngineAddress[] {
    return [...this.#early.values()];
  }

  /** Workers join this pool from now on, those that came before it at once. */
  attach(pool: WorkerPool): void {
    assert(this.#pool === null, "a registry has one pool");
    this.#pool = pool;
    for (const { source } of this.#early.values()) pool.join(source);
  }

  routes(): Route[] {
    return bound(WORKER_ROUTES, this);
  }

  /** All engines were named at the start. */
  get #isFixed(): boolean {
    return this.#options.hasFixed && !this.#hasChanged;
  }

  list(exchange: Exchange): Response {
    const workers = this.#listed(exchange);
    return jsonResponse(this.#isFixed ? { workers } : { workers, total: workers.length });
  }

  /** Answers with the workers' URLs, as sglang-router's first releases and miles' own router do. */
  addresses(exchange: Exchange): Response {
    return jsonResponse({ urls: this.#listed(exchange).map(({ url }) => url) });
  }

  /**
   * If all engines were named at the start, this server stands for them: slime sends to each worker that is listed
   * what is meant for all of them. It is listed beside SGLang's engines too: an abort at an engine ends a chunk there,
   * which continues, and only an abort here ends the response.
   */
  #listed({ url: { origin } }: Exchange): readonly { readonly url: string }[] {
    const own = { url: origin, worker_type: REGULAR, is_healthy: true };
    if (this.#isFixed) return [own];
    const isAborted = this.#pool?.members.some(({ worker }) => worker?.takesAborts === true);
    return isAborted ? [...this.#entries(), own] : this.#entries();
  }

  #entries() {
    if (this.#pool !== null) return this.#pool.members.map(entryOf);
    const early = { state: "down", reason: "not opened yet", worker: null } as const;
    return [...this.#early.values()].map(({ source }) => entryOf({ ...early, source }));
  }

  async add(exchange: Exchange): Promise<Response> {
    const fields = await askedFor(exchange);
    const url = textIn(fields, "url", URL_CHARACTERS_MAX).replace(/\/+$/, "");
    const type = fields.worker_type ?? REGULAR;
    const token = keyIn(fields.api_key ?? null);
    const engine = { url, token };
    const source = this.#sourceOf(engine);
    if (type !== REGULAR) {
      const problem = `is ${JSON.stringify(type)}, not ${REGULAR}: engines here prefill and decode what they run`;
      throw invalid("worker_type", problem);
    }
    // slime's engine class registers the engine that it was given at the router that it was given: both are this server.
    if (isSame(new URL(url), exchange.url)) return jsonResponse(accepted(idOf(url), url));
    const early = this.#pool === null ? this.#early.get(url) : undefined;
    const member = this.#pool?.members.find((one) => one.source.name === url);
    const before = member?.source ?? early?.source;
    const isRenewed = before && token !== null && this.#tokens.get(before) !== token;
    // One that is about to leave is not there: by joining it stays.
    const isThere = before !== undefined && member?.state !== "leaving";
    if (isThere && !isRenewed) return jsonResponse(accepted(idOf(url), url));
    if (!isThere && this.#entries().length >= WORKERS_MAX) {
      throw new AppError("queue_full", `${WORKERS_MAX} workers are the server's maximum`);
    }
    if (!isThere) this.#hasChanged = true;
    // A connection keeps its token. The old one ends at once, as two would count the engine's room twice.
    if (member !== undefined && isRenewed) this.#pool?.leave(member.workerId, 0);
    if (this.#pool === null) {
      this.#early.set(url, { ...engine, source });
      this.#first.resolve();
    } else this.#pool.join(source);
    return jsonResponse(accepted(idOf(url), url), 202);
  }

  #sourceOf(engine: EngineAddress): WorkerSource {
    try {
      const source = this.#options.sourceOf(engine);
      this.#tokens.set(source, engine.token);
      return source;
    } catch (error) {
      if (error instanceof AppError && error.code === "usage") throw invalid("url", error.message);
      throw error;
    }
  }

  async one(exchange: Exchange): Promise<Response> {
    return jsonResponse(await this.#found(exchange));
  }

  async remove(exchange: Exchange): Promise<Response> {
    const { id, url } = await this.#found(exchange);
    this.#hasChanged = true;
    if (this.#pool === null) this.#early.delete(url);
    const member = this.#pool?.members.find(
      ({ source, state }) => source.name === url && state !== "leaving",
    );
    // The answer does not wait for what the worker still runs.
    if (member !== undefined) void this.#pool?.leave(member.workerId, this.#options.drainMs);
    return jsonResponse(accepted(id, url), 202);
  }

  async #found(exchange: Exchange) {
    const idOrUrl = exchange.params.id ?? (await askedFor(exchange)).url;
    const name = typeof idOrUrl === "string" ? decoded(idOrUrl).replace(/\/+$/, "") : "";
    if (name === "") throw invalid("url", "is required, as ?url=URL or in the body");
    const entry = this.#entries().find((one) => one.id === name || one.url === name);
    if (entry !== undefined) return entry;
    throw new AppError("not_found", `there is no worker ${name}`);
  }
}

/** A worker's id, derived from its URL: the same whenever it comes, so that clients can remove it by its id. */
function idOf(url: string): string {
  return createHash("sha256").update(url).digest("hex").slice(0, ID_CHARACTERS);
}

type Listed = Pick<Member, "source" | "state" | "reason" | "worker">;

function entryOf({ source, state, reason, worker }: Listed) {
  return {
    id: idOf(source.name),
    url: source.name,
    worker_type: REGULAR,
    is_healthy: state === "ready",
    state,
    reason,
    slots: worker?.capacity.slots ?? null,
  };
}

/** Whether a URL is this server's own: as the client has called it, or by another name of the loopback interface. */
function isSame(url: URL, own: URL): boolean {
  const isNamed = url.hostname === own.hostname;
  const isHere = isLoopbackHost(url.hostname) && isLoopbackHost(own.hostname);
  return url.port === own.port && (isNamed || isHere);
}

function accepted(id: string, url: string) {
  return { status: "accepted", worker_id: id, url, location: `/workers/${id}` };
}

/** The worker named by the query (sglang-router to 0.2.1) or by the body. */
async function askedFor(exchange: Exchange): Promise<Readonly<Record<string, unknown>>> {
  const { searchParams: query } = exchange.url;
  return query.has("url") ? Object.fromEntries(query) : Object(await exchange.json());
}

/** A token that can stand in a header. */
function keyIn(key: unknown): string | null {
  if (key === null || (typeof key === "string" && /^[\x21-\x7e]{1,4096}$/.test(key))) return key;
  throw invalid("api_key", "is not a text of 1 to 4096 visible ASCII characters");
}

const URL_FIELD = { url: { type: "string", minLength: 1 } } as const;
const WORKER_FIELDS = {
  ...URL_FIELD,
  worker_type: { enum: [REGULAR] },
  api_key: { type: "string", minLength: 1 },
} as const;
const WORKER = { type: "object", properties: WORKER_FIELDS, required: ["url"] } as const;

type More = Pick<RouteInfo, "schema" | "query">;

function row(
  method: RouteInfo["method"],
  path: string,
  summary: string,
  call: "list" | "addresses" | "add" | "one" | "remove",
  more: More = {},
): Row<WorkerRegistry> {
  const handle = (registry: WorkerRegistry, exchange: Exchange) => registry[call](exchange);
  return { method, path, summary, handle, ...more };
}

const LISTED = "The engines, or this server alone where all were named at its start";
const URLS = "The URLs of /workers (miles, sglang-router to 0.2.1)";

export const WORKER_ROUTES: readonly Row<WorkerRegistry>[] = [
  row("GET", "/workers", LISTED, "list"),
  row("POST", "/workers", "Adds an engine", "add", { schema: WORKER }),
  row("GET", "/workers/:id", "An engine, by its id or URL", "one"),
  row("DELETE", "/workers/:id", "Removes an engine when what it runs has ended", "remove"),
  row("DELETE", "/workers", "The same, by ?url=", "remove", { query: URL_FIELD }),
  row("GET", "/list_workers", URLS, "addresses"),
  row("POST", "/add_worker", "As POST /workers", "add", { query: WORKER_FIELDS }),
  row("POST", "/remove_worker", "As DELETE /workers", "remove", { query: URL_FIELD }),
];
