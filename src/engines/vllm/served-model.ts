// A vLLM server's model: its name and folder, read before any worker is opened, and whether the servers of a run report the
// same. Over HTTP there is no digest of the weights: another name, context or type is a warning; another quantization is
// refused.

import { AppError } from "../../core/base/errors.ts";
import type { ListedModel } from "../kind.ts";
import { getOnce, type HttpAnswer, jsonIn, problemIn } from "./http.ts";
import { countOf } from "./stream-event.ts";

const MS_MAX = 5_000;
const STILL_LOADING = 503;

type ServedModel = ListedModel & { readonly contextTokens: number | null };

/** Reads a server's model. @throws AppError worker_failed, unauthorized: as `modelIn`. */
export async function servedModel(url: string, token: string | null): Promise<ListedModel> {
  return modelIn(url.replace(/\/+$/, ""), await getOnce({ url, token }, "/v1/models", MS_MAX));
}

/**
 * The first model of /v1/models that is no adapter. @throws AppError with the URL: unauthorized; worker_failed: it is
 * unreachable, still loading, or lists no model.
 */
export function modelIn(url: string, answer: HttpAnswer): ServedModel {
  if (answer.kind === "answer" && answer.status === 401) {
    throw new AppError("unauthorized", `${url} refuses the API key (--worker-token)`);
  }
  const data = jsonIn(answer)?.data;
  const models = (Array.isArray(data) ? data : []).map((entry) => Object(entry));
  // Adapters (LoRA) have a parent.
  const model = models.find(({ parent }) => parent == null) ?? models[0];
  const { id, root, max_model_len: context } = Object(model);
  if (typeof id !== "string") throw new AppError("worker_failed", `${url} ${missing(answer)}`);
  const folder = typeof root === "string" ? root : null;
  return { id, root: folder, contextTokens: countOf(context) };
}

function missing(answer: HttpAnswer): string {
  if (answer.kind === "unreachable") return `does not answer: ${answer.message}`;
  if (answer.status === STILL_LOADING) return `is still loading (${STILL_LOADING})`;
  if (answer.status === 200) return "lists no model under /v1/models";
  return `answers /v1/models with ${problemIn(answer)}`;
}

export interface ServedTraits {
  readonly model: string;
  readonly max_model_len: number;
  /** null: not reported (only in development mode). */
  readonly dtype: string | null;
  readonly quantization: string | null;
  /** Absent or null: not reported, or the server shares no KV. */
  readonly disable_lookahead_block_hashes?: string | null;
}

type Trait = keyof ServedTraits;
/** Traits in which the servers of a pool must not differ, in words; null: a difference is only reported. */
const RULES: Readonly<Record<Trait, string | null>> = {
  model: null,
  max_model_len: null,
  dtype: null,
  quantization: "have the same precision",
  disable_lookahead_block_hashes: "name blocks of shared KV in the same way",
};

export class ModelComparison {
  /** First known value of each trait. */
  readonly #first = new Map<Trait, { url: string; value: string | number }>();

  /**
   * How the server differs from those before it in the run; null: it does not.
   * @throws AppError invalid_config: it must not differ so. A quantised model, for instance, has another distribution,
   * which a trainer could not tell apart.
   */
  compare(url: string, traits: ServedTraits): string | null {
    const differences: string[] = [];
    let rule: string | null = null;
    for (const name of Object.keys(RULES) as Trait[]) {
      const value = traits[name] ?? null;
      const first = this.#first.get(name);
      if (first === undefined || first.url === url) {
        if (value !== null) this.#first.set(name, { url, value });
      } else if (value === null && name === "quantization") {
        differences.push(`${name} is not told (dev mode), of ${first.url} ${first.value}`);
      } else if (value !== null && value !== first.value) {
        rule ??= RULES[name];
        differences.push(`${name} is ${value}, of ${first.url} ${first.value}`);
      }
    }
    if (differences.length === 0) return null;
    if (rule !== null) {
      const problem = `${differences.join("; ")}: engines of one pool ${rule}`;
      throw new AppError("invalid_config", `${url}: ${problem}`);
    }
    return `it may have other weights than the servers before it: ${differences.join("; ")}`;
  }
}
