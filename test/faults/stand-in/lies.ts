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
  switch (kind) {
    case "wild_token":
      return event(withTokens(String(VOCABULARY_SIZE + 5_000)));
    case "huge_token":
      return event(withTokens("4294967296"));
    case "negative_token":
      return event(withTokens("-7"));
    case "fractional_token":
      return event(withTokens("1.5"));
    case "text_token":
      return event(withTokens('"seven"'));
    case "no_logprobs":
      return event(honest.replace(/"logprobs":\{.*\}\}\]/, '"logprobs":null}]'));
    case "nan_logprob":
      return event(withLogprob("NaN"));
    case "infinite_logprob":
      return event(withLogprob("1e999"));
    case "wrong_count":
      return event(honest.replace(/"completion_tokens":\d+/, '"completion_tokens":999999'));
    case "wrong_shape":
      return event('{"choices":{"0":[[]]},"usage":[1]}');
    case "deep_json":
      return event(`{"choices":${"[".repeat(DEPTH)}${"]".repeat(DEPTH)}}`);
    case "random_bytes":
      return "\u0000\u0001data\u00ff:\r\r\n\n\ndata: \n\nid: 7\n\n:\n";
    default:
      return null;
  }
}

function event(text: string): string {
  return `data: ${text}\n\n`;
}
