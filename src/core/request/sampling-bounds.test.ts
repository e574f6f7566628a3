import { expect, test } from "bun:test";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { NO_SHAPING, type SamplingParams } from "./request.ts";
import { outOfBounds, problemOf } from "./sampling-bounds.ts";

const VOCABULARY = 8;
const PLAIN: SamplingParams = samplingOf({ tokensMax: 4, stopTokenIds: [1] });

function told(change: Partial<SamplingParams>): string | null {
  const wrong = outOfBounds({ ...PLAIN, ...change }, { vocabularySize: VOCABULARY });
  return wrong === null ? null : `${wrong.field} ${problemOf(wrong)}`;
}

const shaped = (change: object) => told({ shaping: { ...NO_SHAPING, ...change } });

test("outOfBounds: takes everything that a trainer sends", () => {
  for (const temperature of [0, -0, 1e-10, 1e-6, 0.01, 0.7, 1, 2, 100, 1e6]) {
    expect(told({ temperature })).toBeNull();
  }
  for (const seed of [-1, 0, 2 ** 32, Number.MAX_SAFE_INTEGER]) expect(told({ seed })).toBeNull();
  expect(told({ tokensMax: 2 ** 31 - 1, topLogprobs: 20 })).toBeNull();
  expect(shaped({ topK: 2 ** 31 - 1, topP: 1e-320, minP: 1, tokensMin: 4 })).toBeNull();
  expect(shaped({ repetitionPenalty: 0.001, presencePenalty: -2, frequencyPenalty: 2 })).toBeNull();
  expect(shaped({ logitBias: [{ token: 7, bias: -100 }] })).toBeNull();
});

test("outOfBounds: names the field, what was seen and the bound", () => {
  const bound = "not 0 or in 1e-10..1000000";
  expect(told({ temperature: 1e-320 })).toBe(`temperature is 1e-320, ${bound}`);
  expect(told({ temperature: Number.POSITIVE_INFINITY })).toBe(`temperature is Infinity, ${bound}`);
  expect(told({ temperature: Number.NaN })).toBe(`temperature is NaN, ${bound}`);
  expect(told({ temperature: -1 })).toBe(`temperature is -1, ${bound}`);
  expect(told({ tokensMax: 0 })).toBe("max_tokens is 0, not a whole number in 1..2147483647");
  expect(told({ topLogprobs: 21 })).toBe("logprobs is 21, not a whole number in 0..20");
  expect(told({ seed: 2 ** 53 })).toContain("seed is 9007199254740992");
  expect(told({ stopTokenIds: [-1] })).toContain("stop_token_ids is -1");
  expect(told({ stopTokenIds: new Array(4097).fill(1) })).toBe(
    "stop_token_ids is a list of 4097, not one of at most 4096",
  );
  expect(shaped({ topP: 0 })).toBe("top_p is 0, not > 0 and <= 1");
  expect(shaped({ topP: Number.NaN })).toBe("top_p is NaN, not > 0 and <= 1");
  expect(shaped({ minP: 1.5 })).toBe("min_p is 1.5, not in 0..1");
  expect(shaped({ topK: 1.5 })).toContain("top_k is 1.5");
  expect(shaped({ repetitionPenalty: 1e-38 })).toBe(
    "repetition_penalty is 1e-38, not in 0.001..1000",
  );
  expect(shaped({ presencePenalty: Number.NaN })).toBe("presence_penalty is NaN, not in -2..2");
  expect(shaped({ frequencyPenalty: 3 })).toBe("frequency_penalty is 3, not in -2..2");
  expect(shaped({ logitBias: [{ token: 3, bias: 101 }] })).toBe(
    "logit_bias is 101 for token 3, not in -100..100",
  );
  expect(shaped({ logitBias: [{ token: 8, bias: 1 }] })).toBe(
    "logit_bias is for token 8, not one in 0..7",
  );
});

test("outOfBounds: min_tokens where every token ends the response leaves nothing to draw", () => {
  const stopTokenIds = Array.from({ length: VOCABULARY }, (_, token) => token);
  const shaping = { ...NO_SHAPING, tokensMin: 1 };
  expect(told({ stopTokenIds, shaping })).toBe(
    "min_tokens is 1, not 0, as all 8 tokens of the vocabulary are stop tokens",
  );
  expect(told({ stopTokenIds })).toBeNull();
  expect(told({ stopTokenIds: stopTokenIds.slice(1), shaping })).toBeNull();
  expect(told({ stopTokenIds: new Array(20).fill(3), shaping })).toBeNull();
});
