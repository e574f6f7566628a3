// The Text port over the files of a Hugging Face model: tokenizer.json, tokenizer_config.json, special_tokens_map.json and
// its chat templates. Ids are those of the `tokenizers` library; bytes of tokens are worked out here, as
// that library decodes to text only, which loses characters that several tokens share.

import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import { AppError, errorText } from "../core/base/errors.ts";
import { ChatTemplate } from "./chat-template.ts";
import { VocabularyText } from "./decoding.ts";
import type { EncoderThread } from "./encoder.ts";
import { openThread } from "./job-lane.ts";
import type { Text } from "./text.ts";

interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special: boolean;
}

interface TokenizerFile {
  readonly added_tokens?: readonly AddedToken[];
  readonly decoder?: { readonly type: string; readonly decoders?: readonly { type: string }[] };
}

/** Decoders whose tokens are characters, byte tokens such as `<0x0A>`, and "▁" for a blank. */
const PLAIN_DECODERS = ["Metaspace", "Replace", "ByteFallback", "Fuse", "Strip", "Sequence"];

/**
 * Reads the files once. `vocabularySizeMin`: for a model with more ids than these files define; the others
 * have no text. @throws AppError model_unreadable, naming the file.
 */
export function openHuggingFaceText(folder: string, vocabularySizeMin = 0): Text {
  const path = join(folder, "tokenizer.json");
  checkFolder(folder, path);
  const file: TokenizerFile = readJson(path);
  const config = readIfThere(join(folder, "tokenizer_config.json")) ?? {};
  const model = readIfThere(join(folder, "config.json")) ?? {};
  try {
    const tokenizer = new Tokenizer(file, config);
    mendPattern(Object(tokenizer).pre_tokenizer);
    // Files of older models have tokens of their own.
    const named = { ...readIfThere(join(folder, "special_tokens_map.json")), ...config };
    const template = new ChatTemplate(templatesOf(folder, config), namedTokens(named));
    const sizeMin = Math.max(vocabularySizeMin, modelVocabularySize(model));
    return new HuggingFaceText(tokenizer, { file, sizeMin, template });
  } catch (cause) {
    throw unreadable(path, cause);
  }
}

function checkFolder(folder: string, path: string): void {
  if (existsSync(path)) return;
  const stats = statSync(folder, { throwIfNoEntry: false });
  const found = stats?.isDirectory() ? "holds no tokenizer.json" : "is a file";
  const problem = stats === undefined ? "there is no such folder" : found;
  const wanted = "a tokenizer is the folder of a Hugging Face model, with its tokenizer.json";
  throw new AppError("model_unreadable", `${folder}: ${problem}; ${wanted}`);
}

const THREAD = new URL("./hugging-face-thread.ts", import.meta.url);

export type HuggingFaceOpening = Parameters<typeof openHuggingFaceText>;

/** Opens a thread that encodes as `openHuggingFaceText` does with the same arguments. */
export function openHuggingFaceThread(...opening: HuggingFaceOpening): EncoderThread {
  return openThread(THREAD, opening);
}

/** Vocabulary size of the model in a folder, by its config.json; 0: not given. @throws AppError model_unreadable. */
export function vocabularySizeOf(folder: string): number {
  return modelVocabularySize(readJson(join(folder, "config.json")));
}

/** The end-of-text tokens of `generation_config.json`, else of `config.json`. @throws AppError model_unreadable. */
export function eosTokensOf(folder: string): readonly number[] {
  for (const name of ["generation_config.json", "config.json"]) {
    const eos = readIfThere(join(folder, name))?.eos_token_id;
    const tokens = Array.isArray(eos) ? eos : [eos];
    if (tokens.every((token) => Number.isSafeInteger(token) && token >= 0)) return tokens;
  }
  const problem = "no file there defines the token that ends a text";
  throw new AppError("model_unreadable", `${folder}: ${problem}`);
}

/** Vocabulary size in config.json; models of text and images define it for their text part. 0: not given. */
function modelVocabularySize(config: Record<string, unknown>): number {
  const size = Number(config.vocab_size ?? Object(config.text_config).vocab_size);
  return Number.isSafeInteger(size) && size > 0 ? size : 0;
}

class HuggingFaceText extends VocabularyText {
  readonly vocabularySize: number;
  protected readonly template: ChatTemplate;
  readonly #tokenizer: Tokenizer;
  readonly #added = new Map<number, AddedToken>();
  readonly #toBytes: (token: string) => Uint8Array;
  /** Bytes of each token, computed once; bounded by the vocabulary. */
  readonly #pieces = new Map<number, Uint8Array>();

  /** `sizeMin`: the model may have more ids than the tokenizer, as padding; these have no text. */
  constructor(
    tokenizer: Tokenizer,
    { file, sizeMin, template }: { file: TokenizerFile; sizeMin: number; template: ChatTemplate },
  ) {
    super();
    this.#tokenizer = tokenizer;
    this.template = template;
    for (const token of file.added_tokens ?? []) this.#added.set(token.id, token);
    let size = sizeMin;
    for (const id of tokenizer.get_vocab(true).values()) size = Math.max(size, id + 1);
    this.vocabularySize = size;
    this.#toBytes = bytesOfPiece(file);
  }

