// The control calls of AReaL (areal/engine/vllm_ext/areal_vllm_server.py) and of SGLang (as slime and miles send them),
// answered by the routes of vLLM that do the same. Weights that a trainer broadcasts by a protocol of its own are passed
// on to the engines, which answer 404 where they do not know it.

import { AppError, errorText, InvalidFieldError } from "../../core/base/errors.ts";
import { statusOf } from "../http-errors.ts";
import { type Exchange, jsonResponse, type Route, type RouteInfo, reasonIn } from "../route.ts";

/** A route of vLLM's, by method and path. */
export type CallRoute = (route: string, exchange: Exchange) => Promise<Response>;

interface Call {
  readonly route: string;
  readonly query?: Readonly<Record<string, string | readonly string[]>>;
  readonly body?: unknown;
}

interface Dialect {
  readonly route: string;
  readonly summary: string;
  readonly call: (body: unknown) => Call;
  readonly answer: (done: Done) => Response;
}

interface Done {
  readonly isSuccess: boolean;
  readonly status: number;
  readonly message: string;
  readonly body: unknown;
}

const DONE = "done";
const PATH_CHARACTERS_MAX = 4096;

const verdict = ({ isSuccess, status, message }: Done) =>
  jsonResponse({ success: isSuccess, message }, isSuccess ? 200 : Math.max(400, status));
/** SGLang's answer to a weight update. */
const update = ({ isSuccess, status, message }: Done) =>
  jsonResponse(
    { success: isSuccess, message, num_paused_requests: 0 },
    isSuccess ? 200 : Math.max(400, status),
  );
const state = ({ isSuccess, status, message }: Done) =>
  jsonResponse({ status: isSuccess ? "ok" : "error", message }, isSuccess ? 200 : status);
const empty = ({ isSuccess, status, message }: Done) =>
  isSuccess ? new Response(null, { status: 200 }) : jsonResponse({ error: { message } }, status);

/** As SGLang where a handler returns nothing: slime reads every answer as JSON. */
const nothing = ({ isSuccess, status, message }: Done) =>
  isSuccess ? jsonResponse(null) : jsonResponse({ error: { message } }, status);

const same = (route: string) => (body: unknown) => ({ route, body: body ?? {} });

/** Weights that a trainer sends to the engines itself. */
const BROADCASTS = [
  "/init_weights_update_group",
  "/update_weights_from_distributed",
  "/update_weights_from_tensor",
  // miles opens and closes a broadcast by these, and sends the differences of two checkpoints by the last.
  "/begin_weight_update",
  "/end_weight_update",
  "/pull_weights",
] as const;

const DIALECTS: readonly Dialect[] = [
  {
    route: "POST /areal_pause_generation",
    summary: "AReaL: stops generation, and ends all requests as they stand",
    call: () => ({ route: "POST /pause", query: { mode: "abort" } }),
    answer: verdict,
  },
  {
    route: "POST /areal_continue_generation",
    summary: "AReaL: resumes after a pause",
    call: () => ({ route: "POST /resume" }),
    answer: verdict,
  },
  {
    route: "POST /areal_update_weights",
    summary: "AReaL: loads weights from a path into every engine",
    call: (body) => reload(textIn(body, "model_path")),
    answer: verdict,
  },
  {
    route: "POST /areal_update_weights_lora",
    summary: "AReaL: loads an adapter from a path into every engine",
    call: (body) => ({
      route: "POST /v1/load_lora_adapter",
      body: {
        lora_name: textIn(body, "lora_name"),
        lora_path: textIn(body, "lora_model_path"),
        load_inplace: true,
      },
    }),
    answer: verdict,
  },
  {
    route: "GET /health_generate",
    summary: "SGLang: as /health",
    call: () => ({ route: "GET /health" }),
    answer: empty,
  },
  ...(["GET", "POST"] as const).map(
    (method): Dialect => ({
      route: `${method} /flush_cache`,
      summary: "SGLang: drops cached KV",
      call: () => ({ route: "POST /reset_prefix_cache" }),
      answer: empty,
    }),
  ),
  {
    route: "POST /pause_generation",
    summary: "SGLang: stops generation: mode abort, retract or in_place",
    call: (body) => ({ route: "POST /pause", query: { mode: pauseMode(body) } }),
    answer: state,
  },
  {
    route: "POST /continue_generation",
    summary: "SGLang: resumes after a pause",
    call: () => ({ route: "POST /resume" }),
    answer: state,
  },
  {
    route: "POST /update_weights_from_disk",
    summary: "SGLang: loads weights from a path into every engine",
    call: (body) => reload(textIn(body, "model_path"), optionalTextIn(body, "weight_version")),
    answer: update,
  },
  {
    route: "GET /get_weight_version",
    summary: "SGLang: what the current weights are called",
    call: () => ({ route: "GET /weight_info" }),
    answer: ({ body, status }) => jsonResponse(body, status),
  },
  {
    route: "POST /release_memory_occupation",
    summary: "SGLang: frees the engines' memory",
    call: () => ({ route: "POST /sleep", query: { level: "1", mode: "keep" } }),
    answer: nothing,
  },
  {
    route: "POST /resume_memory_occupation",
    summary: "SGLang: takes it again",
    call: (body) => ({ route: "POST /wake_up", query: { tags: tagsIn(body) } }),
    answer: nothing,
  },
  ...BROADCASTS.map(
    (path): Dialect => ({
      route: `POST ${path}`,
      summary: "SGLang: refused, engines here load weights from a path",
      call: () => {
        const problem = "moves weights from process to process, which engines here cannot take";
        throw invalid(path.slice(1), `${problem}: save them and call /update_weights_from_disk`);
      },
      answer: update,
    }),
  ),
  ...(["/destroy_weights_update_group", "/post_process_weights"] as const).map(
    (path): Dialect => ({
      route: `POST ${path}`,
      summary: "SGLang: nothing is to be done for it",
      call: () => ({ route: "GET /liveness" }),
      answer: update,
    }),
  ),
  {
    route: "POST /weights_checker",
    summary: "SGLang: compares weights",
    call: same("POST /weight_checker"),
    answer: verdict,
  },
];

