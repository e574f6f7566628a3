// Renders a model's chat template: Jinja as Hugging Face models carry it, with the variables and the rules of
// transformers' apply_chat_template. Whatever a template refuses is the client's error, in its words.

import { Template } from "@huggingface/jinja";
import { errorText, InvalidFieldError } from "../core/base/errors.ts";
import type { Chat } from "./text.ts";

export class ChatTemplate {
  readonly #source: string | null;
  /** Variables that the tokenizer gives: `bos_token`, `eos_token`, ... */
  readonly #tokens: Readonly<Record<string, string>>;
  #template: Template | null = null;

  /** `source` null: the model has no template, and every `render` throws that. */
  constructor(source: string | null, tokens: Readonly<Record<string, string>>) {
    this.#source = source;
    this.#tokens = tokens;
  }

  /** @throws InvalidFieldError: no template, one that cannot be read, or one that refuses the messages. */
  render(chat: Chat): string {
    if (this.#source === null) throw refused("need a chat template, and the model has none");
    const {
      messages,
      tools = null,
      chat_template: own = null,
      documents = null,
      reasoning_effort: effort = null,
      chat_template_kwargs: variables = {},
      continue_final_message: continueFinalMessage = false,
      add_generation_prompt: addGenerationPrompt = !continueFinalMessage,
    } = JSON.parse(chat);
    if (own !== null) {
      const problem = "is given, but only engines that render chats take one (vLLM)";
      throw new InvalidFieldError({ where: "chat", field: "chat_template", problem });
    }
    if (continueFinalMessage && addGenerationPrompt) {
      throw refused("cannot both be continued and be answered (add_generation_prompt)");
    }
    let text: string;
    try {
      this.#template ??= new Template(this.#source);
      text = this.#template.render({
        ...this.#tokens,
        ...(documents && { documents }),
        ...(effort && { reasoning_effort: effort }),
        ...variables,
        messages,
        tools,
        add_generation_prompt: addGenerationPrompt,
      });
    } catch (cause) {
      throw refused(`are refused by the model's chat template: ${errorText(cause)}`);
    }
    return continueFinalMessage ? leftOpen(text, messages.at(-1)) : text;
  }
}

function refused(problem: string): InvalidFieldError {
  return new InvalidFieldError({ where: "chat", field: "messages", problem });
}

/** Cut behind the last message's content, as transformers does: templates may trim its ends. */
function leftOpen(text: string, message: { content?: unknown } | undefined): string {
  const content = message?.content;
  if (typeof content !== "string") throw refused("end with no text that could be continued");
  const at = text.lastIndexOf(content.trim());
  if (at < 0) throw refused("end with a text that the chat template does not show as it is");
  const whole = content.trimStart();
  const shown = text.startsWith(whole, at) ? whole : content.trim();
  return text.slice(0, at + shown.length);
}
