// One server as the checks ask it: by the worker's own probe and trial requests, whose answers are returned and not judged.

import { groupId, weightEpoch } from "../../core/base/ids.ts";
import type { SamplingParams } from "../../core/request/request.ts";
import { wallTimers } from "../../engines/vllm/clock.ts";
import type { FoundEngine, RequestForm } from "../../engines/vllm/dialect.ts";
import { HttpClient } from "../../engines/vllm/http.ts";
import { VLLM_LIMITS } from "../../engines/vllm/limits.ts";
import { readMetrics } from "../../engines/vllm/metrics.ts";
import { findEngine } from "../../engines/vllm/open.ts";
import {
  type Made,
  type TrialServer,
  type Tried,
  trialRequest,
  tryTokens,
} from "../../engines/vllm/trial.ts";
import { LOGPROBS_MAX_DEFAULT, VLLM_DIALECT } from "../../engines/vllm/vllm.ts";

export interface CompletionRequest {
  readonly tokens: readonly number[];
  /** How many of the last `tokens` earlier requests have generated. Default: 0. */
  readonly offset?: number;
  readonly maxTokens: number;
  readonly temperature: number;
  readonly seed?: number;
  readonly stopTokenIds?: readonly number[];
  /** Number of most likely tokens to report at each position. Default: none. */
  readonly top?: number;
  readonly cacheSalt?: string;
  /** Group of the response and its index there, by which the project's own plugin knows what to draft from. */
  readonly sibling?: { readonly group: string; readonly sample: number };
}

/** Logprobs of the tokens at some positions of a text, and of the likeliest tokens there, highest first. */
export type Scored = Pick<Made, "logprobs" | "top">;

const TIMEOUT_MS = 120_000;
const SALT_DEFAULT = "foretoken-doctor";
/** Epoch of requests without a run: for the plugin they are of no run, and it keeps the drafts of the run that it serves. */
const NO_EPOCH = weightEpoch(-1);
/** Form of requests to a vLLM server that was not probed: given no name, it takes the one model that it has. */
const FORM_DEFAULT: RequestForm = {
  endpoint: "generate",
  model: "",
  hasPriorities: false,
  logprobsMax: LOGPROBS_MAX_DEFAULT,
  hasStreamSettings: false,
  hasSeeds: true,
};

export class Engine {
  readonly #client: HttpClient;
  #found: FoundEngine | null;

  /** `found`: result of an earlier probe. */
  constructor(url: string, token: string | null, found: FoundEngine | null = null) {
    const answerBytesMax = VLLM_LIMITS.reportBytesMax;
    this.#client = new HttpClient({ url, apiKey: token, clock: wallTimers, answerBytesMax });
    this.#found = found;
  }

  /** The server's URL without a final slash. */
  get url(): string {
    return this.#client.url;
  }

  /** Result of the last probe; null: it was not probed, or the probe failed. */
  get found(): FoundEngine | null {
    return this.#found;
  }

