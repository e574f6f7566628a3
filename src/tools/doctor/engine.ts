// HTTP client of one engine for the checks: sends requests and returns the answers without judging them. It uses text
// completions if the token-id endpoint is not available.

export interface Answer {
  /** 0: no answer. */
  readonly status: number;
  /** Parsed where it is JSON; else text. */
  readonly body: unknown;
}

export interface CompletionRequest {
  readonly tokens: readonly number[];
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

/** Of places in a text: its tokens' logprobs, and those of the likeliest tokens there, highest first. */
export type Scored = Pick<Made, "logprobs" | "top">;

export type Outcome =
  | { readonly kind: "made"; readonly made: Made }
  | { readonly kind: "refused"; readonly status: number; readonly message: string };

export type Endpoint = "/inference/v1/generate" | "/v1/completions";

const TIMEOUT_MS = 120_000;
const MESSAGE_CHARACTERS = 300;

type Json = Record<string, unknown>;

export class Engine {
  /** Without a slash at its end. */
  readonly url: string;
  readonly #headers: Readonly<Record<string, string>>;
  /** Set once it is known. */
  model: string | null = null;
  endpoint: Endpoint = "/inference/v1/generate";

  constructor(url: string, token: string | null) {
    this.url = url.replace(/\/+$/, "");
    this.#headers = token === null ? {} : { authorization: `Bearer ${token}` };
  }

  /** Never rejects. */
  async call(method: "GET" | "POST", path: string, body: unknown = null): Promise<Answer> {
    try {
      const response = await fetch(this.url + path, {
        method,
        headers: {
          ...this.#headers,
          ...(body === null ? {} : { "content-type": "application/json" }),
        },
        ...(body === null ? {} : { body: JSON.stringify(body) }),
        signal: AbortSignal.timeout(TIMEOUT_MS),
      });
      return { status: response.status, body: parsed(await response.text()) };
    } catch (error) {
      return { status: 0, body: error instanceof Error ? error.message : String(error) };
    }
  }

  /** Ends at `maxTokens` or a stop token, and at nothing else. */
  async generate(request: CompletionRequest): Promise<Outcome> {
    const isGenerate = this.endpoint === "/inference/v1/generate";
    const params = {
      max_tokens: request.maxTokens,
      temperature: request.temperature,
      ignore_eos: true,
      logprobs: request.top ?? 0,
      ...(request.seed === undefined ? {} : { seed: request.seed }),
      ...(request.stopTokenIds === undefined ? {} : { stop_token_ids: request.stopTokenIds }),
    };
    const beside = {
      model: this.model,
      cache_salt: request.cacheSalt ?? "foretoken-doctor",
      ...(request.priority === undefined ? {} : { priority: request.priority }),
    };
    const { sibling } = request;
    const known =
      sibling === undefined
        ? {}
        : {
            [isGenerate ? "extra_args" : "vllm_xargs"]: {
              foretoken_group: sibling.group,
              foretoken_sample: sibling.sample,
            },
          };
    const body = isGenerate
      ? { token_ids: request.tokens, sampling_params: { ...params, ...known }, ...beside }
      : {
          prompt: request.tokens,
          ...params,
          ...known,
          ...beside,
          return_token_ids: true,
          return_tokens_as_token_ids: true,
          add_special_tokens: false,
        };
    const answer = await this.call("POST", this.endpoint, body);
    if (answer.status !== 200) {
      return { kind: "refused", status: answer.status, message: messageOf(answer.body) };
    }
    const made = isGenerate ? madeByGenerate(answer.body) : madeByCompletions(answer.body);
    if (made.tokens.length === made.logprobs.length && made.tokens.length > 0) {
      return { kind: "made", made };
    }
    const what = made.tokens.length === 0 ? "token ids" : "logprobs";
    return { kind: "refused", status: 200, message: `its answer holds no ${what}` };
  }

  /**
   * The model's logprobs of `tokens` from place `from` on, in one pass and without sampling, so that neither drafts
   * nor the sampler take part. At temperature 1. null: the engine does not report them.
   */
  async score(tokens: readonly number[], from: number, top: number): Promise<Scored | null> {
    const asked = { max_tokens: 1, temperature: 1, prompt_logprobs: top };
    const common = { model: this.model };
    const body =
      this.endpoint === "/inference/v1/generate"
        ? { token_ids: tokens, sampling_params: asked, ...common }
        : { prompt: tokens, ...asked, ...common };
    const answer = await this.call("POST", this.endpoint, body);
    const listed =
      fieldOf(answer.body, "prompt_logprobs") ??
      fieldOf(listOf(fieldOf(answer.body, "choices"))[0], "prompt_logprobs");
    const places = listOf(listed);
    if (answer.status !== 200 || places.length !== tokens.length) return null;
    const logprobs: number[] = [];
    const tops: number[][] = [];
    for (let place = from; place < tokens.length; place += 1) {
      const entries = places[place];
      const logprob = pathOf(entries, String(tokens[place]), "logprob");
      if (typeof entries !== "object" || entries === null || typeof logprob !== "number")
        return null;
      logprobs.push(logprob);
      tops.push(falling(Object.values(entries).map((entry) => fieldOf(entry, "logprob"))));
    }
    return { logprobs, top: tops };
  }
}

/** A server's error message. */
export function messageOf(body: unknown): string {
  const error = fieldOf(body, "error") ?? body;
  const message = fieldOf(error, "message") ?? fieldOf(error, "detail") ?? error;
  const text = typeof message === "string" ? message : JSON.stringify(message);
  return (text ?? "").slice(0, MESSAGE_CHARACTERS);
}

export function fieldOf(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null ? (value as Json)[name] : undefined;
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

function madeByGenerate(body: unknown): Made {
  const choice = listOf(fieldOf(body, "choices"))[0];
  const content = listOf(pathOf(choice, "logprobs", "content"));
  return {
    tokens: numbersOf(fieldOf(choice, "token_ids")),
    logprobs: numbersOf(content.map((entry) => fieldOf(entry, "logprob"))),
    top: content.map((entry) =>
      falling(listOf(fieldOf(entry, "top_logprobs")).map((one) => fieldOf(one, "logprob"))),
    ),
    ...commonOf(body, choice),
  };
}

function madeByCompletions(body: unknown): Made {
  const choice = listOf(fieldOf(body, "choices"))[0];
  return {
    tokens: numbersOf(fieldOf(choice, "token_ids")),
    logprobs: numbersOf(pathOf(choice, "logprobs", "token_logprobs")),
    top: listOf(pathOf(choice, "logprobs", "top_logprobs")).map((entry) =>
      falling(Object.values(typeof entry === "object" && entry !== null ? entry : {})),
    ),
    ...commonOf(body, choice),
  };
}

function commonOf(body: unknown, choice: unknown): Pick<Made, "finish" | "cachedTokens"> {
  const finish = fieldOf(choice, "finish_reason");
  const cached = pathOf(body, "usage", "prompt_tokens_details", "cached_tokens");
  return {
    finish: typeof finish === "string" ? finish : null,
    cachedTokens: typeof cached === "number" ? cached : null,
  };
}

function numbersOf(values: unknown): number[] {
  return listOf(values).filter((value) => typeof value === "number");
}

function falling(values: readonly unknown[]): number[] {
  return numbersOf(values).toSorted((a, b) => b - a);
}
