// One engine as the checks ask it: whole answers by the vLLM client, which are returned and not judged. It uses text
// completions if the token-id endpoint is not available.

import { groupId, weightEpoch } from "../../core/base/ids.ts";
import type { SamplingParams } from "../../core/request/request.ts";
import { wallTimers } from "../../engines/vllm/clock.ts";
import { ENDPOINT_PATHS, type Endpoint } from "../../engines/vllm/dialect.ts";
import { HttpClient } from "../../engines/vllm/http.ts";
import { VLLM_LIMITS } from "../../engines/vllm/limits.ts";
import { errorMessage } from "../../engines/vllm/stream-event.ts";
import { trialRequest } from "../../engines/vllm/trial.ts";
import { LOGPROBS_MAX_DEFAULT, VLLM_DIALECT } from "../../engines/vllm/vllm.ts";
import { type WholeAnswer, wholeAnswer } from "../../engines/vllm/whole-answer.ts";

export interface Answer {
  /** 0: no answer. */
  readonly status: number;
  readonly text: string;
  /** The text, parsed where it is JSON. */
  readonly body: unknown;
}

export interface CompletionRequest {
  readonly tokens: readonly number[];
  /** Tokens at the end of `tokens` that earlier requests have made. Default: 0. */
  readonly offset?: number;
  readonly maxTokens: number;
  readonly temperature: number;
  readonly seed?: number;
  readonly stopTokenIds?: readonly number[];
  /** Most likely tokens to report at each position. Default: none. */
  readonly top?: number;
  readonly cacheSalt?: string;
  readonly priority?: number;
  /** The response's group and its place in it, by which the project's own plugin knows what to draft from. */
  readonly sibling?: { readonly group: string; readonly sample: number };
}

export interface Made {
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
  /** Logprobs of the most likely tokens of each position, highest first. */
  readonly top: readonly (readonly number[])[];
  readonly finish: string | null;
  /** null: not reported. */
  readonly cachedTokens: number | null;
}

/** Logprobs of the tokens at some places of a text, and of the likeliest tokens there, highest first. */
export type Scored = Pick<Made, "logprobs" | "top">;

export type Outcome =
  | { readonly kind: "made"; readonly made: Made }
  | { readonly kind: "refused"; readonly status: number; readonly message: string };

const TIMEOUT_MS = 120_000;
const MESSAGE_CHARACTERS = 300;
const SALT_DEFAULT = "foretoken-doctor";
/** The plugin takes a request without an epoch as one of no run, and keeps the drafts of the run that it serves. */
const NO_EPOCH = weightEpoch(-1);

export class Engine {
  readonly #client: HttpClient;
  /** Set once it is known. */
  model: string | null = null;
  endpoint: Endpoint = "generate";

  constructor(url: string, token: string | null) {
    const answerBytesMax = VLLM_LIMITS.reportBytesMax;
    this.#client = new HttpClient({ url, apiKey: token, clock: wallTimers, answerBytesMax });
  }

  /** Without a slash at its end. */
  get url(): string {
    return this.#client.url;
  }

  /** Never rejects. */
  async call(method: "GET" | "POST", path: string, body: unknown = null): Promise<Answer> {
    return await this.#answer(method, path, body === null ? null : JSON.stringify(body));
  }

  /** Ends at `maxTokens` or a stop token, and at nothing else. */
  async generate(request: CompletionRequest): Promise<Outcome> {
    const { maxTokens: tokensMax, temperature, stopTokenIds = [], top = 0 } = request;
    const sampling = { tokensMax, temperature, stopTokenIds, topLogprobs: top };
    const { status, text } = await this.#generated(request, sampling);
    if (status !== 200) return { kind: "refused", status, message: messageOf(text) };
    const [event] = read(text, top).events;
    if (event?.kind !== "piece" || (event.tokens[0] ?? -1) < 0) {
      return { kind: "refused", status, message: "its answer holds no token ids" };
    }
    const { tokens, logprobs, alternatives, finishReason: finish, usage } = event;
    if (tokens.length !== logprobs.length) {
      return { kind: "refused", status, message: "its answer holds no logprobs" };
    }
    const tops = alternatives.map((row) => row.filter((_, i) => i % 2 === 1));
    const cachedTokens = usage?.cachedTokens ?? null;
    return { kind: "made", made: { tokens, logprobs, top: tops, finish, cachedTokens } };
  }

  /**
   * The model's logprobs of `tokens` from place `from` on, in one pass and without sampling, so that neither drafts
   * nor the sampler take part. At temperature 1. null: the engine does not report them.
   */
  async score(tokens: readonly number[], from: number, top: number): Promise<Scored | null> {
    const engineFields = { prompt_logprobs: top };
    const sampling = { tokensMax: 1, temperature: 1, engineFields };
    const { status, text } = await this.#generated({ tokens }, sampling);
    if (status !== 200) return null;
    const { logprobs: listed } = read(text, 0).report;
    const places = listed === null ? [] : listOf(JSON.parse(Buffer.from(listed).toString()));
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

  async #generated(
    request: Omit<CompletionRequest, "maxTokens" | "temperature">,
    sampling: Partial<SamplingParams> & Pick<SamplingParams, "tokensMax">,
  ): Promise<Answer> {
    const { offset = 0, seed = 0, cacheSalt = SALT_DEFAULT, priority = 0, sibling } = request;
    const ask = trialRequest(cacheSalt, {
      name: `ft-doctor-${crypto.randomUUID()}`,
      prompt: Int32Array.from(request.tokens),
      offset,
      sampling,
      draw: { hi: seed, lo: seed },
      // The request's KV stays in a pool, where the next one finds it.
      isLast: false,
      priority,
      epoch: NO_EPOCH,
      draft:
        sibling === undefined
          ? null
          : { groupId: groupId(sibling.group), sampleIndex: sibling.sample },
      form: "whole",
    });
    const { endpoint } = this;
    const body = VLLM_DIALECT.body(ask, {
      endpoint,
      // A server that is given no name takes the one model that it has.
      model: this.model ?? "",
      hasPriorities: request.priority !== undefined,
      logprobsMax: LOGPROBS_MAX_DEFAULT,
      hasStreamSettings: false,
      hasSeeds: request.seed !== undefined,
    });
    return await this.#answer("POST", ENDPOINT_PATHS[endpoint], body);
  }

  async #answer(method: "GET" | "POST", path: string, body: string | null): Promise<Answer> {
    const ask = () => this.#client.answer({ method, path, body }, TIMEOUT_MS);
    let answer = await ask();
    // A kept connection may be closed by the server while the request is on its way.
    if (answer.kind === "unreachable" && answer.isRefused !== true) answer = await ask();
    if (answer.kind === "unreachable") {
      return { status: 0, text: answer.message, body: answer.message };
    }
    return { status: answer.status, text: answer.body, body: parsed(answer.body) };
  }
}

function read(text: string, top: number): WholeAnswer {
  return wholeAnswer(Buffer.from(text), (data) => VLLM_DIALECT.read(data, top));
}

/** A server's error message. */
export function messageOf(text: string): string {
  return errorMessage(text).slice(0, MESSAGE_CHARACTERS);
}

export function fieldOf(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null ? Reflect.get(value, name) : undefined;
}

/** A field within fields; undefined: it is not there. */
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
