// The Encoder port over engines: texts become tokens, and tokens texts, by the tokenizer of a vLLM server
// (/tokenize, /detokenize), for models whose tokenizer is not on this machine.

import { AppError } from "../core/base/errors.ts";
import type {
  ChatMessage,
  ChatOptions,
  EncodedChat,
  EncodeOptions,
  Encoder,
} from "../text/text.ts";
import type { EngineCalls } from "./engine-calls.ts";
import { fieldOf, invalid } from "./route.ts";

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
      const body = { prompt, add_special_tokens: options.addSpecial };
      encoded.push(await this.#tokenize(body, prompt.length, options));
    }
    return encoded;
  }

  async encodeChat(
    messages: readonly ChatMessage[],
    chat: ChatOptions,
    options: EncodeOptions,
  ): Promise<EncodedChat> {
    const body = {
      messages,
      add_special_tokens: options.addSpecial,
      add_generation_prompt: chat.addGenerationPrompt,
      continue_final_message: chat.continueFinalMessage,
      chat_template_kwargs: chat.variables,
      ...(chat.tools === null ? {} : { tools: chat.tools }),
    };
    const tokens = await this.#tokenize(body, JSON.stringify(messages).length, options);
    // Only the engine has the template; what it writes is known as tokens.
    return { text: "", tokens };
  }

  async decode(tokens: Int32Array, signal: AbortSignal): Promise<string> {
    const prompt = fieldOf(
      await this.#post("/detokenize", { tokens: [...tokens] }, signal),
      "prompt",
    );
    if (typeof prompt === "string") return prompt;
    throw new AppError("worker_failed", "an engine's answer to /detokenize holds no text");
  }

  async namesJson(tokens: Int32Array, signal: AbortSignal): Promise<string> {
    const names: string[] = [];
    for (const token of tokens) names.push(await this.decode(Int32Array.of(token), signal));
    return JSON.stringify(names);
  }

  close(): void {}

  async #tokenize(body: object, characters: number, options: EncodeOptions): Promise<Int32Array> {
    const max = this.#charactersMax;
    if (characters > max) {
      const message = `a text has ${characters} characters, beyond the server's ${max}`;
      throw new AppError("context_length_exceeded", message);
    }
    const tokens = fieldOf(await this.#post("/tokenize", body, options.signal), "tokens");
    const isList = Array.isArray(tokens) && tokens.every((token) => Number.isInteger(token));
    if (isList) return Int32Array.from(tokens);
    throw new AppError("worker_failed", "an engine's answer to /tokenize lists no tokens");
  }

  async #post(path: string, body: object, signal: AbortSignal): Promise<unknown> {
    const reply = await this.#engines.post({ path, body, signal });
    if (reply.kind === "answer") return reply.body;
    const problem = `needs a tokenizer, and no worker has one (${reply.reasons}): give --tokenizer DIR, or send token ids`;
    throw invalid("text", problem);
  }
}
