// Control operations on an embedded engine, with vLLM's answers for trainers. The engine's worker executes them. Weights are
// loaded from a path, since there is no GPU to transfer them to.

import { AppError, errorText } from "../../core/base/errors.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { ControlAnswer, EngineOperation } from "../../core/rollout/operation.ts";

/** What an operation can do to an engine. */
export interface Controlled {
  /** Type of most weights, as GGUF names types: f16, q8_0. */
  readonly precision: string;
  readonly isSleeping: boolean;
  /**
   * Resolves when the weights of `path` serve, under `epoch`. @throws AppError: the old ones still serve;
   * `model_unreadable` if the path is to blame.
   */
  changeWeights(path: string, epoch: WeightEpoch): Promise<void>;
  /** Frees the KV of all requests, which is computed again after `wake`. @throws AppError. */
  sleep(): Promise<void>;
  wake(): Promise<void>;
  canary(): Promise<void>;
}

/** The settings that trainers check before they start (TRL's VLLMClient). */
function settingsOf({ precision }: Controlled): object {
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
/** The dtype that trainers send: floats, which are quantized when they are loaded. */
const QUANTIZED_DTYPE = "torch.float32";

/** Carries out an operation. Never rejects. */
export async function answerTo(
  engine: Controlled,
  operation: EngineOperation,
  nextEpoch: WeightEpoch,
): Promise<ControlAnswer> {
  try {
    const body = await resultOf(engine, operation, nextEpoch);
    if (body !== null) return { status: 200, body };
    return failure(404, "Not Found", "Not Found");
  } catch (error) {
    switch (error instanceof AppError ? error.code : null) {
      case "model_unreadable":
      case "invalid_field":
        return failure(400, "BadRequestError", errorText(error));
      case "worker_failed":
        return failure(503, "ServiceUnavailableError", errorText(error));
      default:
        return failure(500, "InternalServerError", errorText(error));
    }
  }
}

/** The body of the answer; null: an embedded engine does not have the operation. */
async function resultOf(
  engine: Controlled,
  operation: EngineOperation,
  nextEpoch: WeightEpoch,
): Promise<object | null> {
  switch (operation.kind) {
    case "load":
      await engine.changeWeights(operation.path, nextEpoch);
      return { results: [null] };
    case "update":
      return await update(engine, operation, nextEpoch);
    // Level 0 only stops scheduling in vLLM, which the rollout does itself.
    case "sleep":
      if (operation.level >= 1) await engine.sleep();
      return {};
    // Weights never leave memory here, so the tag "weights" alone wakes nothing.
    case "wake": {
      const { tags } = operation;
      if (tags.length === 0 || tags.includes("kv_cache")) await engine.wake();
      return {};
    }
    case "canary":
      if (operation.adapter !== null) throw invalid("an embedded engine serves no adapters");
      await engine.canary();
      return {};
    case "ask":
      if (operation.about === "world_size") return { world_size: 1 };
      if (operation.about === "is_asleep") return { is_sleeping: engine.isSleeping };
      return operation.about === "settings" ? settingsOf(engine) : null;
    // No KV outlives its weights.
    case "drop_cache":
      return operation.cache === "prefix" ? { success: true } : null;
    case "rpc": {
      const { method } = Object(operation.body);
      throw invalid(`method ${method}: an embedded engine has only reload_weights with a path`);
    }
    default:
      return null;
  }
}

/** A step of a weight update. Only `part` does something: there are no transfers to prepare. */
async function update(
  engine: Controlled,
  { step, body }: Extract<EngineOperation, { kind: "update" }>,
  nextEpoch: WeightEpoch,
): Promise<object | null> {
  if (step === "connect" || step === "start" || step === "finish") return {};
  if (step !== "part") return null;
  const { update_info: info, weight_dir: folder } = Object(body);
  const path: unknown = Object(info).weights_path ?? folder;
  if (typeof path !== "string" || path === "") {
    throw invalid("update_info.weights_path or weight_dir must name the weights: a path");
  }
  await engine.changeWeights(path, nextEpoch);
  return {};
}

function failure(status: number, type: string, message: string): ControlAnswer {
  return { status, body: { error: { message, type, param: null, code: status } } };
}

function invalid(problem: string): AppError {
  return new AppError("invalid_field", problem);
}
