// SGLang's control calls, as slime and miles send them.

import type { Dialect, Done } from "../../server/control/dialects.ts";
import { jsonResponse } from "../../server/route.ts";
import { invalid, optionalTextIn, reload, textIn, verdict } from "../calls.ts";

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

export const SGLANG_CONTROL: readonly Dialect[] = [
  {
    route: "GET /health_generate",
    summary: "SGLang: as /health",
    call: () => ({ route: "GET /health" }),
    answer: empty,
    answers: [],
  },
  ...(["GET", "POST"] as const).map(
    (method): Dialect => ({
      route: `${method} /flush_cache`,
      summary: "SGLang: drops cached KV",
      call: () => ({ route: "POST /reset_prefix_cache" }),
      answer: empty,
      answers: [],
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

/** Only `abort` ends running requests; in the other modes they continue after the pause. */
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
