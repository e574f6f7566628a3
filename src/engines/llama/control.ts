// The control plane of an embedded engine in the shape of vLLM's HTTP routes (vllm serve, development mode).
// It parses requests and builds answers; the engine's worker executes them. Weights come as a
// path, since there is no device to transfer them to.

import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { ControlAnswer, ControlRequest } from "../../core/rollout/worker.ts";

/** The effects that a control request can have on an engine. */
export interface Controlled {
  /** Type of most weights, as GGUF names types: f16, q8_0. */
  readonly precision: string;
  readonly isSleeping: boolean;
  /**
   * Resolves when the weights of `path` serve, under `epoch`. @throws AppError: the old ones still do;
   * `model_unreadable` where the path is to blame.
   */
  changeWeights(path: string, epoch: WeightEpoch): Promise<void>;
  /** Frees the KV of all requests; they wait, and are recomputed after `wake`. @throws AppError. */
  sleep(): Promise<void>;
  wake(): Promise<void>;
}

type Route = (engine: Controlled, request: ControlRequest) => Promise<unknown> | unknown;

/** Routes that need nothing done: there are no transfers to prepare, and no KV outlives its weights. */
const NOTHING_TO_DO: Route = () => ({});

const ROUTES: Readonly<Record<string, Route>> = {
  "GET /get_world_size": () => ({ world_size: 1 }),
  "GET /is_sleeping": (engine) => ({ is_sleeping: engine.isSleeping }),
  // Requests are paused before they reach an engine.
  "GET /is_paused": () => ({ is_paused: false }),
  "GET /server_info": serverInfo,
  "POST /sleep": sleep,
  "POST /wake_up": wakeUp,
  "POST /reset_prefix_cache": () => ({ success: true }),
  "POST /init_weight_transfer_engine": NOTHING_TO_DO,
  "POST /start_weight_update": NOTHING_TO_DO,
  "POST /update_weights": updateWeights,
  "POST /finish_weight_update": NOTHING_TO_DO,
  "POST /collective_rpc": collectiveRpc,
};

/** The facts that trainers check before they start (TRL's VLLMClient). */
function serverInfo({ precision }: Controlled): unknown {
  return {
    vllm_config: {
      weight_transfer_config: { backend: "path" },
      model_config: {
        dtype: TORCH_DTYPE[precision] ?? QUANTIZED_DTYPE,
        logprobs_mode: "processed_logprobs",
      },
    },
  };
}

const TORCH_DTYPE: Readonly<Record<string, string>> = {
  f32: "torch.float32",
  f16: "torch.float16",
  bf16: "torch.bfloat16",
};
/** Weights come as floats, and are quantized when they are loaded. */
const QUANTIZED_DTYPE = "torch.float32";

/** Never rejects. */
export async function answerControl(
  engine: Controlled,
  request: ControlRequest,
): Promise<ControlAnswer> {
  const route = ROUTES[`${request.method} ${request.path}`];
  if (route === undefined) {
    const other = request.method === "GET" ? "POST" : "GET";
    return ROUTES[`${other} ${request.path}`] === undefined
      ? failure(404, "Not Found", "Not Found")
      : failure(405, "Method Not Allowed", "Method Not Allowed");
  }
  return await answered(() => route(engine, request));
}

/** Never rejects. `act` gives the answer's body. */
export async function answered(act: () => Promise<unknown> | unknown): Promise<ControlAnswer> {
  try {
    return { status: 200, body: await act() };
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    const isClients =
      error instanceof AppError && ["model_unreadable", "invalid_field"].includes(error.code);
    return isClients
      ? failure(400, "BadRequestError", message)
      : failure(500, "InternalServerError", message);
  }
}

function failure(status: number, type: string, message: string): ControlAnswer {
  return { status, body: { error: { message, type, param: null, code: status } } };
}

/** Level 0 only stops scheduling in vLLM, which the rollout does itself. */
async function sleep(engine: Controlled, { query }: ControlRequest): Promise<unknown> {
  const level = Number(query.level ?? "1");
  if (![0, 1, 2].includes(level)) throw invalid(`level is ${query.level}, not 0, 1 or 2`);
  if (level >= 1) await engine.sleep();
  return {};
}

/** Weights never leave memory here, so `tags=weights` alone wakes nothing. */
async function wakeUp(engine: Controlled, { query }: ControlRequest): Promise<unknown> {
  const tags = (query.tags ?? "").split(",").filter((tag) => tag !== "");
  if (tags.length === 0 || tags.includes("kv_cache")) await engine.wake();
  return {};
}

async function updateWeights(engine: Controlled, request: ControlRequest): Promise<unknown> {
  const info = field(request.body, "update_info");
  const path = field(info, "weights_path") ?? field(request.body, "weight_dir");
  if (typeof path !== "string" || path === "") {
    throw invalid("update_info.weights_path or weight_dir must name the weights: a path");
  }
  await engine.changeWeights(path, request.nextEpoch);
  return {};
}

async function collectiveRpc(engine: Controlled, request: ControlRequest): Promise<unknown> {
  const method = field(request.body, "method");
  if (method !== "reload_weights") {
    throw invalid(`method ${String(method)} is not one of an embedded engine: reload_weights`);
  }
  const path = field(field(request.body, "kwargs"), "weights_path");
  if (typeof path !== "string" || path === "") {
    throw invalid("kwargs.weights_path must name the weights: a path");
  }
  await engine.changeWeights(path, request.nextEpoch);
  return { results: [null] };
}

function field(body: unknown, name: string): unknown {
  return typeof body === "object" && body !== null ? Reflect.get(body, name) : undefined;
}

export function invalid(problem: string): AppError {
  return new AppError("invalid_field", problem);
}
