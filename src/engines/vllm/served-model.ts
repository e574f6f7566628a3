// Reads the name and the folder of a vLLM server's model, before any worker is opened on it.

import { AppError } from "../../core/base/errors.ts";
import type { ServedModel } from "../kind.ts";
import { wallTimers } from "./clock.ts";
import { HttpClient } from "./http.ts";
import { VLLM_LIMITS } from "./limits.ts";
import { errorMessage } from "./stream-event.ts";

const MS_MAX = 5_000;
const STILL_LOADING = 503;

/** @throws AppError worker_failed, which names the URL: it is not there, is still loading, or lists no model. */
export async function servedModel(url: string, token: string | null): Promise<ServedModel> {
  const client = new HttpClient({
    url,
    apiKey: token,
    clock: wallTimers,
    answerBytesMax: VLLM_LIMITS.answerBytesMax,
  });
  try {
    const call = { method: "GET" as const, path: "/v1/models", body: null };
    const answer = await client.answer(call, MS_MAX);
    const model = answer.kind === "answer" && answer.status === 200 ? modelIn(answer.body) : null;
    if (model !== null) return model;
    const problem =
      answer.kind === "unreachable"
        ? `does not answer: ${answer.message}`
        : answer.status === STILL_LOADING
          ? `is still loading (${STILL_LOADING})`
          : answer.status === 200
            ? "lists no model under /v1/models"
            : `answers ${answer.status} to /v1/models: ${errorMessage(answer.body).slice(0, 200)}`;
    throw new AppError("worker_failed", `${client.url} ${problem}`);
  } finally {
    client.close();
  }
}

interface Listed {
  readonly id?: unknown;
  readonly root?: unknown;
  readonly parent?: unknown;
}

/** The first one that is no adapter. null: the body is no list of models. */
function modelIn(text: string): ServedModel | null {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return null;
  }
  const data: unknown =
    typeof body === "object" && body !== null ? Reflect.get(body, "data") : null;
  if (!Array.isArray(data)) return null;
  const models = data.filter((one): one is Listed => typeof one === "object" && one !== null);
  const model = models.find(({ parent }) => parent == null) ?? models[0];
  if (typeof model?.id !== "string") return null;
  return { id: model.id, root: typeof model.root === "string" ? model.root : null };
}
