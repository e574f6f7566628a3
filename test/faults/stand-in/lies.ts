// What the stand-in says in place of an event when it lies.

import type { FaultKind } from "./faults.ts";
import { VOCABULARY_SIZE } from "./tokens.ts";

const DEPTH = 200_000;

/** The event's text as the lie has it; null: this kind of fault is none. */
export function lieOf(kind: FaultKind, json: unknown): string | null {
  const honest = JSON.stringify(json);
  const withTokens = (token: string) =>
    honest.replace(/"token_ids":\[\d+/, `"token_ids":[${token}`);
  const withLogprob = (logprob: string) =>
    honest
      .replace(/"logprob":-?[\d.]+/g, `"logprob":${logprob}`)
      .replace(/"token_logprobs":\[-?[\d.]+/, `"token_logprobs":[${logprob}`);
  const lies: Partial<Record<FaultKind, () => string>> = {
    wild_token: () => withTokens(String(VOCABULARY_SIZE + 5_000)),
    huge_token: () => withTokens("4294967296"),
    negative_token: () => withTokens("-7"),
    fractional_token: () => withTokens("1.5"),
    text_token: () => withTokens('"seven"'),
    no_logprobs: () => honest.replace(/"logprobs":\{.*\}\}\]/, '"logprobs":null}]'),
    nan_logprob: () => withLogprob("NaN"),
    infinite_logprob: () => withLogprob("1e999"),
    wrong_count: () => honest.replace(/"completion_tokens":\d+/, '"completion_tokens":999999'),
    wrong_shape: () => '{"choices":{"0":[[]]},"usage":[1]}',
    deep_json: () => `{"choices":${"[".repeat(DEPTH)}${"]".repeat(DEPTH)}}`,
  };
  if (kind === "random_bytes") return "\u0000\u0001data\u00ff:\r\r\n\n\ndata: \n\nid: 7\n\n:\n";
  const lie = lies[kind];
  return lie === undefined ? null : `data: ${lie()}\n\n`;
}
