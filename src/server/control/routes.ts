// The table of the control plane's routes: vLLM's and our own. Bodies are passed on to the engines; fields that they are
// known to accept are described.

import * as v from "valibot";
import { CANARY } from "../../fleet/agreement.ts";
import { CallBound } from "../../fleet/engines.ts";
import { checked, number } from "../openai/fields.ts";
import { bound, invalid, jsonResponse, type Route, type RouteInfo, type Row } from "../route.ts";
import { HEALTH_ROUTES, VERSION_ROUTE, versionAnswer } from "../starting.ts";
import {
  abortRequests,
  broadcast,
  type Control,
  type ControlAct,
  type ControlCall,
  type ControlOptions,
  callOf,
  changeAdapter,
  collectiveRpc,
  connectTrainer,
  health,
  isSleeping,
  modeIn,
  pause,
  RPC_PATH,
  renameWeights,
  resetPrefixCache,
  resume,
  sleep,
  updated,
  wakeUp,
  weightChecker,
  workersOf,
  worldSize,
} from "./calls.ts";

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
export const LORA = fields(
  { lora_name: TEXT, lora_path: TEXT, load_inplace: FLAG },
  "lora_name",
  "lora_path",
);
export const UNLORA = fields({ lora_name: TEXT }, "lora_name");
const RPC = fields({ method: TEXT, args: { type: "array" }, kwargs: ANY }, "method");
const IDS = fields({ request_ids: { type: "array", items: { type: "string" } } }, "request_ids");

const TOLERANCE_MAX = 100;
const EXPECTED = v.strictObject({ ...CANARY.entries, tolerance: number(0, TOLERANCE_MAX) });

const MODE = choice("abort", "wait", "keep");
const TAGS = { type: "array", items: { type: "string" } } as const;
const PAUSE = { mode: MODE, clear_cache: FLAG };
const SLEEP = { level: { type: "integer", enum: [1, 2] }, mode: MODE };
const RESET = { reset_running_requests: FLAG, reset_external: FLAG };

type More = Omit<RouteInfo, "method" | "path" | "summary">;
type Handle = Row<Control>["handle"];

export const get = (path: string, summary: string, handle: Handle, more: More = {}) =>
  ({ method: "GET", path, summary, ...more, handle }) satisfies Row<Control>;

/** A POST row whose call, with its query and body, is carried out by `act`. */
export const call = (path: string, summary: string, act: ControlAct, more: More = {}) =>
  ({
    method: "POST",
    path,
    summary,
    ...more,
    handle: async (control, exchange) => await act(control, await callOf(exchange)),
  }) satisfies Row<Control>;

/** A row like `call`'s, whose body has fields that only engines know. */
export const passed = (path: string, summary: string, act: ControlAct): Row<Control> =>
  call(path, summary, act, { schema: ANY });

export const loadAdapter = changeAdapter("load");
export const unloadAdapter = changeAdapter("unload");

type Caches = "multimodal" | "encoder";
const dropped =
  (cache: Caches): ControlAct =>
  async (control, { query: settings }) =>
    await broadcast(control, { kind: "drop_cache", cache, settings });

function levelIn({ level = "1" }: ControlCall["query"]): 0 | 1 | 2 {
  const valid = ([0, 1, 2] as const).find((number) => String(number) === level);
  if (valid !== undefined) return valid;
  throw invalid("level", `is ${level}; it is one of 0, 1, 2`);
}

const slept: ControlAct = async (control, { query }) => {
  const mode = query.mode === undefined ? null : modeIn(query.mode, "keep");
  return await sleep(control, { level: levelIn(query), mode });
};

const woken: ControlAct = async (control, { query: { tags = "" } }) =>
  await wakeUp(control, tags.split(",").filter(Boolean));

