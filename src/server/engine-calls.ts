// Calls of the data plane to a route that only some engines have: a chat rendered or parsed with the engine's own
// tokenizer, template and parsers, and texts and tokens where the model's tokenizer is not on this machine. Any engine
// that has the route can answer, whatever its state: none of it depends on weights.

import { AppError, RefusedError } from "../core/base/errors.ts";
import { waitMsMax } from "../core/base/waits.ts";
import type { ControlAnswer, EngineOperation } from "../core/rollout/operation.ts";
import type { EngineWorker } from "../core/rollout/worker.ts";
import { type AskOptions, answerOf, connected, type Reachable } from "../fleet/engines.ts";
import type { WorkerPool } from "../fleet/pool.ts";
import { membersOf, objectOf } from "../proto/json.ts";
import type { Chat, EncodedChat, EncodeOptions, Encoder } from "../text/text.ts";
import { fieldOf, invalid } from "./route.ts";
import type { Sidecar } from "./sidecar.ts";

type TextOperation = Extract<EngineOperation, { kind: "text" }>;

export interface EngineCall {
  readonly form: TextOperation["form"];
  readonly body: string;
  readonly signal: AbortSignal;
}

/** An engine's answer; missing: no engine has the route, and `reasons` names each engine with its answer. */
export type EngineReply =
  | { readonly kind: "answer"; readonly body: unknown }
  | { readonly kind: "missing"; readonly reasons: string };

export interface EngineCalls {
  /** Asks engines in turn until one answers. @throws RefusedError: an engine refused the request; AppError no_worker, worker_failed. */
  post(call: EngineCall): Promise<EngineReply>;
}

/** Statuses of an engine that lacks the route: unknown (404), another method's (405), disabled (403). */
const MISSING: ReadonlySet<number> = new Set([403, 404, 405, 501]);
/** Time limit of a call: milliseconds of CPU work, on a server that may be starved for seconds. */
const MS_MAX = waitMsMax("rendering");

interface PoolCallsParts {
  readonly pool: WorkerPool;
  readonly sidecar: Sidecar;
  readonly later: AskOptions["later"];
}

export class PoolCalls implements EngineCalls {
  readonly #parts: PoolCallsParts;
  /** Index of the engine that is asked first; engines take turns. */
  #turn = 0;
  /** Answers of engines that lack a route, by route. An engine that is opened again is another worker. */
  readonly #lacking = new WeakMap<EngineWorker, Map<string, string>>();

  constructor(parts: PoolCallsParts) {
    this.#parts = parts;
  }

