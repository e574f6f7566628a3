import { expect, onTestFinished, test } from "bun:test";
import { SglangStandIn } from "../../../test/faults/stand-in/sglang-stand-in.ts";
import { VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { Engine } from "./engine.ts";
import { examine } from "./examine.ts";

async function examined(server: { url: string; stop(): Promise<void> }) {
  onTestFinished(() => server.stop());
  const options = { samplesMax: 64, salt: "s", began: () => {} };
  const diagnosis = await examine(new Engine(server.url, null), options);
  const verdicts = diagnosis.findings.map(({ check, verdict }) => [check, verdict]);
  return { ...diagnosis, verdicts };
}

test("doctor: an SGLang server is examined as one", async () => {
  const diagnosis = await examined(await SglangStandIn.start());
  expect(diagnosis).toMatchObject({ version: "0.5.23", model: "stand-in" });
  expect(diagnosis.verdicts).toEqual([
    ["token ids in and out", "ok"],
    ["KV budget", "info"],
    ["settings", "warn"],
    ["chats", "info"],
    ["chunks at temperature 0", "ok"],
  ]);
});

test("doctor: what the worker's probe warns of is a finding of a vLLM server, beside the checks", async () => {
  const { model, findings } = await examined(await VllmStandIn.start({ hasPriorities: false }));
  expect(model).toBe("stand-in");
  expect(findings).toContainEqual({
    check: "settings",
    verdict: "warn",
    reason: "no priorities",
    fix: "the tail is served first with --scheduling-policy priority",
  });
  for (const check of [
    "version",
    "stop tokens and lengths",
    "chunks at temperature 0",
    "sampling",
  ]) {
    expect(findings).toContainEqual(expect.objectContaining({ check, verdict: "ok" }));
  }
});

test("doctor: a server that makes no tokens is a failure, with the probe's words", async () => {
  const server = await SglangStandIn.start({ faults: () => ({ kind: "broken", afterTokens: 0 }) });
  const { findings } = await examined(server);
  expect(findings).toMatchObject([{ check: "health", verdict: "fail" }]);
  expect(findings[0]?.reason).toContain("/generate makes no tokens");
});
