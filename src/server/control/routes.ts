// The table of the control plane's routes: vLLM's and our own. Bodies are passed on to the engines; fields that they are
// known to accept are described.

import { present } from "../../core/base/assert.ts";
import {
  bound,
  type Exchange,
  jsonResponse,
  nameOf,
  type Route,
  type RouteInfo,
  type Row,
} from "../route.ts";
import { HEALTH_ROUTES, VERSION_ROUTE, versionAnswer } from "../starting.ts";
import {
  abortRequests,
  asSglangServer,
  type Bounded,
  bothServerInfos,
  broadcast,
  type ControlOptions,
  collectiveRpc,
  health,
  initWeightTransfer,
  isSleeping,
  pause,
  renameWeights,
  resetPrefixCache,
  resume,
  sleep,
  wakeUp,
  weightChecker,
  workersOf,
  worldSize,
} from "./calls.ts";
import { dialectRoutes } from "./dialects.ts";
import { CallBound } from "./fan-out.ts";
import { loads, modelInfo } from "./sglang-info.ts";

const FLAG = { type: "boolean" } as const;
const TEXT = { type: "string", minLength: 1 } as const;
const ANY = { type: "object" } as const;
const choice = (...names: string[]) => ({ type: "string", enum: names });
const fields = (properties: Record<string, object>, ...required: string[]) => ({
  type: "object",
  properties,
  required,
});

const INIT = fields({ init_info: fields({ rank_offset: { type: "integer" } }) }, "init_info");
const VERSION = fields({ new_version: TEXT }, "new_version");
const LORA = fields(
  { lora_name: TEXT, lora_path: TEXT, load_inplace: FLAG },
  "lora_name",
  "lora_path",
);
const UNLORA = fields({ lora_name: TEXT }, "lora_name");
const RPC = fields({ method: TEXT, args: { type: "array" }, kwargs: ANY }, "method");
const IDS = fields({ request_ids: { type: "array", items: { type: "string" } } }, "request_ids");

const MODE = choice("abort", "wait", "keep");
const TAGS = { type: "array", items: { type: "string" } } as const;
const PAUSE = { mode: MODE, clear_cache: FLAG };
const SLEEP = { level: { type: "integer", enum: [1, 2] }, mode: MODE };
const WAKE = { tags: TAGS };
const RESET = { reset_running_requests: FLAG, reset_external: FLAG };

type Handle = Row<Bounded>["handle"];
type More = Omit<RouteInfo, "method" | "path" | "summary">;

const get = (path: string, summary: string, handle: Handle, more: More = {}): Row<Bounded> => {
  return { method: "GET", path, summary, handle, ...more };
};
const post = (path: string, summary: string, handle: Handle, more: More = {}): Row<Bounded> => {
  return { ...get(path, summary, handle, more), method: "POST" };
};
/** The answer has no body. */
const EMPTY = { answers: [] };

const start: Handle = ({ weights }, exchange) => weights.start(exchange);
const update: Handle = ({ weights }, exchange) => weights.update(exchange);
const finish: Handle = ({ weights }, exchange) => weights.finish(exchange);
const whole: Handle = ({ weights }, exchange) => weights.whole(exchange);
const adapter: Handle = ({ weights }, exchange) => weights.adapter(exchange);
const info: Handle = (parts) => jsonResponse(modelInfo(parts));

