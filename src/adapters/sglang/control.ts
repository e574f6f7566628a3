// SGLang's control calls, as slime and miles send them, and the routes by which an engine describes itself: to a trainer, all
// engines together are one engine with the ranks of all.

import {
  askFirst,
  type Control,
  callOf,
  health,
  pause,
  resetPrefixCache,
  resume,
  sleep,
  sum,
  wakeUp,
  weightChecker,
  worldSizes,
} from "../../server/control/calls.ts";
import { get } from "../../server/control/routes.ts";
import { invalid, jsonResponse, optionalTextIn, type Row, textIn } from "../../server/route.ts";
import { type Done, reload, translated, verdict } from "../calls.ts";

const update = (done: Done) => verdict(done, { num_paused_requests: 0 });
const state = ({ isSuccess, status, message }: Done) =>
  jsonResponse({ status: isSuccess ? "ok" : "error", message }, isSuccess ? 200 : status);
const empty = ({ isSuccess, status, message }: Done) =>
  isSuccess ? new Response(null, { status: 200 }) : jsonResponse({ error: { message } }, status);

/** SGLang's answer of a handler that returns nothing: `null`, because slime reads every answer as JSON. */
const nothing = (done: Done) => (done.isSuccess ? jsonResponse(null) : empty(done));

/** Calls by which a trainer sends weights to the engines directly. */
const BROADCASTS = [
  "/init_weights_update_group",
  "/update_weights_from_distributed",
  "/update_weights_from_tensor",
  // miles opens and closes a broadcast by these, and sends the differences of two checkpoints by the last.
  "/begin_weight_update",
  "/end_weight_update",
  "/pull_weights",
] as const;

const healthRow = translated("/health_generate", "SGLang: as /health", empty, health);
const flush = translated("/flush_cache", "SGLang: drops cached KV", empty, (control) =>
  resetPrefixCache(control),
);

const modelInfoRow = (path: string, summary: string): Row<Control> =>
  get(path, summary, (control) => jsonResponse(modelInfo(control)));

export const SGLANG_CONTROL: readonly Row<Control>[] = [
  get(healthRow.path, healthRow.summary, healthRow.handle, { answers: [] }),
  get(flush.path, flush.summary, flush.handle, { answers: [] }),
  { ...flush, answers: [] },
  translated(
    "/pause_generation",
    "SGLang: stops generation: mode abort, retract or in_place",
    state,
    (control, body) => pause(control, pauseMode(body)),
  ),
  translated("/continue_generation", "SGLang: resumes after a pause", state, resume),
  translated(
    "/update_weights_from_disk",
    "SGLang: loads weights from a path into every engine",
    update,
    (control, body) =>
      reload(control, textIn(body, "model_path"), optionalTextIn(body, "weight_version")),
  ),
  get("/get_weight_version", "SGLang: what the current weights are called", ({ weights }) =>
    jsonResponse({ weight_version: weights.current }),
  ),
  translated(
    "/release_memory_occupation",
    "SGLang: frees the engines' memory",
    nothing,
    (control) => sleep(control, { level: 1, mode: "keep" }),
  ),
  translated("/resume_memory_occupation", "SGLang: takes it again", nothing, (control, body) =>
    wakeUp(control, tagsIn(body)),
  ),
  ...BROADCASTS.map((path) =>
    translated(path, "SGLang: refused, engines here load weights from a path", update, () => {
      const problem = "moves weights from process to process, which engines here cannot take";
      throw invalid(path.slice(1), `${problem}: save them and call /update_weights_from_disk`);
    }),
  ),
  ...["/destroy_weights_update_group", "/post_process_weights"].map((path) =>
    translated(path, "SGLang: nothing is to be done for it", update, () => jsonResponse(null)),
  ),
  translated("/weights_checker", "SGLang: compares weights", verdict, (control, body) =>
    weightChecker(control, { query: {}, body: body ?? {} }),
  ),
  get("/get_server_info", "SGLang: this server as one engine", async (control, { url }) =>
    jsonResponse(await serverInfo(control, url)),
  ),
  get(
    "/server_info",
    "An engine's configuration",
    async (control, exchange) => {
      // vLLM and SGLang have a route of this name, and slime and miles ask for it first: the answer has the fields of both.
      const { query: settings } = await callOf(exchange);
      const answer = await askFirst(control, { kind: "ask", about: "settings", settings });
      const info: unknown = answer.ok ? await answer.clone().json() : null;
      if (typeof info !== "object" || info === null || Array.isArray(info)) return answer;
      return jsonResponse({ ...info, ...(await serverInfo(control, exchange.url)) });
    },
    { query: { config_format: { type: "string", enum: ["text", "json"] } } },
  ),
  modelInfoRow("/get_model_info", "SGLang: the model and its weights' version"),
  modelInfoRow("/model_info", "As /get_model_info"),
  get("/get_load", "SGLang: requests that run and that wait", (control) =>
    jsonResponse(loads(control)),
  ),
  get("/v1/loads", "SGLang: as /get_load", (control) => jsonResponse({ loads: loads(control) })),
];