function infoOf({ route, summary, answer }: Dialect): RouteInfo {
  const schema = route.startsWith("GET") ? {} : { schema: { type: "object" } };
  return { ...partsOf(route), summary, ...schema, ...(answer === empty && { answers: [] }) };
}

export const DIALECT_ROUTES: readonly RouteInfo[] = DIALECTS.map(infoOf);

export function dialectRoutes(call: CallRoute): Route[] {
  return DIALECTS.map((dialect) => ({
    ...infoOf(dialect),
    handle: async (exchange) => dialect.answer(await doneBy(dialect, exchange, call)),
  }));
}

async function doneBy(dialect: Dialect, exchange: Exchange, call: CallRoute): Promise<Done> {
  try {
    const given = exchange.method === "GET" ? null : await exchange.json();
    const wanted = dialect.call(given);
    const response = await call(wanted.route, asCall(exchange, wanted));
    const message =
      (await reasonIn(response)) ?? (response.ok ? DONE : `status ${response.status}`);
    const isJson = response.headers.get("content-type")?.startsWith("application/json") ?? false;
    const body: unknown = isJson ? await response.json() : null;
    return { isSuccess: response.ok, status: response.status, message, body };
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    const message = errorText(error);
    return { isSuccess: false, status: statusOf(error), message, body: { error: { message } } };
  }
}

/** The exchange as if the client had sent this call. */
function asCall(exchange: Exchange, { route, query = {}, body = null }: Call): Exchange {
  const { method, path } = partsOf(route);
  const url = new URL(path, exchange.url);
  for (const [name, value] of Object.entries(query)) {
    for (const one of typeof value === "string" ? [value] : value)
      url.searchParams.append(name, one);
  }
  return {
    id: exchange.id,
    params: exchange.params,
    headers: exchange.headers,
    signal: exchange.signal,
    method,
    url,
    json: () => Promise.resolve(body),
    digest: () => exchange.digest(),
    release: () => exchange.release(),
    streams: () => exchange.streams(),
  };
}

function partsOf(route: string): { method: "GET" | "POST"; path: string } {
  const [method, path = ""] = route.split(" ");
  return { method: method === "GET" ? "GET" : "POST", path };
}

/** vLLM's own method (v1/worker/gpu_worker.py); embedded engines have it too. */
function reload(path: string, version: string | null = null): Call {
  return {
    route: "POST /collective_rpc",
    body: {
      method: "reload_weights",
      kwargs: { weights_path: path },
      ...(version !== null && { weight_version: version }),
    },
  };
}

/** What runs is ended only by `abort`: with the others it continues afterwards. */
function pauseMode(body: unknown): string {
  const mode = optionalTextIn(body, "mode") ?? "abort";
  if (mode === "abort") return "abort";
  if (mode === "retract" || mode === "in_place") return "keep";
  throw invalid("mode", `is "${mode}"; it is one of abort, retract, in_place`);
}

function tagsIn(body: unknown): readonly string[] {
  const tags: unknown = Object(body).tags ?? [];
  if (Array.isArray(tags) && tags.every((tag) => typeof tag === "string")) return tags;
  throw invalid("tags", "is not a list of texts");
}

function textIn(body: unknown, field: string): string {
  const value = optionalTextIn(body, field);
  if (value === null || value === "") throw invalid(field, "is not a text");
  return value;
}

function optionalTextIn(body: unknown, field: string): string | null {
  const value: unknown = Object(body)[field] ?? null;
  if (value === null) return null;
  if (typeof value !== "string") throw invalid(field, "is not a text");
  if (value.length <= PATH_CHARACTERS_MAX) return value;
  throw invalid(field, `has ${value.length} characters, more than ${PATH_CHARACTERS_MAX}`);
}

function invalid(field: string, problem: string): InvalidFieldError {
  return new InvalidFieldError({ where: "request", field, problem });
}
