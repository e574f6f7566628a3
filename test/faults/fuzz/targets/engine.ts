// What a vLLM server sends: streams of events in any pieces, and its metrics.

import fc from "fast-check";
import { SseReader } from "../../../../src/engines/vllm/answer.ts";
import { readMetrics } from "../../../../src/engines/vllm/metrics.ts";
import { errorMessage, readEvent } from "../../../../src/engines/vllm/stream-event.ts";
import { anyJson, jsonOf, PLAIN, type Schema } from "../json-text.ts";
import { type FuzzTarget, parser } from "../target.ts";
import { inPieces, textInputs } from "../variations.ts";

const NUMBER: Schema = { type: "number", minimum: -9, maximum: 9 };
const TOKEN: Schema = { type: "integer", minimum: 0, maximum: 1000 };
const listOf = (items: Schema): Schema => ({ type: "array", items });
const objectOf = (properties: Record<string, Schema>): Schema => ({
  type: "object",
  properties,
  required: Object.keys(properties),
});
const ALTERNATIVE = objectOf({
  token_id: TOKEN,
  token: { type: "string" },
  logprob: NUMBER,
  rank: TOKEN,
});
const CHOICE: Schema = {
  type: "object",
  properties: {
    index: TOKEN,
    token_ids: listOf(TOKEN),
    logprobs: {
      type: "object",
      properties: {
        content: listOf(
          objectOf({ token_id: TOKEN, logprob: NUMBER, top_logprobs: listOf(ALTERNATIVE) }),
        ),
        tokens: listOf({ enum: ["token_id:7", "token_id:-1", "x"] }),
        token_logprobs: listOf(NUMBER),
        top_logprobs: listOf({ type: "object", properties: { "token_id:3": NUMBER } }),
      },
    },
    finish_reason: { enum: ["stop", "length", null] },
    weight_versions: listOf(objectOf({ version: { type: "string" } })),
  },
};
const EVENT: Schema = {
  type: "object",
  properties: {
    choices: listOf(CHOICE),
    usage: objectOf({ prompt_tokens: TOKEN, completion_tokens: TOKEN }),
    object: { enum: ["chunk", "error"] },
    error: objectOf({ message: { type: "string" }, code: TOKEN }),
  },
};
const line = fc.oneof(
  { arbitrary: jsonOf(EVENT, PLAIN).map((json) => `data: ${json}`), weight: 9 },
  fc.constantFrom("data: [DONE]", "", ": comment", "event: x", "data:", "\r", "data: \0"),
  anyJson,
);
const stream = fc
  .tuple(fc.array(line, { maxLength: 5 }), fc.constantFrom("\n", "\n\n", "\r\n"))
  .map(([lines, end]) => lines.map((one) => one + end).join(""));

const LINE_BYTES_MAX = 2_000;

function events(bytes: Uint8Array, size: number): string {
  const reader = new SseReader(LINE_BYTES_MAX);
  const read: string[] = [];
  for (let at = 0; at < bytes.length; at += size) {
    const isRight = reader.push(Buffer.from(bytes.subarray(at, at + size)), (data) => {
      read.push(JSON.stringify(readEvent(data, 2)));
      errorMessage(data.toString());
      return true;
    });
    if (!isRight) return "a line that is too long";
  }
  return read.join("\n");
}

/** However a stream comes in pieces, its events are the same; but a long line may be whole in a large piece. */
function readStream({ bytes, size }: { bytes: Uint8Array; size: number }): void {
  const whole = events(bytes, Math.max(1, bytes.length));
  const cut = events(bytes, size);
  if (cut === whole || bytes.length > LINE_BYTES_MAX) return;
  throw new Error(`in pieces of ${size} it reads ${cut}, whole ${whole}`);
}

const NAMES = [
  "vllm:num_requests_running",
  "vllm:generation_tokens_total",
  "vllm:kv_cache_usage_perc",
].concat(["vllm:cache_config_info", "process_start_time_seconds", "# HELP", "vllm:", "x"]);
const LABELS = ["", '{engine="0"}', '{block_size="16",num_gpu_blocks="9"}', '{a="', "{", '{a="}"}'];
const VALUES = ["0", "1.5", "NaN", "+Inf", "-1", "1e999", "", "0x10", "9".repeat(400)];
const metricsText = fc
  .array(
    fc.tuple(fc.constantFrom(...NAMES), fc.constantFrom(...LABELS), fc.constantFrom(...VALUES)),
    { maxLength: 8 },
  )
  .map((lines) => lines.map((parts) => `${parts[0]}${parts[1]} ${parts[2]}\n`).join(""));

function checkMetrics(bytes: Uint8Array): void {
  const { running, waiting, kvUsage } = readMetrics(new TextDecoder().decode(bytes));
  const wrong = [running, waiting, kvUsage].find((one) => !Number.isFinite(one));
  if (wrong !== undefined) throw new Error(`a gauge is ${wrong}`);
}

export const engineTargets: readonly FuzzTarget[] = [
  parser("vllm stream", inPieces(textInputs(stream), 40), readStream),
  parser("vllm metrics", textInputs(metricsText), checkMetrics),
];
