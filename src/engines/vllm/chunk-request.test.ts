import { expect, test } from "bun:test";
import { runCommand, samplingOf, specOf } from "../../../test/suite/request-spec.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import { chunkRequest, streamInterval } from "./chunk-request.ts";
import { ChunkRun } from "./chunk-run.ts";

function saltOf(cacheSalt: string | null, adapter: string | null, epoch = 3): string {
  const sampling = samplingOf({ tokensMax: 8, cacheSalt, adapter });
  const request = specOf(0, { prompt: Int32Array.of(1), sampling });
  const run = new ChunkRun(runCommand(request, { chunkTokens: 8 }), 1);
  const ask = chunkRequest(run, new Int32Array(0), {
    contextTokens: 100,
    cacheSalt: "run",
    epoch: weightEpoch(epoch),
    openStreams: 1,
    streamIntervalMax: 8,
  });
  return ask?.cacheSalt ?? "";
}

test("cache salt: epochs, adapters and clients' salts find none of one another's KV", () => {
  const salts = [
    saltOf(null, null),
    saltOf(null, null, 4),
    saltOf("7", null),
    saltOf("8", null),
    saltOf("7", "a"),
    saltOf(null, "a"),
    saltOf("x".repeat(512), null),
  ];
  expect(new Set(salts).size).toBe(salts.length);
  expect(saltOf("7", null)).toBe(saltOf("7", null));
  // vLLM takes 1,024 characters.
  for (const salt of salts) expect(salt.length).toBeLessThan(100);
});

test("streamInterval: four tokens for each open stream, never above the limit", () => {
  expect([0, 1, 2, 7, 8, 10_000].map((streams) => streamInterval(streams, 32))).toEqual([
    4, 4, 8, 28, 32, 32,
  ]);
});
