import { expect, test } from "bun:test";
import { parsePluginRunner } from "./plugin-runner.ts";

test("plugin-runner: the last line of the plugin's answer names the runner and the reason", () => {
  expect(parsePluginRunner("INFO a log line\nrunner 2: vLLM 0.33.0 has Triton here\n")).toEqual({
    runner: 2,
    reason: "vLLM 0.33.0 has Triton here",
  });
  expect(parsePluginRunner("runner 1: it is set")).toEqual({ runner: 1, reason: "it is set" });
  expect(parsePluginRunner("runner 0: on GPUs")).toEqual({ runner: 0, reason: "on GPUs" });
  for (const other of ["", "runner 3: x", "Traceback", "runner 1: x\nand more"]) {
    expect(parsePluginRunner(other)).toBeNull();
  }
});
