import { expect, test } from "bun:test";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { groupId } from "../base/ids.ts";
import { RequestBuffer, type RolloutRequest } from "../request/buffer.ts";
import { ChunkLength } from "./chunk-length.ts";

function started(): RolloutRequest {
  const sampling = samplingOf({ tokensMax: 100_000 });
  const spec = { groupId: groupId("g"), prompt: new Int32Array(3), size: 1, sampling };
  const [request] = new RequestBuffer().add(spec).requests;
  if (request === undefined) throw new Error("a group of one has a request");
  append(request, 5);
  return request;
}

function append(request: RolloutRequest, tokens: number): void {
  const { response } = request;
  if (response.chunks.length === 0) response.openChunk(0 as never, 0 as never, null);
  response.append(response.length, new Int32Array(tokens), new Float32Array(tokens), null);
}

function tokens(length: ChunkLength, kvTokens: number): number {
  return length.tokens(1, { kvTokens, blockTokens: 1 });
}

/** A chunk that goes on after `waitMs` with one token and then makes one every `tokenMs`. */
function run(length: ChunkLength, chunk: { waitMs: number; tokenMs: number }): void {
  const request = started();
  length.began(request, 0);
  append(request, 1);
  length.continued(request, chunk.waitMs);
  append(request, 10);
  length.continued(request, chunk.waitMs + chunk.tokenMs);
  length.ended(request, chunk.waitMs + 10 * chunk.tokenMs);
}

test("chunk length: 32 times what going on costs, in tokens that the request would have made", () => {
  const length = new ChunkLength(null);
  for (let i = 0; i < 7; i += 1) run(length, { waitMs: 60, tokenMs: 10 });
  expect(tokens(length, 2048)).toBe(64);
  run(length, { waitMs: 60, tokenMs: 10 });
  // Of the wait of six tokens, one is the token that came.
  expect(tokens(length, 2048)).toBe(5 * 32);
  for (let i = 0; i < 32; i += 1) run(length, { waitMs: 9000, tokenMs: 10 });
  expect(tokens(length, 2048)).toBe(2048);
});

test("chunk length: a machine that is slower for everything, and a few chunks that stall, change nothing", () => {
  const length = new ChunkLength(null);
  for (let i = 0; i < 32; i += 1) run(length, { waitMs: 600, tokenMs: 100 });
  for (let i = 0; i < 15; i += 1) run(length, { waitMs: 60_000, tokenMs: 10 });
  expect(tokens(length, 2048)).toBe(5 * 32);
});

test("chunk length: where KV that makes way is gone, no more is computed again than a chunk makes", () => {
  const length = new ChunkLength(null);
  const tokens = (context: number, sharesKv: boolean) =>
    length.tokens(context, { kvTokens: 1_000, blockTokens: 1, sharesKv });
  expect([tokens(20, false), tokens(500, false), tokens(9_999, false)]).toEqual([64, 500, 2_048]);
  expect(tokens(500, true)).toBe(64);
});

test("chunk length: one that is set stays", () => {
  const length = new ChunkLength(7);
  for (let i = 0; i < 32; i += 1) run(length, { waitMs: 9000, tokenMs: 10 });
  expect(tokens(length, 9e6)).toBe(7);
});

test("chunk length: the KV of a chosen chunk ends with a block", () => {
  const at = (context: number, blockTokens: number, fixed: number | null = null) =>
    new ChunkLength(fixed).tokens(context, { kvTokens: 2048, blockTokens });
  // Of the last token there is no KV yet: 40 + 57 - 1 = 96.
  expect([at(40, 32), at(33, 32), at(34, 32)]).toEqual([57, 64, 63]);
  expect([at(40, 32, 64), at(40, 1), at(40, 512)]).toEqual([64, 64, 64]);
});
