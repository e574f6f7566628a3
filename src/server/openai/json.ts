// Fragments of answers as JSON text. Answers carry a number or three for every token, so these are written
// directly: objects per token would cost more than everything else that a token passes through here.

import type { RolloutResponse } from "../../core/request/response.ts";
import type { Text } from "../../text/text.ts";

/** JSON has no infinities: vLLM writes this for them. */
const LOGPROB_MIN = -9999;

export interface TokenSpan {
  readonly response: RolloutResponse;
  readonly from: number;
  readonly to: number;
}

export function tokensJson({ response, from, to }: TokenSpan): string {
  return `[${response
    .tokens(from)
    .subarray(0, to - from)
    .join(",")}]`;
}

export function logprobText(logprob: number): string {
  return logprob >= LOGPROB_MIN ? String(logprob) : `${LOGPROB_MIN}.0`;
}

/** A token's name, where answers name tokens by text. */
interface TokenName {
  readonly json: string;
  readonly characters: number;
  readonly bytes: string;
}

export type TokenNames = (token: number) => TokenName;

export function writtenNames(text: Text): TokenNames {
  return namesBy(text, (_, bytes) => new TextDecoder().decode(bytes));
}

/** `token_id:N`: for clients that must know exactly which token it was. */
export function numberedNames(text: Text): TokenNames {
  return namesBy(text, (token) => `token_id:${token}`);
}

/** Each name is worked out once, and there are no more than the vocabulary has. */
function namesBy(text: Text, nameOf: (token: number, bytes: Uint8Array) => string): TokenNames {
  const names = new Map<number, TokenName>();
  const named = (token: number): TokenName => {
    const bytes = text.bytes(token);
    const written = nameOf(token, bytes);
    const json = JSON.stringify(written);
    return { json, characters: written.length, bytes: `[${bytes.join(",")}]` };
  };
  return (token) => names.getOrInsertComputed(token, named);
}

interface Candidate {
  readonly token: number;
  readonly logprob: number;
  /** Rank of the token, 1 being the likeliest; null: not known. */
  readonly rank: number | null;
}

/** The drawn token, then the likeliest others, in vLLM's order; each endpoint shows the first few. */
function candidatesAt({ response }: TokenSpan, position: number, max: number): Candidate[] {
  const token = response.tokens(position)[0] ?? -1;
  const logprob = response.logprobs(position)[0] ?? LOGPROB_MIN;
  const top = response.topLogprobs(position);
  const others: Candidate[] = [];
  let rank: number | null = null;
  for (let i = 0; top !== null && i < top.count; i += 1) {
    const other = top.tokens[i] ?? -1;
    if (other === token) rank = i + 1;
    else if (other >= 0) {
      others.push({ token: other, logprob: top.logprobs[i] ?? LOGPROB_MIN, rank: i + 1 });
    }
  }
  return [{ token, logprob, rank }, ...others].slice(0, max);
}

const NO_CANDIDATES: readonly Candidate[] = [];

/** Calls `write` with the tokens of a span in their order, each with the `max` first candidates of its position. */
function eachDrawn(
  span: TokenSpan,
  max: number,
  write: (token: number, value: string, others: readonly Candidate[]) => void,
): void {
  const { response, from, to } = span;
  const tokens = response.tokens(from);
  const logprobs = response.logprobs(from);
  for (let i = 0; i < to - from; i += 1) {
    const others = max === 0 ? NO_CANDIDATES : candidatesAt(span, from + i, max);
    write(tokens[i] ?? 0, logprobText(logprobs[i] ?? LOGPROB_MIN), others);
  }
}

/** Alternatives to ask an engine for: none for a list of one, which is the drawn token (SkyRL, prime-rl). */
export function alternativesFor(shown: number): number {
  return shown <= 1 ? 0 : shown;
}

/** OpenAI's completion logprobs; `top` alternatives beside the drawn token. `offset`: of the first token. */
export function completionLogprobs(
  span: TokenSpan,
  options: { names: TokenNames; top: number; offset: number },
): { json: string; offset: number } {
  const { names, top } = options;
  const written: string[] = [];
  const values: string[] = [];
  const offsets: number[] = [];
  const tops: string[] = [];
  let { offset } = options;
  eachDrawn(span, top === 0 ? 0 : top + 1, (token, value, others) => {
    const { json: name, characters } = names(token);
    written.push(name);
    values.push(value);
    offsets.push(offset);
    offset += characters;
    if (top === 0) {
      tops.push(`{${name}:${value}}`);
      return;
    }
    const entries = others.map((one) => `${names(one.token).json}:${logprobText(one.logprob)}`);
    tops.push(`{${entries.join(",")}}`);
  });
  const fields = [
    `"text_offset":[${offsets.join(",")}]`,
    `"token_logprobs":[${values.join(",")}]`,
    `"tokens":[${written.join(",")}]`,
    `"top_logprobs":[${tops.join(",")}]`,
  ];
  return { json: `{${fields.join(",")}}`, offset };
}

/** Logprobs of a response that ended before its first token; vLLM gives the same. */
export const NO_COMPLETION_LOGPROBS =
  '{"text_offset":[],"token_logprobs":[],"tokens":[],"top_logprobs":[]}';

export function chatLogprobs(span: TokenSpan, names: TokenNames, top: number): string {
  const entry = (token: number, value: string): string => {
    const { json, bytes } = names(token);
    return `{"token":${json},"logprob":${value},"bytes":${bytes}`;
  };
  const parts: string[] = [];
  eachDrawn(span, top, (token, value, others) => {
    const tops = others.map((one) => `${entry(one.token, logprobText(one.logprob))}}`);
    parts.push(`${entry(token, value)},"top_logprobs":[${tops.join(",")}]}`);
  });
  return `{"content":[${parts.join(",")}]}`;
}

/** Logprobs of /inference/v1/generate, for clients of newer vLLM (`token_id`) and of older (`token`). */
export function generateLogprobs(span: TokenSpan, top: number): string {
  const entry = (token: number, value: string, rank: number | null): string =>
    `"token_id":${token},"token":"token_id:${token}","logprob":${value},"rank":${rank}`;
  const parts: string[] = [];
  eachDrawn(span, top, (token, value, others) => {
    const entries = others.map((one) => entry(one.token, logprobText(one.logprob), one.rank));
    const first = entries[0] ?? entry(token, value, null);
    const tops = entries.length === 0 ? [first] : entries;
    parts.push(`{${first},"top_logprobs":[${tops.map((one) => `{${one}}`).join(",")}]}`);
  });
  return `{"content":[${parts.join(",")}]}`;
}

/** An engine's report as its JSON was received; its bytes are not parsed. The caller writes the field's name. */
export function reportJson(report: Uint8Array | null | undefined): string {
  return report ? new TextDecoder().decode(report) : "null";
}

/** Base64 of an .npy file, as vLLM has it; null: no engine reported any. */
export function expertsJson(response: RolloutResponse): string {
  const npy = response.experts?.npy() ?? null;
  return npy === null ? "null" : `"${Buffer.from(npy.buffer).toString("base64")}"`;
}

/** Usage; cached tokens are null where engines do not report them, as without --enable-prompt-tokens-details. */
export function usageJson(counts: {
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly promptTokensCached: number | null;
}): string {
  const { promptTokens, completionTokens, promptTokensCached: cached } = counts;
  const total = promptTokens + completionTokens;
  const details = cached === null ? "null" : `{"cached_tokens":${cached}}`;
  return `{"prompt_tokens":${promptTokens},"total_tokens":${total},"completion_tokens":${completionTokens},"prompt_tokens_details":${details}}`;
}
