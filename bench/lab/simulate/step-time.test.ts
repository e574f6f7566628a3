// The step time and the KV room of modelled instances against figures that were worked out elsewhere.

import { expect, test } from "bun:test";
import { h800 } from "./hardware.ts";
import { StepModel } from "./step-time.ts";
import { WORKLOADS } from "./workload.ts";

test("step model: the KV of an instance equals a sizing by hand, at 0.9 of the memory", () => {
  for (const [name, byHand] of [
    ["moonlight", 1_310_000],
    ["qwen2-vl-72b", 1_300_000],
  ] as const) {
    const { kvTokens } = new StepModel({ ...WORKLOADS[name], hardware: h800(0.9) });
    expect(Math.abs(kvTokens / byHand - 1)).toBeLessThan(0.02);
  }
});

test("step model: the host works for the rows of one rank where ranks are data parallel", () => {
  const hostMs = (name: "qwen2-vl-72b" | "kimi-k2", rows: number) => {
    const constants = { slowdown: 0, speculation: 0 };
    return new StepModel({ ...WORKLOADS[name], constants }).stepMs(rows, rows, rows);
  };
  const ofTensor = hostMs("qwen2-vl-72b", 641) - hostMs("qwen2-vl-72b", 1);
  const ofRanks = hostMs("kimi-k2", 641) - hostMs("kimi-k2", 1);
  expect(ofTensor / ofRanks).toBeCloseTo(WORKLOADS["kimi-k2"].deployment.gpus, 6);
});