const ROWS: readonly Row<Bounded>[] = [
  ...HEALTH_ROUTES.map((route) => ({ ...route, handle: health })),
  { ...VERSION_ROUTE, handle: ({ version }) => jsonResponse(versionAnswer(version)) },
  get(
    "/liveness",
    "Whether the server answers (prime-rl)",
    () => new Response(null, { status: 200 }),
    EMPTY,
  ),
  post(
    "/finish_session",
    "SkyRL: a session is over",
    async ({ sidecar }, exchange) => {
      const { session_id: name } = Object(await exchange.json());
      const ended = typeof name === "string" ? sidecar.endSession(name) : 0;
      return jsonResponse({ ended });
    },
    { schema: ANY },
  ),
  get("/get_server_info", "SGLang: this server as one engine", async (parts, { url }) =>
    jsonResponse(await asSglangServer(parts, url)),
  ),
  get("/get_model_info", "SGLang: the model and its weights' version", info),
  get("/model_info", "As /get_model_info", info),
  get("/get_load", "SGLang: requests that run and that wait", (parts) =>
    jsonResponse(loads(parts)),
  ),
  get("/v1/loads", "SGLang: as /get_load", (parts) => jsonResponse({ loads: loads(parts) })),
  get("/load", "Unfinished requests", (parts) =>
    jsonResponse({ server_load: parts.sidecar.rollout.unfinished }),
  ),
  get("/server_info", "An engine's configuration", bothServerInfos, {
    query: { config_format: choice("text", "json") },
  }),
  get("/get_world_size", "Ranks of all engines", worldSize, { query: { include_dp: FLAG } }),
  get("/weight_info", "What the current weights are called", (parts) =>
    jsonResponse({ weight_version: parts.weights.current }),
  ),
  post(
    "/init_weight_transfer_engine",
    "Connects every engine to the trainer's weight transfer",
    initWeightTransfer,
    {
      schema: INIT,
    },
  ),
  post("/start_weight_update", "Begins a weight update", start, { schema: ANY }),
  post("/update_weights", "Part of a weight update, or a complete one", update, { schema: ANY }),
  post("/finish_weight_update", "Ends a weight update: the next weight epoch", finish, {
    schema: ANY,
  }),
  post(
    "/abort_weight_update",
    "Gives up the update that is open or under way: the epoch stays",
    ({ weights }) => weights.abort(),
  ),
  post(
    "/init_broadcaster",
    "prime-rl: connects every engine to its broadcast",
    initWeightTransfer,
    { schema: ANY },
  ),
  post(
    "/areal_init_weights_update_group",
    "AReaL: connects every engine to its broadcast",
    initWeightTransfer,
    {
      schema: ANY,
    },
  ),
  post("/areal_set_update_weight_meta", "AReaL: what will be broadcast", broadcast, {
    schema: ANY,
  }),
  post("/areal_set_update_weight_meta_lora", "AReaL: what will be broadcast", broadcast, {
    schema: ANY,
  }),
  post("/areal_update_weights_xccl", "AReaL: weights by broadcast", whole, { schema: ANY }),
  post("/areal_update_weights_lora_xccl", "AReaL: an adapter by broadcast", whole, { schema: ANY }),
  post("/update_weight_version", "Names the current weights", renameWeights, { schema: VERSION }),
  post("/shutdown_weight_transfer_engine", "Ends the weight transfer", broadcast),
  post("/start_draft_weight_update", "Begins an update of draft weights", start, { schema: ANY }),
  post("/weight_checker", "Compares weights", weightChecker, { schema: ANY }),
  post("/v1/load_lora_adapter", "Loads an adapter into every engine", adapter, { schema: LORA }),
  post("/v1/unload_lora_adapter", "Drops an adapter from every engine", adapter, {
    schema: UNLORA,
  }),
  post("/load_lora_adapter", "As /v1/load_lora_adapter", adapter, { schema: LORA }),
  post("/unload_lora_adapter", "As /v1/unload_lora_adapter", adapter, { schema: UNLORA }),
  post("/collective_rpc", "Calls a method on every engine's workers", collectiveRpc, {
    schema: RPC,
  }),
  post("/pause", "Stops generation: mode abort, wait or keep", pause, { query: PAUSE }),
  post("/resume", "Resumes after a pause", resume),
  get("/is_paused", "Whether generation is paused", (parts) =>
    jsonResponse(parts.weights.pauseState()),
  ),
  post("/sleep", "Frees the engines' memory", sleep, { query: SLEEP }),
  post("/wake_up", "Takes it again", wakeUp, { query: WAKE }),
  get("/is_sleeping", "Whether an engine sleeps", isSleeping),
  post("/reset_prefix_cache", "Drops cached KV", resetPrefixCache, { query: RESET }),
  post("/reset_mm_cache", "Drops cached multimodal inputs", broadcast),
  post("/reset_encoder_cache", "Drops cached encoder outputs", broadcast),
  post("/abort_requests", "Gives up requests by their ids", abortRequests, { schema: IDS }),
  post("/inference/v1/abort_requests", "As /abort_requests", abortRequests, { schema: IDS }),
  get("/foretoken/workers", "Every worker and its state", (parts) =>
    jsonResponse({ workers: workersOf(parts) }),
  ),
];

export const CONTROL_ROUTES: readonly RouteInfo[] = ROWS;

export function controlRoutes(options: ControlOptions): Route[] {
  const own = bound(ROWS, { ...options, calls: new CallBound() });
  const byName = new Map(own.map((route) => [nameOf(route), route]));
  const call = async (name: string, exchange: Exchange) =>
    await present(byName.get(name), `${name} is a route`).handle(exchange);
  return [...own, ...dialectRoutes(options.dialects, call)];
}