  async post({ form, body, signal }: EngineCall): Promise<EngineReply> {
    const { pool, sidecar, later } = this.#parts;
    const reachable = connected(pool.members);
    if (reachable.length === 0) throw new AppError("no_worker", "no worker is in service");
    this.#turn = (this.#turn + 1) % reachable.length;
    const turned = [...reachable.slice(this.#turn), ...reachable.slice(0, this.#turn)];
    // An engine whose connection is lost may be silent for long.
    const last = ({ member }: Reachable) => Number(member.state !== "ready");
    const engines = turned.toSorted((a, b) => last(a) - last(b));
    const missing: string[] = [];
    const broken: string[] = [];
    for (const { worker, member } of engines) {
      const lacking = this.#lacking.getOrInsertComputed(worker, () => new Map());
      if (!lacking.has(form)) {
        const { epoch: nextEpoch } = sidecar.rollout;
        const asking = { nextEpoch, msMax: MS_MAX, later, sidecar, signal };
        const answer = await answerOf(worker, { kind: "text", form, body }, asking);
        const { status } = answer;
        if (status === 200) return { kind: "answer", body: answer.body };
        if (signal.aborted) throw new AppError("interrupted", "the client disconnected");
        const message = messageOf(answer);
        const problem = `${member.source.name}: HTTP ${status}: ${message}`;
        if (MISSING.has(status)) lacking.set(form, problem);
        else if (status < 500) throw new RefusedError({ status, message });
        else broken.push(problem);
      }
      const lack = lacking.get(form);
      if (lack !== undefined) missing.push(lack);
    }
    if (broken.length === 0) return { kind: "missing", reasons: missing.join("; ") };
    throw new AppError("worker_failed", `${form}: ${broken.join("; ")}`);
  }
}

function messageOf({ body }: ControlAnswer): string {
  const error = fieldOf(body, "error");
  const text = fieldOf(error, "message") ?? error ?? fieldOf(body, "detail");
  return typeof text === "string" ? text : JSON.stringify(body);
}

const TOKENIZED_FIELDS = [
  "messages",
  "tools",
  "add_generation_prompt",
  "continue_final_message",
  "add_special_tokens",
  "chat_template",
];

/** The body of /tokenize, which has fewer fields, for a chat: templates read the others as variables. */
export function tokenizedChat(chat: Chat): string {
  const fields = membersOf(chat);
  const variables = membersOf(fields.get("chat_template_kwargs") ?? "{}");
  for (const name of ["documents", "reasoning_effort"]) {
    const given = fields.get(name);
    if (given !== undefined && !variables.has(name)) variables.set(name, given);
  }
  const body = new Map([...fields].filter(([name]) => TOKENIZED_FIELDS.includes(name)));
  return objectOf(body.set("chat_template_kwargs", objectOf(variables)));
}

export class EngineEncoder implements Encoder {
  readonly #engines: EngineCalls;
  readonly #charactersMax: number;

  constructor(engines: EngineCalls, { charactersMax }: { charactersMax: number }) {
    this.#engines = engines;
    this.#charactersMax = charactersMax;
  }

  async encode(texts: readonly string[], options: EncodeOptions): Promise<Int32Array[]> {
    const encoded: Int32Array[] = [];
    for (const prompt of texts) {
      const body = JSON.stringify({ prompt, add_special_tokens: options.addSpecial });
      encoded.push(await this.#tokenize(body, prompt.length, options));
    }
    return encoded;
  }

  /** Encodes a chat by /tokenize, for engines without the route that renders. */
  async encodeChat(chat: Chat, options: EncodeOptions): Promise<EncodedChat> {
    const tokens = await this.#tokenize(tokenizedChat(chat), chat.length, options);
    return { text: null, tokens };
  }

  async decode(tokens: Int32Array, signal: AbortSignal): Promise<string> {
    const body = JSON.stringify({ tokens: [...tokens] });
    const prompt = fieldOf(await this.#post("detokenize", body, signal), "prompt");
    if (typeof prompt === "string") return prompt;
    throw new AppError("worker_failed", "an engine's answer to detokenize holds no text");
  }

  async namesJson(tokens: Int32Array, signal: AbortSignal): Promise<string> {
    const names: string[] = [];
    for (const token of tokens) names.push(await this.decode(Int32Array.of(token), signal));
    return JSON.stringify(names);
  }

  close(): void {}

  async #tokenize(body: string, characters: number, options: EncodeOptions): Promise<Int32Array> {
    const max = this.#charactersMax;
    if (characters > max) {
      const message = `a text has ${characters} characters, beyond the server's ${max}`;
      throw new AppError("context_length_exceeded", message);
    }
    const tokens = fieldOf(await this.#post("tokenize", body, options.signal), "tokens");
    const isList = Array.isArray(tokens) && tokens.every((token) => Number.isInteger(token));
    if (isList) return Int32Array.from(tokens);
    throw new AppError("worker_failed", "an engine's answer to tokenize lists no tokens");
  }

  async #post(form: TextOperation["form"], body: string, signal: AbortSignal): Promise<unknown> {
    const reply = await this.#engines.post({ form, body, signal });
    if (reply.kind === "answer") return reply.body;
    const problem = `needs a tokenizer, and no worker has one (${reply.reasons}): give --tokenizer DIR, or send token ids`;
    throw invalid("text", problem);
  }
}
