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

/** Types of parts of a message that are text, as vLLM has them, and the field that holds it. */
export const TEXT_OF_PART: ReadonlyMap<unknown, string> = new Map([
  ["text", "text"],
  ["input_text", "text"],
  ["output_text", "text"],
  ["refusal", "refusal"],
  ["thinking", "thinking"],
]);

export interface EncodedChat {
  /** The chat as text, by the model's chat template; null: only an engine knows it. */
  readonly text: string | null;
  readonly tokens: Int32Array;
}

export interface EncodeOptions {
  readonly addSpecial: boolean;
  /** A text that certainly has more is refused before it is encoded; null: none is. */
  readonly tokensMax: number | null;
  /** Aborts when the answer is no longer needed. */
  readonly signal: AbortSignal;
}

/**
 * Work on texts of clients, of any size, that does not block the caller's thread. All methods throw AppError
 * context_length_exceeded (too long a text), queue_full, deadline_exceeded, interrupted.
 */
export interface Encoder {
  encode(texts: readonly string[], options: EncodeOptions): Promise<Int32Array[]>;
  /** @throws AppError also invalid_field, as Text.renderChat. */
  encodeChat(chat: Chat, options: EncodeOptions): Promise<EncodedChat>;
  /** Special tokens are written out. */
  decode(tokens: Int32Array, signal: AbortSignal): Promise<string>;
  /** The text of each token, as a JSON list. */
  namesJson(tokens: Int32Array, signal: AbortSignal): Promise<string>;
}

export interface Text {
  readonly vocabularySize: number;
  /** Special tokens written in the text become their ids. `addSpecial`: the tokenizer's own (BOS) are added. */
  encode(text: string, options: { addSpecial: boolean }): Int32Array;
  /** @throws InvalidFieldError for a token out of vocabulary. */
  decode(tokens: ArrayLike<number>, options: { skipSpecial: boolean }): string;
  detokenizer(options: { skipSpecial: boolean }): Detokenizer;
  /** The bytes of one token, special ones written out. @throws InvalidFieldError as `decode`. */
  bytes(token: number): Uint8Array;
  /** Reason why `renderChat` always fails although the model has a template. Default: there is none. */
  readonly chatProblem?: string | null;
  /** The prompt that the model's chat template makes. @throws AppError invalid_field: no template, or it refuses. */
  renderChat(chat: Chat): string;
}
