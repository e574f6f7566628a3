import { expect, test } from "bun:test";
import { samplingOf, specOf } from "../../../test/suite/request-spec.ts";
import { ChunkRun } from "./chunk-run.ts";

test("chunk run: an undivided response that begins anew behind its stop token does not end without tokens", () => {
  const sampling = samplingOf({ tokensMax: 8, stopTokenIds: [5] });
  const run = new ChunkRun({
    ...{
      spec: { ...specOf(0, { prompt: Int32Array.of(1), sampling }), divisible: false },
      output: new Int32Array(0),
    },
    ...{ chunkTokens: 8, draft: null, isUrgent: false, chunk: 1 },
  });
  const piece = { kind: "piece", alternatives: [], usage: null, weightVersion: null } as const;
  run.begin();
  const said = { ...piece, tokens: [3, 5], logprobs: [-1, -2], finishReason: null };
  expect([run.take(said), run.outcome(100).kind]).toEqual(["full", "finished"]);
  // The server gave the request up before it said that it was over.
  run.begin();
  expect([run.isFull, run.outcome(100).kind]).toEqual([false, "short"]);
  expect([run.take(said), run.outcome(100).kind, run.made]).toEqual(["full", "finished", 2]);
});
