// Texts that users hand over: prompts and recorded responses.

import fc from "fast-check";
import { loadPrompts } from "../../../../src/cli/prompts.ts";
import {
  readResponses,
  readTrace,
  type TraceGroup,
} from "../../../../src/tools/replay/recordings.ts";
import { jsonOf, PLAIN, type Schema } from "../json-text.ts";
import { type FuzzTarget, fileTarget, readOrRefused, target } from "../target.ts";
import { inPieces, textInputs } from "../variations.ts";

const ids: Schema = { type: "array", items: { type: "integer", minimum: 0, maximum: 2 ** 31 } };
const GROUP: Schema = {
  type: "object",
  properties: { group: { type: "string" }, prompt: ids, responses: { type: "array", items: ids } },
  required: ["group", "responses"],
};
const TRACE: Schema = {
  type: "object",
  properties: { name: { type: "string" }, groups: { type: "array", items: GROUP }, more: {} },
  required: ["groups"],
};
const RESPONSE: Schema = {
  type: "object",
  properties: {
    group: { enum: ["a", "b", "c"] },
    index: { type: "integer", minimum: 0, maximum: 4 },
    prompt_token_ids: { const: [1, 2] },
    token_ids: ids,
  },
  required: ["group", "index", "prompt_token_ids", "token_ids"],
};
const PROMPT: Schema = {
  type: "object",
  properties: {
    id: { type: "string" },
    token_ids: ids,
    prompt: { type: "string" },
    messages: {
      type: "array",
      items: {
        type: "object",
        properties: { role: { type: "string" }, content: { type: "string" } },
        required: ["role", "content"],
      },
    },
    n: { type: "integer", minimum: 1, maximum: 256 },
    tools: { type: "array", items: { type: "object" } },
    documents: { type: "array", items: { type: "object" } },
    chat_template_kwargs: { type: "object" },
    reasoning_effort: { type: "string" },
  },
  required: ["id"],
};
const linesOf = (schema: Schema) =>
  fc
    .tuple(
      fc.array(jsonOf(schema, PLAIN), { maxLength: 5 }),
      fc.constantFrom("\n", "\r\n", "\n\n", "\n \n", ""),
    )
    .map(([lines, end]) => lines.map((line) => line + end).join(""));

/** The same bytes in pieces of `size`, as a disk may give them. */
async function* pieces(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

type ReadGroups = (file: string, chunks: AsyncIterable<Uint8Array>) => AsyncIterable<TraceGroup>;

/** However the bytes are cut, the groups are the same. */
function groupsTarget(name: string, text: fc.Arbitrary<string>, read: ReadGroups): FuzzTarget {
  const all = async (bytes: Uint8Array, size: number) => {
    const groups: TraceGroup[] = [];
    for await (const group of read("input", pieces(bytes, size))) groups.push(group);
    return JSON.stringify(groups.map((group) => [group.name, group.prompt, group.responses]));
  };
  return target(name, () => ({
    inputs: inPieces(textInputs(text), 9),
    take: async ({ bytes, size }: { bytes: Uint8Array; size: number }) => {
      const codes = ["invalid_json", "invalid_field"] as const;
      const whole = await readOrRefused(codes, () => all(bytes, Math.max(1, bytes.length)));
      const cut = await readOrRefused(codes, () => all(bytes, size));
      if (cut !== whole) throw new Error(`in pieces of ${size} it reads ${cut}, whole ${whole}`);
    },
    close: () => {},
  }));
}

export const recordingTargets: readonly FuzzTarget[] = [
  groupsTarget("trace", jsonOf(TRACE, PLAIN), readTrace),
  groupsTarget("responses", linesOf(RESPONSE), readResponses),
  fileTarget("prompts", textInputs(linesOf(PROMPT)), {
    ending: ".jsonl",
    codes: ["invalid_json", "invalid_field", "usage"],
    read: (path) => loadPrompts(path, { vocabularySize: 1000, limit: null }),
  }),
];