  get server(): TrialServer {
    const { dialect, capabilities: form } = this.#found ?? {
      dialect: VLLM_DIALECT,
      capabilities: FORM_DEFAULT,
    };
    return {
      client: this.#client,
      clock: wallTimers,
      limits: VLLM_LIMITS,
      cacheSalt: SALT_DEFAULT,
      dialect,
      form,
    };
  }

  /** Probes the server as a worker does. @throws AppError: it cannot be used as a worker. */
  async probe(): Promise<FoundEngine> {
    this.#found = await findEngine(this.server);
    return this.#found;
  }

  /** Sends a request; never rejects. `body`: JSON as text, or a value. Status 0: no answer. */
  async call(method: "GET" | "POST", path: string, body: unknown = null) {
    const json = body === null || typeof body === "string" ? body : JSON.stringify(body);
    const call = { method, path, body: json };
    const answer = await twice(() => this.#client.answer(call, TIMEOUT_MS));
    if (answer.kind === "unreachable") {
      return { status: 0, text: answer.message, body: answer.message };
    }
    return { status: answer.status, text: answer.body, body: parsed(answer.body) };
  }

  /** Draft tokens that the server has counted since its start. Both 0: it does not draft, or does not report it. */
  async drafts(): Promise<{ readonly drafted: number; readonly accepted: number }> {
    const { counters } = readMetrics((await this.call("GET", "/metrics")).text);
    return { drafted: counters.draftedTokens, accepted: counters.acceptedTokens };
  }

  /** Token ids of a text or chat, the object `input` as JSON; empty: the server has no tokenizer. */
  async tokenize(input: string): Promise<number[]> {
    const own = { model: this.server.form.model || null, add_special_tokens: false };
    const request = `${JSON.stringify(own).slice(0, -1)},${input.trimStart().slice(1)}`;
    const { body } = await this.call("POST", "/tokenize", request);
    return listOf(fieldOf(body, "tokens")).filter((id) => typeof id === "number");
  }

  /** Generates one response, which ends at `maxTokens` or a stop token only. */
  async generate(request: CompletionRequest): Promise<Tried> {
    const { maxTokens: tokensMax, temperature, stopTokenIds = [], top: topLogprobs = 0 } = request;
    return await this.#try(request, { tokensMax, temperature, stopTokenIds, topLogprobs });
  }

  /**
   * The model's logprobs, at temperature 1, of `tokens` from index `from` on, in one pass and without sampling, so that
   * neither drafts nor the sampler take part. null: the engine does not report them.
   */
  async score(tokens: readonly number[], from: number, top: number): Promise<Scored | null> {
    const engineFields = { prompt_logprobs: top };
    const tried = await this.#try({ tokens }, { tokensMax: 1, temperature: 1, engineFields });
    const listed = tried.kind === "made" ? tried.report?.logprobs : null;
    const places = listed == null ? [] : listOf(JSON.parse(Buffer.from(listed).toString()));
    if (places.length !== tokens.length) return null;
    const logprobs: number[] = [];
    const tops: number[][] = [];
    for (let place = from; place < tokens.length; place += 1) {
      const entries: unknown = places[place];
      const logprob = pathOf(entries, String(tokens[place]), "logprob");
      if (typeof logprob !== "number") return null;
      logprobs.push(logprob);
      const likeliest = Object.values(Object(entries)).map((entry) => fieldOf(entry, "logprob"));
      tops.push(likeliest.filter((one) => typeof one === "number").toSorted((a, b) => b - a));
    }
    return { logprobs, top: tops };
  }

  async #try(
    request: Omit<CompletionRequest, "maxTokens" | "temperature">,
    sampling: Partial<SamplingParams> & Pick<SamplingParams, "tokensMax">,
  ): Promise<Tried> {
    const { offset = 0, seed = 0, cacheSalt = SALT_DEFAULT, sibling } = request;
    const { server } = this;
    const form = { ...server.form, hasSeeds: server.form.hasSeeds && request.seed !== undefined };
    const ask = trialRequest(cacheSalt, {
      name: `ft-doctor-${crypto.randomUUID()}`,
      prompt: Int32Array.from(request.tokens),
      offset,
      sampling,
      draw: { hi: seed, lo: seed },
      // The request's KV stays in a pool, where the next one finds it.
      isLast: false,
      priority: 0,
      epoch: NO_EPOCH,
      draft:
        sibling === undefined
          ? null
          : { groupId: groupId(sibling.group), sampleIndex: sibling.sample },
      form: "whole",
    });
    return await twice(() => tryTokens({ ...server, form }, ask, { msMax: TIMEOUT_MS }));
  }
}

/** Retries once: a server may close a kept-alive connection while the request is on its way. */
async function twice<T extends { kind: string; isRefused?: boolean }>(
  ask: () => Promise<T>,
): Promise<T> {
  const answer = await ask();
  const isLost = answer.kind === "unreachable" && answer.isRefused !== true;
  return isLost ? await ask() : answer;
}

export function fieldOf(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null ? Reflect.get(value, name) : undefined;
}

/** A nested field, by the names on its path; undefined: it is absent. */
export function pathOf(value: unknown, ...names: string[]): unknown {
  return names.reduce(fieldOf, value);
}

export function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
