import { expect, onTestFinished, test } from "bun:test";
import { SglangStandIn } from "../../../test/faults/stand-in/sglang-stand-in.ts";
import { VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { examineSglang } from "./sglang-checks.ts";

const examine = async (server: { url: string; stop(): Promise<void> }) => {
  onTestFinished(() => server.stop());
  return await examineSglang({ url: server.url, token: null, salt: "s", began: () => {} });
};

test("doctor: an SGLang server is examined as one, and a vLLM server is not", async () => {
  const diagnosis = await examine(await SglangStandIn.start());
  expect(diagnosis).toMatchObject({ version: "0.5.23", model: "stand-in" });
  const verdicts = diagnosis?.findings.map(({ check, verdict }) => [check, verdict]);
  expect(verdicts).toEqual([
    ["token ids in and out", "ok"],
    ["KV budget", "ok"],
    ["seeds", "info"],
    ["settings", "warn"],
    ["chunks at temperature 0", "ok"],
  ]);
  expect(await examine(await VllmStandIn.start())).toBeNull();
});

test("doctor: an SGLang server that makes no tokens is a failure", async () => {
  const server = await SglangStandIn.start({ faults: () => ({ kind: "broken", afterTokens: 0 }) });
  const diagnosis = await examine(server);
  expect(diagnosis?.findings).toMatchObject([{ check: "token ids in and out", verdict: "fail" }]);
});
