// Who makes a prompt of a chat: an engine with a route for it (vLLM), else the model's template here. The engine gets the
// client's own bytes and is asked once for each chat, however many responses are wanted: its answers are kept for a while.

import { AppError, RefusedError } from "../../core/base/errors.ts";
import type { Chat, EncodedChat, EncodeOptions, Encoder } from "../../text/text.ts";
import { type EngineCalls, type EngineReply, tokenizedChat } from "../engine-calls.ts";
import { fieldOf } from "../route.ts";
import { isTokenList } from "./fields.ts";

export interface RenderedChat extends EncodedChat {
  /** The engine's answer, or the reason for its absence. */
  readonly reply: EngineReply;
}

/** Renderer of a prompt. engine: asked now; kept: asked before; template: the model's own here, or an engine's /tokenize. */
export type RenderedBy = "engine" | "kept" | "template";

export interface ChatRendererOptions {
  readonly encoder: Encoder;
  readonly engines: EngineCalls | null;
  readonly rendered?: (by: RenderedBy, seconds: number) => void;
}

/** Limit of the characters of chats whose answers are kept; the prompts' tokens are fewer. */
const KEPT_CHARACTERS_MAX = 32 * 2 ** 20;
const NO_ENGINE: EngineReply = { kind: "missing", reasons: "no engine renders chats" };

export class ChatRenderer {
  readonly #options: ChatRendererOptions;
  /** Answers by chat, the oldest first. Responses to one chat that are requested at the same time share one call. */
  readonly #kept = new Map<Chat, Promise<EngineReply>>();
  #keptCharacters = 0;
  /** Whether an engine has rendered: then nothing else renders in its place while it is away. */
  #isRemote = false;

  constructor(options: ChatRendererOptions) {
    this.#options = options;
  }

  /** Drops the kept answers: engines have come or gone, whose templates may differ. */
  forget(): void {
    this.#kept.clear();
    this.#keptCharacters = 0;
  }

  /** Renders a chat as a prompt. @throws AppError as EngineCalls.post and Encoder.encodeChat. */
  async render(chat: Chat, options: EncodeOptions): Promise<RenderedChat> {
    const { encoder, rendered } = this.#options;
    const startMs = performance.now();
    const isKept = this.#kept.has(chat);
    const reply = await this.#reply(chat, options);
    if (reply.kind === "missing") {
      const encoded = await encoder.encodeChat(chat, options);
      rendered?.("template", (performance.now() - startMs) / 1000);
      return { ...encoded, reply };
    }
    const tokens = fieldOf(reply.body, "token_ids");
    if (!isTokenList(tokens)) {
      throw new AppError("worker_failed", "an engine's answer to render lists no token_ids");
    }
    rendered?.(isKept ? "kept" : "engine", (performance.now() - startMs) / 1000);
    return { tokens: Int32Array.from(tokens), text: null, reply };
  }

  async #reply(chat: Chat, { tokensMax, signal }: EncodeOptions): Promise<EngineReply> {
    const { engines } = this.#options;
    if (engines === null) return NO_ENGINE;
    try {
      const reply = await this.#asked(chat, engines);
      this.#isRemote ||= reply.kind === "answer";
      return reply;
    } catch (error) {
      const isAway = error instanceof AppError && error.code === "no_worker";
      if (isAway && !this.#isRemote) return NO_ENGINE;
      // What is only counted may be longer than the context, which the route refuses.
      const isLong = error instanceof RefusedError && error.message.includes("context length");
      if (!isLong || tokensMax !== null) throw error;
      const call = { form: "tokenize", body: tokenizedChat(chat), signal } as const;
      const counted = await engines.post(call);
      if (counted.kind === "missing") throw error;
      return { kind: "answer", body: { token_ids: fieldOf(counted.body, "tokens") } };
    }
  }

  #asked(chat: Chat, engines: EngineCalls): Promise<EngineReply> {
    const kept = this.#kept.get(chat);
    if (kept !== undefined) return kept;
    // One client's leaving does not end what others wait for.
    const { signal } = new AbortController();
    const reply = engines.post({ form: "render", body: chat, signal });
    this.#kept.set(chat, reply);
    this.#keptCharacters += chat.length;
    for (const oldest of this.#kept.keys()) {
      if (this.#keptCharacters <= KEPT_CHARACTERS_MAX) break;
      this.#drop(oldest);
    }
    const drop = () => this.#kept.get(chat) === reply && this.#drop(chat);
    reply.then(({ kind }) => kind === "answer" || drop(), drop);
    return reply;
  }

  #drop(chat: Chat): void {
    if (this.#kept.delete(chat)) this.#keptCharacters -= chat.length;
  }
}
