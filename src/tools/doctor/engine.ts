// One server as the checks ask it: by the worker's own probe and trial requests, whose answers are returned and not judged.

import { groupId, weightEpoch } from "../../core/base/ids.ts";
import type { SamplingParams } from "../../core/request/request.ts";
import { wallTimers } from "../../engines/vllm/clock.ts";
import type { FoundEngine, RequestForm } from "../../engines/vllm/dialect.ts";
import { HttpClient } from "../../engines/vllm/http.ts";
import { VLLM_LIMITS } from "../../engines/vllm/limits.ts";
import { findEngine } from "../../engines/vllm/open.ts";
import {
  type Made,
  type TrialServer,
  type Tried,
  trialRequest,
  tryTokens,
} from "../../engines/vllm/trial.ts";
import { LOGPROBS_MAX_DEFAULT, VLLM_DIALECT } from "../../engines/vllm/vllm.ts";

export interface CheckAnswer {
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
  /** The response's group and its place in it, by which the project's own plugin knows what to draft from. */
  readonly sibling?: { readonly group: string; readonly sample: number };
}

/** Logprobs of the tokens at some places of a text, and of the likeliest tokens there, highest first. */
export type Scored = Pick<Made, "logprobs" | "top">;

const TIMEOUT_MS = 120_000;
const SALT_DEFAULT = "foretoken-doctor";
/** The plugin takes a request without an epoch as one of no run, and keeps the drafts of the run that it serves. */
const NO_EPOCH = weightEpoch(-1);
/** A vLLM server that was not probed: given no name, it takes the one model that it has. */
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

  /** `found`: what a probe has found before. */
  constructor(url: string, token: string | null, found: FoundEngine | null = null) {
    const answerBytesMax = VLLM_LIMITS.reportBytesMax;
    this.#client = new HttpClient({ url, apiKey: token, clock: wallTimers, answerBytesMax });
    this.#found = found;
  }

  /** Without a slash at its end. */
  get url(): string {
    return this.#client.url;
  }

  /** null: it was not probed, or not with success. */
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

  /** Probes it as a worker does. @throws AppError: it cannot be a worker's. */
  async probe(): Promise<FoundEngine> {
    this.#found = await findEngine(this.server);
    return this.#found;
  }

  /** Never rejects. */
  async call(method: "GET" | "POST", path: string, body: unknown = null): Promise<CheckAnswer> {
    const call = { method, path, body: body === null ? null : JSON.stringify(body) };
    const answer = await twice(() => this.#client.answer(call, TIMEOUT_MS));
    if (answer.kind === "unreachable") {
      return { status: 0, text: answer.message, body: answer.message };
    }
    return { status: answer.status, text: answer.body, body: parsed(answer.body) };
  }

  /** Token ids of a text, or of a chat; empty: it has no tokenizer. */
  async tokenize(given: object): Promise<number[]> {
    const asked = { model: this.server.form.model || null, add_special_tokens: false, ...given };
    const { body } = await this.call("POST", "/tokenize", asked);
    return listOf(fieldOf(body, "tokens")).filter((id) => typeof id === "number");
  }

  /** Ends at `maxTokens` or a stop token, and at nothing else. */
  async generate(request: CompletionRequest): Promise<Tried> {
    const { maxTokens: tokensMax, temperature, stopTokenIds = [], top: topLogprobs = 0 } = request;
    return await this.#try(request, { tokensMax, temperature, stopTokenIds, topLogprobs });
  }

  /**
   * The model's logprobs of `tokens` from place `from` on, in one pass and without sampling, so that neither drafts
   * nor the sampler take part. At temperature 1. null: the engine does not report them.
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

/** A kept connection may be closed by the server while the request is on its way. */
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
