// Every field of vLLM's own request classes is known here: it is honoured, ignored because it changes nothing, or refused
// with a reason. A client's field that vLLM takes never ends as "not a field that this server knows".

import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { chatRequest } from "../../src/server/openai/chat-fields.ts";
import { completionsRequest } from "../../src/server/openai/completions.ts";
import { generateRequest } from "../../src/server/openai/generate.ts";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { ROOT, vllmMissing } from "./fleet.ts";

setDefaultTimeout(180_000);

const { sampling_params: samplingParams } = generateRequest.entries;
const SCHEMAS = {
  CompletionRequest: completionsRequest,
  ChatCompletionRequest: chatRequest,
  GenerateRequest: generateRequest,
  SamplingParams: samplingParams,
};

test.skipIf(vllmMissing() !== null)("requests: each field of vLLM's classes is known", () => {
  const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
  const script = join(import.meta.dir, "request-fields.py");
  const ran = Bun.spawnSync([python, script], { stdout: "pipe", stderr: "pipe" });
  expect(ran.exitCode, ran.stderr.toString()).toBe(0);
  const fields = JSON.parse(ran.stdout.toString().trim().split("\n").at(-1) ?? "");
  for (const [name, { entries }] of Object.entries(SCHEMAS)) {
    const known = Object.keys(entries);
    expect(fields[name].length, name).toBeGreaterThan(20 - (name === "GenerateRequest" ? 10 : 0));
    expect(
      fields[name].filter((field: string) => !known.includes(field)),
      name,
    ).toEqual([]);
  }
});
