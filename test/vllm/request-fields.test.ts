// Every field of vLLM's own request classes is known here: it is honoured, ignored because it changes nothing, or refused
// with a reason. A client's field that vLLM takes never ends as "not a field that this server knows".

import { expect, setDefaultTimeout, test } from "bun:test";
import { chatRequest } from "../../src/server/openai/chat.ts";
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

/** Fields of vLLM's classes whose values are not read here, as no answer depends on them. */
const HARMLESS = {
  // For the client's own records, or for the caches of OpenAI's service.
  CompletionRequest: [
    ...["metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"],
    // Of a chat's parser, of the size of chunks, of beam search alone, of the renderer's endpoints, of images.
    ...["chat_template_kwargs", "include_reasoning", "length_penalty", "parallel_tool_calls"],
    ...["reasoning_effort", "return_mm_kwargs", "return_token_offsets", "stream_interval"],
    "top_logprobs",
  ],
  ChatCompletionRequest: [
    ...["metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"],
    ...["length_penalty", "return_mm_kwargs", "return_token_offsets", "stream_interval"],
  ],
  GenerateRequest: [
    ...["assistant_tokens_mask", "reasoning_ended", "reasoning_parser_kwargs", "stream_interval"],
    "token_offsets",
  ],
  // Ways in which vLLM holds a request in its own memory.
  SamplingParams: [
    ...["flat_logprobs", "length_penalty", "output_text_buffer_length", "reasoning_effort"],
    ...["skip_clone", "skip_reading_prefix_cache", "stream_interval"],
  ],
};

test.skipIf(vllmMissing() !== null)(
  "requests: what is ignored of vLLM's classes is harmless",
  () => {
    const fields = JSON.parse(scripted(["request_fields.py"]).split("\n").at(-1) ?? "");
    const ignored = completionsRequest.entries.user;
    for (const [name, { entries }] of Object.entries(SCHEMAS)) {
      const found = fields[name].filter((field: string) => Reflect.get(entries, field) === ignored);
      const harmless: readonly string[] = HARMLESS[name as keyof typeof HARMLESS];
      const unlisted = found.filter((field: string) => !harmless.includes(field));
      expect([name, unlisted]).toEqual([name, []]);
    }
  },
);
