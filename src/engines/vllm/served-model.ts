// A vLLM server's model: its name and folder, read before any worker is opened, and whether the servers of a run report the
// same one. Nothing over HTTP gives a digest of the weights: a difference of name, context or type is a warning; another
// quantization is refused.

import { AppError } from "../../core/base/errors.ts";
import type { ServedModel } from "../kind.ts";
import { wallTimers } from "./clock.ts";
import { type HttpAnswer, HttpClient, jsonIn, problemIn } from "./http.ts";
import { VLLM_LIMITS } from "./limits.ts";

const MS_MAX = 5_000;
const STILL_LOADING = 503;

/** @throws AppError worker_failed, which names the URL: it is not there, is still loading, or lists no model. */
export async function servedModel(url: string, token: string | null): Promise<ServedModel> {
  const { answerBytesMax } = VLLM_LIMITS;
  const client = new HttpClient({ url, apiKey: token, clock: wallTimers, answerBytesMax });
  try {
    const answer = await client.get("/v1/models", MS_MAX);
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

export interface ServedTraits {
  readonly model: string;
  readonly max_model_len: number;
  /** null: not reported (only in development mode). */
  readonly dtype: string | null;
  readonly quantization: string | null;
}

const TRAITS = ["model", "max_model_len", "dtype", "quantization"] as const;

export class ModelComparison {
  /** First known value of each trait. */
  readonly #first = new Map<(typeof TRAITS)[number], { url: string; value: string | number }>();

  /**
   * null: as the servers of the run before it; otherwise how it differs. Responses of a quantised model are of another
   * distribution, which a trainer could not tell apart.
   * @throws AppError invalid_config: its quantization is another one.
   */
  compare(url: string, traits: ServedTraits): string | null {
    const differences: string[] = [];
    let isRefused = false;
    for (const name of TRAITS) {
      const value = traits[name];
      const first = this.#first.get(name);
      if (first === undefined || first.url === url) {
        if (value !== null) this.#first.set(name, { url, value });
      } else if (value === null && name === "quantization") {
        differences.push(`${name} is not told (dev mode), of ${first.url} ${first.value}`);
      } else if (value !== null && value !== first.value) {
        isRefused ||= name === "quantization";
        differences.push(`${name} is ${value}, of ${first.url} ${first.value}`);
      }
    }
    if (differences.length === 0) return null;
    if (isRefused) {
      const problem = `${differences.join("; ")}: engines of one pool have the same precision`;
      throw new AppError("invalid_config", `${url}: ${problem}`);
    }
    return `it may have other weights than the servers before it: ${differences.join("; ")}`;
  }
}
