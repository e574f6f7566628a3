// Every field of vLLM's own request classes is known here: it is honoured, ignored because it changes nothing, or refused
// with a reason. A client's field that vLLM takes never ends as "not a field that this server knows".

import { expect, setDefaultTimeout, test } from "bun:test";
import { chatRequest } from "../../src/server/openai/chat-fields.ts";
import { completionsRequest } from "../../src/server/openai/completions.ts";
import { generateRequest } from "../../src/server/openai/generate.ts";
import { scripted, vllmMissing } from "./fleet.ts";

setDefaultTimeout(180_000);

const { sampling_params: samplingParams } = generateRequest.entries;
const SCHEMAS = {
  CompletionRequest: completionsRequest,
  ChatCompletionRequest: chatRequest,
  GenerateRequest: generateRequest,
  SamplingParams: samplingParams,
};

test.skipIf(vllmMissing() !== null)("requests: each field of vLLM's classes is known", () => {
  const fields = JSON.parse(scripted(["request_fields.py"]).split("\n").at(-1) ?? "");
  for (const [name, { entries }] of Object.entries(SCHEMAS)) {
    const known = Object.keys(entries);
    expect(fields[name].length, name).toBeGreaterThan(20 - (name === "GenerateRequest" ? 10 : 0));
    expect(
      fields[name].filter((field: string) => !known.includes(field)),
      name,
    ).toEqual([]);
  }
});
