// Streams and what lies in them, on a real context.

import { describe, expect, test } from "bun:test";
import {
  EPOCH,
  newRequest,
  run,
  sharedModel,
  skipReason,
} from "../../../test/llama/engine-fixture.ts";
import { LlamaContext } from "./context.ts";
import { Residency } from "./residency.ts";
import { Sampler } from "./sampler.ts";
import { Sequence } from "./sequence.ts";

const STREAMS = 6;

function newContext(): LlamaContext {
  const { model } = sharedModel();
  return new LlamaContext(model, { streams: STREAMS, streamTokens: 64, batchRows: 64 });
}

/** A sequence with its first `tokens` tokens computed. */
function resident(
  context: LlamaContext,
  residency: Residency,
  options: { id: number; tokens: number },
) {
  const sequence = new Sequence(run(newRequest(options.id)));
  residency.activate(sequence, EPOCH);
  for (let i = 0; i < options.tokens; i += 1) {
    context.add(sequence.tokens[i] ?? 0, i, sequence.stream, false);
  }
  if (options.tokens > 0) context.decode();
  sequence.computed = options.tokens;
  return sequence;
}

/** Logits after the sequence's KV: they differ from one KV to another. */
function nextLogits(context: LlamaContext, sequence: Sequence): number[] {
  const sampler = new Sampler(sharedModel().model.info.shape.vocabularySize);
  const row = context.add(83, sequence.computed, sequence.stream, true);
  context.decode();
  context.copyLogits(row, sampler.rowPointer);
  context.truncate(sequence.stream, sequence.computed);
  return [...sampler.row];
}

describe.skipIf(skipReason !== null)("residency", () => {
  test("gather: running sequences come to stand side by side, and everybody keeps their KV", () => {
    const context = newContext();
    const residency = new Residency(context);
    const all = [5, 6, 7, 0, 9].map((tokens, id) => resident(context, residency, { id, tokens }));
    const [first, parked, second, fresh, third] = all;
    if (!first || !parked || !second || !fresh || !third) throw new Error("five sequences");
    residency.setIdle(parked);
    residency.drop(second);
    const running = [third, first, fresh];
    const before = [parked, first, third].map((sequence) => nextLogits(context, sequence));
    residency.gather(running);
    expect(running.map(({ stream }) => stream).toSorted()).toEqual([0, 1, 2]);
    expect(parked).toMatchObject({ stream: -1, computed: 6 });
    expect(residency.activate(parked, EPOCH)).toBe("kept");
    expect([parked, first, third].map((sequence) => nextLogits(context, sequence))).toEqual(before);
    expect(new Set([parked, ...running].map(({ stream }) => stream)).size).toBe(4);
    context.free();
  });
});
