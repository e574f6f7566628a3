// The answers of an embedded engine to control operations: vLLM's, for trainers. Weights are loaded from a path, since there is
// no GPU to transfer them to.

import { AppError, errorText } from "../../core/base/errors.ts";
import type { SamplingParams } from "../../core/request/request.ts";
import { outOfBounds, problemOf } from "../../core/request/sampling-bounds.ts";
import type { ControlAnswer, EngineOperation } from "../../core/rollout/operation.ts";
import type { SamplingSupport } from "../../core/rollout/worker.ts";

const TORCH_DTYPE: Readonly<Record<string, string>> = {
  f32: "torch.float32",
  f16: "torch.float16",
  bf16: "torch.bfloat16",
};
/** The dtype that trainers send: floats, which are quantized when they are loaded. */
const QUANTIZED_DTYPE = "torch.float32";

/** The settings that trainers check before they start (TRL's VLLMClient). `precision`: type of most weights, as GGUF names it. */
export function settingsOf(precision: string): object {
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

/** The path in a part of a weight update. @throws AppError invalid_field: there is none. */
export function pathIn({ body }: Extract<EngineOperation, { kind: "update" }>): string {
  const { update_info: info, weight_dir: folder } = Object(body);
  const path: unknown = Object(info).weights_path ?? folder;
  if (typeof path === "string" && path !== "") return path;
  throw invalid("update_info.weights_path or weight_dir must name the weights: a path");
}

export function invalid(problem: string): AppError {
  return new AppError("invalid_field", problem);
}

/** The answer with the body of an operation; null: an embedded engine does not have the operation. Never rejects. */
export async function answered(result: Promise<object | null>): Promise<ControlAnswer> {
  try {
    const body = await result;
    return body === null ? failure(404, "Not Found", "Not Found") : { status: 200, body };
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

function failure(status: number, type: string, message: string): ControlAnswer {
  return { status, body: { error: { message, type, param: null, code: status } } };
}

/** The engine supports every parameter within its range, and no fields of other engines' APIs. */
export function embeddedSupport(sampling: SamplingParams, vocabularySize: number): SamplingSupport {
  const refused = (field: string, reason: string) => ({ kind: "refused", field, reason }) as const;
  if ((sampling.adapter ?? null) !== null) {
    return refused("model", "is an adapter, which an embedded engine does not serve");
  }
  const [field] = Object.keys(sampling.engineFields ?? {});
  if (field !== undefined) return refused(field, "is not supported by the embedded engine");
  const wrong = outOfBounds(sampling, { vocabularySize });
  return wrong === null ? { kind: "divided" } : refused(wrong.field, problemOf(wrong));
}
