// A scripted model behind a stand-in for a vLLM server: it renders chats, and decides which tool each response calls, whatever
// its tokens are. A response is rendered as the text that its tokens have, its end included, so that a second
// tokenisation gives other tokens for it.

import { standInResponse } from "../faults/stand-in/tokens.ts";
import { TinyText } from "../golden/requests/tiny-text.ts";

interface Message {
  readonly role: string;
  readonly content?: unknown;
  readonly tool_calls?: readonly { readonly id: string }[];
}

/** Arguments of the calls of a tool, in order; the response after them is text. */
type Script = Readonly<Record<string, readonly object[]>>;

/** Samples of one group, whose tokens differ. */
const SAMPLES_MAX = 64;

/** The response to a prompt that begins with these tokens, its last one included. */
export function wholeResponse(prompt: readonly number[], tokens: readonly number[]): number[] {
  for (let sample = 0; sample < SAMPLES_MAX; sample += 1) {
    const tokensMax = tokens.length + 1;
    // The engine's own EOS ends no response: the server's model has other ones.
    const drawn = standInResponse({ prompt, sample, tokensMax, stopTokenIds: [] });
    if (tokens.every((token, i) => token === drawn[i])) return drawn;
  }
  throw new Error("no stand-in has drawn these tokens behind this prompt");
}

const RENDER = "/v1/chat/completions/render";
const DERENDER = "/v1/chat/completions/derender";

export class ScriptedChat {
  readonly #script: Script;
  readonly #text = new TinyText();
  /** Whole texts of the responses, by what clients get of them: the id of a call, or a text. */
  readonly #said = new Map<string, string>();

  constructor(script: Script) {
    this.#script = script;
  }

  /** Routes of the stand-in; null: the path is none of these. */
  answer(path: string, body: unknown): { status: number; body: unknown } | null {
    if (path === RENDER) {
      const token_ids = [
        ...this.#text.encode(this.#render(messagesIn(body)), { addSpecial: false }),
      ];
      return { status: 200, body: { token_ids, sampling_params: {} } };
    }
    if (path !== DERENDER) return null;
    const { generate_response: response, chat_request: chat } = Object(body);
    const tokens: number[] = response.choices[0].token_ids;
    const drawn = wholeResponse(Object(body).prompt_token_ids, tokens);
    const said = this.#text.decode(drawn, { skipSpecial: false });
    const message = this.#message(chat, this.#text.decode(tokens, { skipSpecial: false }), said);
    return { status: 200, body: { choices: [{ message: { role: "assistant", ...message } }] } };
  }

  #render(messages: readonly Message[]): string {
    const turns = messages.map(({ role, content, tool_calls: [call] = [] }) => {
      const got = call?.id ?? textOf(content);
      return role === "assistant"
        ? `[assistant] ${this.#said.get(got) ?? got}`
        : `\n[${role}] ${textOf(content)}\n`;
    });
    return `${turns.join("")}[assistant] `;
  }

  #message(chat: unknown, content: string, said: string): object {
    const tools: { function: { name: string } }[] = Object(chat).tools ?? [];
    const name = tools[0]?.function.name ?? "";
    const messages = messagesIn(chat);
    const asked = messages.findLastIndex(({ role }) => role === "user");
    const calls = messages.slice(asked).filter(({ tool_calls: made = [] }) => made.length > 0);
    const wanted = this.#script[name]?.[calls.length];
    if (wanted === undefined) {
      this.#said.set(content, said);
      return { content, tool_calls: [] };
    }
    const id = `call-${this.#said.size}`;
    this.#said.set(id, said);
    const called = { name, arguments: JSON.stringify(wanted) };
    return { content: null, tool_calls: [{ id, type: "function", function: called }] };
  }
}

function messagesIn(chat: unknown): Message[] {
  return Object(chat).messages ?? [];
}

function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  const parts: unknown[] = Array.isArray(content) ? content : [];
  return parts.map((part) => String(Object(part).text ?? "")).join("");
}