export const CONTROL_ROUTES: readonly Row<Control>[] = [
  ...HEALTH_ROUTES.map((route) => ({ ...route, handle: health })),
  { ...VERSION_ROUTE, handle: ({ version }) => jsonResponse(versionAnswer(version)) },
  get("/load", "Unfinished requests", ({ sidecar }) =>
    jsonResponse({ server_load: sidecar.rollout.unfinished }),
  ),
  {
    ...call("/get_world_size", "Ranks of all engines", worldSize, { query: { include_dp: FLAG } }),
    method: "GET",
  },
  get("/weight_info", "What the current weights are called", ({ weights }) =>
    jsonResponse({ weight_version: weights.current }),
  ),
  call(
    "/init_weight_transfer_engine",
    "Connects every engine to the trainer's weight transfer",
    (control, { body }) => connectTrainer(control, { kind: "update", step: "connect", body }),
    { schema: INIT },
  ),
  passed("/start_weight_update", "Begins a weight update", (control, { body }) =>
    updated(control, "start", { kind: "update", step: "start", body }),
  ),
  passed("/update_weights", "Part of a weight update, or a complete one", (control, { body }) =>
    updated(control, "part", { kind: "update", step: "part", body }),
  ),
  passed(
    "/finish_weight_update",
    "Ends a weight update: the next weight epoch",
    (control, { body }) => updated(control, "finish", { kind: "update", step: "finish", body }),
  ),
  {
    method: "POST",
    path: "/abort_weight_update",
    summary: "Gives up the update that is open or under way: the epoch stays",
    handle: async ({ weights }) =>
      jsonResponse({ status: "aborted", reopened: await weights.abort() }),
  },
  call(
    "/v1/weights/expect",
    "The canary of the next weights as the trainer computes it: engines that differ by more are fenced",
    async ({ weights }, { body }) => {
      const { tolerance, ...canary } = checked(EXPECTED, body);
      await weights.expect(canary, tolerance ?? undefined);
      return jsonResponse({ status: "expected" });
    },
    { schema: EXPECTED },
  ),
  get(
    "/v1/weights/canary",
    "The canary of the current weights: prompt, tokens, logprobs",
    ({ pool }) => jsonResponse(pool.agreement.reference),
  ),
  call("/update_weight_version", "Names the current weights", renameWeights, { schema: VERSION }),
  call("/shutdown_weight_transfer_engine", "Ends the weight transfer", (control, { body }) =>
    broadcast(control, { kind: "update", step: "disconnect", body }),
  ),
  passed("/start_draft_weight_update", "Begins an update of draft weights", (control, { body }) =>
    updated(control, "start", { kind: "update", step: "start_draft", body }),
  ),
  passed("/weight_checker", "Compares weights", weightChecker),
  call("/v1/load_lora_adapter", "Loads an adapter into every engine", loadAdapter, {
    schema: LORA,
  }),
  call("/v1/unload_lora_adapter", "Drops an adapter from every engine", unloadAdapter, {
    schema: UNLORA,
  }),
  call(RPC_PATH, "Calls a method on every engine's workers", collectiveRpc, { schema: RPC }),
  {
    method: "POST",
    path: "/pause",
    summary: "Stops generation: mode abort, wait or keep",
    query: PAUSE,
    handle: (control, { url: { searchParams: query } }) =>
      pause(control, modeIn(query.get("mode"), "abort"), query.get("clear_cache") !== "false"),
  },
  { method: "POST", path: "/resume", summary: "Resumes after a pause", handle: resume },
  get("/is_paused", "Whether generation is paused", ({ weights }) =>
    jsonResponse(weights.pauseState()),
  ),
  call("/sleep", "Frees the engines' memory", slept, { query: SLEEP }),
  call("/wake_up", "Takes it again", woken, { query: { tags: TAGS } }),
  { ...call("/is_sleeping", "Whether an engine sleeps", isSleeping), method: "GET" },
  call(
    "/reset_prefix_cache",
    "Drops cached KV",
    (control, { query }) => resetPrefixCache(control, query),
    { query: RESET },
  ),
  call("/reset_mm_cache", "Drops cached multimodal inputs", dropped("multimodal")),
  call("/reset_encoder_cache", "Drops cached encoder outputs", dropped("encoder")),
  call("/abort_requests", "Gives up requests by their ids", abortRequests(true), { schema: IDS }),
  call("/inference/v1/abort_requests", "As /abort_requests", abortRequests(false), { schema: IDS }),
  get("/foretoken/workers", "Every worker and its state", (control) =>
    jsonResponse({ workers: workersOf(control) }),
  ),
];

/** Concurrent calls that ask engines and change no weights, at most: more than all ranks of a large trainer make. */
const CALLS_MAX = 1024;

export function controlRoutes(options: ControlOptions, more: readonly Row<Control>[]): Route[] {
  return bound([...CONTROL_ROUTES, ...more], {
    ...options,
    calls: new CallBound(CALLS_MAX, "to engines are under way"),
  });
}
