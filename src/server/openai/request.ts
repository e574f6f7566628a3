// A parsed request: what each endpoint makes of its client's body. Nothing here depends on engines, on the
// model or on other requests; plan.ts makes generations of it.

import type { Chat } from "../../text/text.ts";
import type { Answer } from "./answer.ts";
import type { CommonFields } from "./common-fields.ts";
import type { TokenList } from "./fields.ts";
import type { SamplingFields } from "./sampling-fields.ts";
import type { ServedModel } from "./served-model.ts";

export interface ParsedRequest {
  /** Fields that apply to the whole request, under vLLM's names. */
  readonly fields: Partial<CommonFields>;
  /** Parameters: one part for all prompts, or one for each. */
  readonly parts: readonly RequestPart[];
  readonly prompts: Prompts;
  /** How prompts are cut. Default: not at all. */
  readonly truncation?: Truncation;
  readonly wantsText: boolean;
  /** The client's name for the responses of each prompt. Default: only the whole request has a name. */
  readonly names?: readonly string[] | undefined;
  /** The field that asks for the prompt's text in the answer; absent: none does. */
  readonly textField?: string | undefined;
  /** Makes the answer, when the request has begun. `promptText` null: it was not requested, or is not known. */
  readonly answer: (model: ServedModel, promptText: string | null) => Answer;
}

export interface RequestPart {
  readonly params: SamplingFields;
  /** Prefix of the parameters' names in messages. Default: none. */
  readonly at?: string;
  readonly topLogprobs: number;
  /** Limit of output tokens; null: as many as the context has room for. */
  readonly tokensMax: number | null;
  /** Further arguments for the engine (vLLM's extra_args). */
  readonly extraArgs?: Readonly<Record<string, unknown>>;
  /** Further fields of the engine's own endpoint. */
  readonly beside?: Readonly<Record<string, unknown>>;
  /** The tool whose output the prompt ends with; null or absent: none, or not known. */
  readonly tool?: string | null;
  /** Whether a `tokensMax` beyond the context is reduced instead of refused. */
  readonly clamps?: boolean;
  /** The model that this part asks for. Default: the request's. */
  readonly model?: string | null | undefined;
  readonly salt?: string | null | undefined;
}

/** Sources of the prompts' tokens. `names`: their names in errors. */
export type Prompts =
  | {
      readonly kind: "tokens";
      readonly lists: readonly TokenList[];
      readonly names: (index: number) => string;
    }
  | {
      readonly kind: "texts";
      readonly texts: readonly string[];
      readonly names: (index: number) => string;
      readonly addSpecial: boolean;
    }
  | ChatPrompt;

export interface ChatPrompt {
  readonly kind: "chat";
  /** The chat; null: only its prompt's tokens are needed. */
  readonly chat: Chat | null;
  /** The prompt's tokens, which the client gave beside the chat; null: the chat makes them. */
  readonly given: { readonly tokens: TokenList; readonly name: string } | null;
  readonly addSpecial: boolean;
  /** The client's tool_choice; null: the response is not parsed for tool calls. */
  readonly toolChoice: { readonly choice: unknown } | null;
  readonly wantsText: boolean;
}

export interface Truncation {
  /** Number of prompt tokens to keep; -1: as many as leave room for the response. null: all. */
  readonly keep: number | null;
  /** The side that is cut. Default: left. */
  readonly side: "left" | "right" | null | undefined;
}
