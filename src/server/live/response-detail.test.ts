// A response's tokens with what drafts had to do with each.

import { expect, test } from "bun:test";
import { requestId, weightEpoch, workerId } from "../../core/base/ids.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import { RolloutResponse } from "../../core/request/response.ts";
import { responseDetail } from "./response-detail.ts";

const NO_TEXT = () => new Uint8Array();

function detailFrom(from: number, bytes: (token: number) => Uint8Array = NO_TEXT) {
  const response = new RolloutResponse(100);
  const began = { startMs: 0, tokensMax: 6, kvTokens: 0 };
  for (const offset of [0, 6]) {
    response.openChunk(workerId(0), weightEpoch(0), null, began);
    response.append(offset, Int32Array.of(1, 2, 3, 4, 5, 6), new Float32Array(6));
  }
  // Token 0 was drawn alone; a draft of three from 1 on, of which two were accepted; one of 4, refused.
  const verifications = Int32Array.of(1, 3, 2, 4, 1, 0);
  const run = response.chunks[0]?.run;
  if (run !== undefined) run.drafts = { draftedTokens: 4, acceptedTokens: 2, verifications };
  const spec = { requestId: requestId(7), prompt: [], groupId: "g", sampleIndex: 0 };
  const request = { spec, response, status: "running" } as unknown as RolloutRequest;
  const text = { bytes } as never;
  return responseDetail(request, { from, text, nameOf: () => "vllm-0" });
}

test("detail: which tokens were accepted draft tokens, and where drafts were refused", () => {
  const unknown = new Array(6).fill(null);
  expect(detailFrom(0)).toMatchObject({
    accepted: [false, true, true, false, false, false, ...unknown],
    refused: [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0],
    chunks: [{ drafted_tokens: 4, accepted_tokens: 2 }, { drafted_tokens: null }],
  });
});

test("detail: a page that begins within a verification", () => {
  expect(detailFrom(2)).toMatchObject({
    accepted: [true, false, false, false, ...new Array(6).fill(null)],
    refused: [0, 1, 1, 0, 0, 0, 0, 0, 0, 0],
  });
});

test("detail: a character over several tokens is whole, on whatever page it begins", () => {
  // The bytes of a character of two bytes and of one of four, a token each.
  const all = new TextEncoder().encode("é😀");
  const bytes = (token: number) => all.subarray(token - 1, token);
  const { texts } = detailFrom(0, bytes);
  expect(texts).toEqual(["", "é", "", "", "", "😀", "", "é", "", "", "", "😀"]);
  for (let from = 1; from < 12; from += 1) {
    expect(detailFrom(from, bytes).texts).toEqual(texts.slice(from));
  }
});