/** SGLang's pause mode: only `abort` ends running requests; in the others they continue after the pause. */
function pauseMode(body: unknown): "abort" | "keep" {
  const mode = optionalTextIn(body, "mode") ?? "abort";
  if (mode === "abort") return "abort";
  if (mode === "retract" || mode === "in_place") return "keep";
  throw invalid("mode", `is "${mode}"; it is one of abort, retract, in_place`);
}

function tagsIn(body: unknown): string[] {
  const tags: unknown = Object(body).tags ?? [];
  if (!Array.isArray(tags) || !tags.every((tag) => typeof tag === "string")) {
    throw invalid("tags", "is not a list of texts");
  }
  return tags;
}

/** The settings that slime compares with its own when it attaches to an engine (`_init_external`). */
async function serverInfo(control: Control, url: URL): Promise<object> {
  const sizes = await worldSizes(control);
  const capacities = control.pool.members.flatMap(({ worker }) => worker?.capacity ?? []);
  return {
    ...modelInfo(control),
    host: url.hostname,
    port: Number(url.port === "" ? 80 : url.port),
    tp_size: sum(sizes),
    dp_size: 1,
    pp_size: 1,
    ep_size: 1,
    nnodes: 1,
    node_rank: 0,
    base_gpu_id: 0,
    gpu_id_step: 1,
    enable_memory_saver: false,
    enable_return_routed_experts: control.sidecar.reportsExperts,
    max_running_requests: sum(capacities.map(({ slots }) => slots)),
    max_total_num_tokens: sum(capacities.map(({ kvTokens }) => kvTokens)),
    version: control.version,
  };
}

function modelInfo({ sidecar, weights, modelName }: Control): object {
  const { contextTokens } = sidecar;
  return {
    model_path: modelName,
    served_model_name: modelName,
    tokenizer_path: modelName,
    is_generation: true,
    weight_version: weights.current,
    context_length: Number.isFinite(contextTokens) ? contextTokens : null,
  };
}

/** The load, as if of one rank: running requests of all engines, and requests that wait in engines or here. */
function loads({ sidecar, pool }: Control): object[] {
  const { meter, unfinished } = sidecar.rollout;
  const stats = pool.members.map(({ workerId }) => meter.latest(workerId));
  const running = sum(stats.map((worker) => worker?.running ?? 0));
  return [
    {
      dp_rank: 0,
      num_reqs: unfinished,
      num_running_reqs: running,
      num_waiting_reqs: Math.max(0, unfinished - running),
      num_total_reqs: unfinished,
      num_tokens: sum(stats.map((worker) => worker?.kvTokensUsed ?? 0)),
    },
  ];
}
