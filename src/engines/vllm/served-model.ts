// Reads the name and the folder of a vLLM server's model, before any worker is opened on it.

import { AppError } from "../../core/base/errors.ts";
import type { ServedModel } from "../kind.ts";
import { jsonIn, problemIn } from "./answers.ts";
import { wallTimers } from "./clock.ts";
import { type HttpAnswer, HttpClient } from "./http.ts";
import { VLLM_LIMITS } from "./limits.ts";

const MS_MAX = 5_000;
const STILL_LOADING = 503;

/** @throws AppError worker_failed, which names the URL: it is not there, is still loading, or lists no model. */
export async function servedModel(url: string, token: string | null): Promise<ServedModel> {
  const { answerBytesMax } = VLLM_LIMITS;
  const client = new HttpClient({ url, apiKey: token, clock: wallTimers, answerBytesMax });
  try {
    const answer = await client.answer({ method: "GET", path: "/v1/models", body: null }, MS_MAX);
    const model = servedModelIn(answer);
    if (model !== null) return model;
    throw new AppError("worker_failed", `${client.url} ${missing(answer)}`);
  } finally {
    client.close();
  }
}

function missing(answer: HttpAnswer): string {
  if (answer.kind === "unreachable") return `does not answer: ${answer.message}`;
  if (answer.status === STILL_LOADING) return `is still loading (${STILL_LOADING})`;
  if (answer.status === 200) return "lists no model under /v1/models";
  return `answers /v1/models with ${problemIn(answer)}`;
}

/** The first one of /v1/models that is no adapter. null: there is none. */
export function servedModelIn(
  answer: HttpAnswer,
): (ServedModel & { readonly contextTokens: number | null }) | null {
  const data = jsonIn(answer)?.data;
  if (!Array.isArray(data)) return null;
  const models = data.map((one): Readonly<Record<string, unknown>> => Object(one));
  // Adapters (LoRA) have a parent.
  const model = models.find(({ parent }) => parent == null) ?? models[0];
  const { id, root, max_model_len: context } = model ?? {};
  if (typeof id !== "string") return null;
  return {
    id,
    root: typeof root === "string" ? root : null,
    contextTokens: typeof context === "number" ? context : null,
  };
}
