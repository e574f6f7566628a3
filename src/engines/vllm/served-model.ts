// A vLLM server's model: its name and folder, read before any worker is opened, and whether the servers of a run report the
// same one. Nothing over HTTP gives a digest of the weights: a difference of name, context or type is a warning; another
// quantization is refused.

import { AppError } from "../../core/base/errors.ts";
import type { ListedModel } from "../kind.ts";
import { getOnce, type HttpAnswer, jsonIn, problemIn } from "./http.ts";
import { countOf } from "./stream-event.ts";

const MS_MAX = 5_000;
const STILL_LOADING = 503;

/** @throws AppError worker_failed, which names the URL: it is not there, is still loading, or lists no model. */
export async function servedModel(url: string, token: string | null): Promise<ListedModel> {
  const answer = await getOnce({ url, token }, "/v1/models", MS_MAX);
  const model = servedModelIn(answer);
  if (model !== null) return model;
  throw new AppError("worker_failed", `${url.replace(/\/+$/, "")} ${missing(answer)}`);
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
): (ListedModel & { readonly contextTokens: number | null }) | null {
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
    contextTokens: countOf(context),
  };
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
/** Rules for the servers of a pool that differ in a trait. null: the difference is reported. */
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
   * null: as the servers of the run before it; otherwise how it differs. Responses of a quantised model are of another
   * distribution, which a trainer could not tell apart.
   * @throws AppError invalid_config: there is a rule about what differs.
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
