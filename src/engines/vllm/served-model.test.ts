// Servers that say that they serve different models are told apart, by a warning that names both.

import { afterAll, expect, test } from "bun:test";
import { VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { workerId } from "../../core/base/ids.ts";
import type { EngineNotice } from "../kind.ts";
import { openVllmWorker } from "./open.ts";
import { ModelComparison } from "./served-model.ts";

const TRAITS = { model: "m", max_model_len: 4096, dtype: "float16", quantization: "none" };

test("compare: what differs is named with both servers; what is not said is not compared", () => {
  const comparison = new ModelComparison();
  expect(comparison.compare("http://a", TRAITS)).toBe(null);
  expect(comparison.compare("http://b", TRAITS)).toBe(null);
  expect(comparison.compare("http://b", { ...TRAITS, dtype: null })).toBe(null);
  expect(comparison.compare("http://b", { ...TRAITS, dtype: "bfloat16" })).toBe(
    "it may have other weights than the servers before it: dtype is bfloat16, of http://a float16",
  );
  expect(() => comparison.compare("http://b", { ...TRAITS, quantization: "fp8" })).toThrow(
    "http://b: quantization is fp8, of http://a none",
  );
  // A server that was started anew with something else is what others are compared with from now on.
  expect(comparison.compare("http://a", { ...TRAITS, model: "other" })).toBe(null);
  expect(comparison.compare("http://b", TRAITS)).toContain("model is m, of http://a other");
  // Precision is compared with the first server that tells its own; one that is not told is a warning.
  const mixed = new ModelComparison();
  const of = (quantization: string | null) => ({ ...TRAITS, quantization });
  expect(mixed.compare("http://a", of(null))).toBe(null);
  expect(mixed.compare("http://b", of("fp8"))).toBe(null);
  expect(() => mixed.compare("http://c", of("none"))).toThrow("none, of http://b fp8");
  expect(mixed.compare("http://d", of(null))).toContain("quantization is not told");
});

test("compare: servers that share KV and hash its blocks differently are refused by name", () => {
  const of = (hashes: string | null) => ({ ...TRAITS, disable_lookahead_block_hashes: hashes });
  const comparison = new ModelComparison();
  for (const hashes of ["false", null, "false"]) {
    expect(comparison.compare(`http://${hashes}`, of(hashes))).toBe(null);
  }
  expect(() => comparison.compare("http://b", of("true"))).toThrow(
    "http://b: disable_lookahead_block_hashes is true, of http://false false: engines of one pool name",
  );
});

const servers: VllmStandIn[] = [];
afterAll(() => Promise.all(servers.map((server) => server.stop())));

test("openVllmWorker: a server whose context differs is a warning, and serves", async () => {
  const comparison = new ModelComparison();
  const notices: EngineNotice[] = [];
  for (const contextTokens of [4096, 2048]) {
    const server = await VllmStandIn.start({ contextTokens });
    servers.push(server);
    const worker = await openVllmWorker({
      workerId: workerId(0),
      url: server.url,
      comparison,
      notice: (notice) => notices.push(notice),
    });
    await worker.close();
  }
  expect(notices).toEqual([
    { kind: "warning", message: expect.stringContaining("max_model_len is 2048, of http://") },
  ]);
});
