// The port between token ids and text. Text is an edge convenience: between the edges there are only ids.
// One implementation per kind of model file; all of them give the same ids as the model's own tokenizer.

/** Turns a stream of tokens into text. Characters split over several tokens come out whole. */
export interface Detokenizer {
  /** The text that has become certain with these tokens; may be empty. */
  push(tokens: ArrayLike<number>): string;
  /** The text of incomplete characters at the end; bytes that are not UTF-8 become U+FFFD. */
  flush(): string;
}

/**
 * A chat as JSON, in the fields of vLLM's requests that its renderer reads (`messages`, `tools`, `chat_template_kwargs`, ...),
 * each as its client wrote it: 1.0 and 2^63-1 are other numbers to a template when JavaScript has read them.
 */
export type Chat = string;

/** Types of a message's text parts, as in vLLM, with the field that holds the text. */
export const TEXT_OF_PART: ReadonlyMap<unknown, string> = new Map([
  ["text", "text"],
  ["input_text", "text"],
  ["output_text", "text"],
  ["refusal", "refusal"],
  ["thinking", "thinking"],
]);

export interface EncodedChat {
  /** The rendered chat as text; null: only an engine knows it. */
  readonly text: string | null;
  readonly tokens: Int32Array;
}

export interface EncodeOptions {
  readonly addSpecial: boolean;
  /** Limit of tokens: a text that certainly has more is refused before it is encoded; null: there is none. */
  readonly tokensMax: number | null;
  /** Aborts when the answer is no longer needed. */
  readonly signal: AbortSignal;
}

/**
 * Encodes and decodes clients' texts of any size without blocking the caller's thread. All methods throw AppError
 * context_length_exceeded (too long a text), queue_full, deadline_exceeded, interrupted.
 */
export interface Encoder {
  encode(texts: readonly string[], options: EncodeOptions): Promise<Int32Array[]>;
  /** Renders and encodes a chat. @throws AppError also invalid_field, as Text.renderChat. */
  encodeChat(chat: Chat, options: EncodeOptions): Promise<EncodedChat>;
  /** Decodes tokens; special tokens are written out. */
  decode(tokens: Int32Array, signal: AbortSignal): Promise<string>;
  /** JSON list of the tokens' texts. */
  namesJson(tokens: Int32Array, signal: AbortSignal): Promise<string>;
}

export interface Text {
  readonly vocabularySize: number;
  /** Encodes a text; special tokens in it become their ids. `addSpecial`: the tokenizer's own (BOS) are added. */
  encode(text: string, options: { addSpecial: boolean }): Int32Array;
  /** Decodes tokens. @throws InvalidFieldError for a token out of vocabulary. */
  decode(tokens: ArrayLike<number>, options: { skipSpecial: boolean }): string;
  detokenizer(options: { skipSpecial: boolean }): Detokenizer;
  /** The bytes of one token, special ones written out. @throws InvalidFieldError as `decode`. */
  bytes(token: number): Uint8Array;
  /** Why `renderChat` always fails although the model has a template. Default: it does not. */
  readonly chatProblem?: string | null;
  /** Renders a chat by the model's chat template. @throws AppError invalid_field: no template, or it refuses. */
  renderChat(chat: Chat): string;
}