  encode(text: string, options: { addSpecial: boolean }): Int32Array {
    const { ids } = this.#tokenizer.encode(text, { add_special_tokens: options.addSpecial });
    return Int32Array.from(ids);
  }

  isSpecial(token: number): boolean {
    return this.#added.get(token)?.special === true;
  }

  pieceOf(token: number): Uint8Array {
    return this.#pieces.getOrInsertComputed(token, this.#readPiece);
  }

  readonly #readPiece = (token: number): Uint8Array => {
    const added = this.#added.get(token);
    if (added !== undefined) return utf8(added.content);
    return this.#toBytes(this.#tokenizer.id_to_token(token) ?? "");
  };
}

function utf8(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

/** The decoder of tokens to bytes. @throws Error: it is of a kind whose tokens are not pieces of the text. */
function bytesOfPiece({ decoder }: TokenizerFile): (token: string) => Uint8Array {
  const steps = decoder?.decoders?.map(({ type }) => type) ?? [];
  const types = [decoder?.type ?? "none", ...steps];
  if (types.includes("ByteLevel")) return byteLevelBytes;
  const foreign = types.find((type) => !PLAIN_DECODERS.includes(type));
  if (foreign !== undefined) throw new Error(`decoder ${foreign} is not supported`);
  return plainBytes;
}

function plainBytes(token: string): Uint8Array {
  const byte = /^<0x([0-9A-F]{2})>$/.exec(token);
  return byte === null
    ? utf8(token.replaceAll("▁", " "))
    : Uint8Array.of(Number.parseInt(byte[1] ?? "", 16));
}

/**
 * GPT-2's alphabet (openai/gpt-2, encoder.py, bytes_to_unicode): printable bytes stand for themselves, the
 * others, in ascending order, for the characters from U+0100 on.
 */
const BYTE_OF: ReadonlyMap<string, number> = (() => {
  const map = new Map<string, number>();
  let next = 0x100;
  for (let byte = 0; byte < 256; byte += 1) {
    const printable =
      (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    map.set(String.fromCharCode(printable ? byte : next), byte);
    if (!printable) next += 1;
  }
  return map;
})();

function byteLevelBytes(token: string): Uint8Array {
  const bytes: number[] = [];
  for (const character of token) {
    const byte = BYTE_OF.get(character);
    // A token that is no byte-level piece is its own characters.
    if (byte === undefined) return utf8(token);
    bytes.push(byte);
  }
  return Uint8Array.from(bytes);
}

/** Special tokens by name (`bos_token`, `eos_token`, ...); each is a string, or an object with its content. */
function namedTokens(config: Record<string, unknown>): Record<string, string> {
  const tokens: Record<string, string> = {};
  for (const [name, value] of Object.entries(config)) {
    if (!name.endsWith("_token")) continue;
    const { content = value } = Object(value);
    if (typeof content === "string") tokens[name] = content;
  }
  return tokens;
}

/** Templates by name. Separate files win over the configuration, as in transformers. */
function templatesOf(folder: string, config: Record<string, unknown>): Map<string, string> {
  const { chat_template: given } = config;
  const listed = Array.isArray(given) ? given : [{ name: "default", template: given }];
  const templates = new Map<string, string>();
  for (const { name, template } of listed.map(Object)) {
    if (typeof template === "string") templates.set(`${name}`, template);
  }
  const path = join(folder, "chat_template.jinja");
  if (existsSync(path)) templates.set("default", readFileSync(path, "utf8"));
  const others = join(folder, "additional_chat_templates");
  for (const file of existsSync(others) ? readdirSync(others) : []) {
    const name = basename(file, ".jinja");
    if (name !== file) templates.set(name, readFileSync(join(others, file), "utf8"));
  }
  return templates;
}

/** White space in Rust: not that of JavaScript, which has U+FEFF and lacks U+0085. */
const BLANK = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const WORDS = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+";
const GPT2_PATTERN = new RegExp(
  `${WORDS}| ?[^${BLANK}\\p{L}\\p{N}]+|[${BLANK}]+(?![^${BLANK}])|[${BLANK}]+`,
  "gu",
);

/** Replaces the library's GPT-2 pattern, which has JavaScript's white space, unlike patterns in files. */
function mendPattern(splitter: unknown): void {
  const { use_regex: hasPattern, tokenizers = [] } = Object(splitter);
  if (hasPattern === true) Object(splitter).pattern = GPT2_PATTERN;
  for (const one of tokenizers) mendPattern(one);
}

function readIfThere(path: string): Record<string, unknown> | null {
  return existsSync(path) ? readJson(path) : null;
}

function readJson(path: string): Record<string, unknown> {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (cause) {
    throw unreadable(path, cause);
  }
}

function unreadable(path: string, cause: unknown): AppError {
  return new AppError("model_unreadable", `${path}: ${errorText(cause)}`, { cause });
}
