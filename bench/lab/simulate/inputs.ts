// What the lab is asked to simulate: names of workloads, modules that export one, and recorded lengths.

import { resolve } from "node:path";
import * as v from "valibot";
import { InvalidFieldError } from "../../../src/core/base/errors.ts";
import { chunksOf, linesOf, objectOf } from "../../../src/host/json-lines.ts";
import { readGroups } from "../../../src/tools/replay/recordings.ts";
import { oneOf } from "../../harness.ts";
import type { GroupLengths } from "./lengths.ts";
import { kvTokensOf } from "./step-time.ts";
import { WORKLOAD_NAMES, WORKLOADS, type Workload } from "./workload.ts";

/** @throws AppError usage. */
export async function workloadsOf(text: string): Promise<Workload[]> {
  const names = text === "all" ? WORKLOAD_NAMES : text.split(",");
  return Promise.all(names.map(named));
}

async function named(name: string): Promise<Workload> {
  if (!name.endsWith(".ts")) return WORKLOADS[oneOf("workload", name, WORKLOAD_NAMES)];
  const { workload }: { workload: Workload } = await import(resolve(name));
  return checked({ ...workload, name }, name);
}

const tokens = v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(1_048_576));

/** A line of a trace of sessions (examples/traces); a session's turns are one response. */
const SessionLine = v.object({
  group: v.union([v.string(), v.number()]),
  prompt_len: tokens,
  out_lens: v.pipe(v.array(tokens), v.minLength(1)),
});

/** A line of Mooncake's traces: one response to a prompt, which the numbers of its blocks name. */
const MooncakeLine = v.pipe(
  v.object({ input_length: tokens, output_length: tokens, hash_ids: v.array(v.number()) }),
  v.transform(({ input_length, output_length, hash_ids }) => {
    return { group: hash_ids.join(), prompt_len: input_length, out_lens: [output_length] };
  }),
);

const LINE_BYTES_MAX = 64 * 1024 * 1024;

/** The workload with the groups of a trace and the mean of its prompts, or with the lengths of recorded responses. */
export async function withTrace(workload: Workload, path: string): Promise<Workload> {
  const groups = new Map<string | number, number[]>();
  const prompts: number[] = [];
  for await (const { where, text } of linesOf(path, chunksOf(path), LINE_BYTES_MAX)) {
    const fields = objectOf(text, where);
    if ("token_ids" in fields) {
      const lengths: number[][] = [];
      for await (const { responses } of readGroups(path)) {
        lengths.push(responses.map((response) => Math.max(1, response.length)));
      }
      return withGroups(workload, lengths, path);
    }
    const parsed = v.safeParse("input_length" in fields ? MooncakeLine : SessionLine, fields);
    if (!parsed.success) {
      const [issue] = parsed.issues;
      const field = v.getDotPath(issue) ?? "group";
      throw new InvalidFieldError({ where, field, problem: `is wrong: ${issue.message}` });
    }
    const { group, prompt_len: promptTokens, out_lens: outs } = parsed.output;
    const length = outs.reduce((sum, out) => sum + out, 0);
    groups.set(group, [...(groups.get(group) ?? []), length]);
    prompts.push(promptTokens);
  }
  const promptTokens = Math.ceil(prompts.reduce((sum, n) => sum + n, 0) / prompts.length);
  return withGroups({ ...workload, promptTokens }, [...groups.values()], path);
}

function withGroups(workload: Workload, lengths: GroupLengths, path: string): Workload {
  const { shape } = workload;
  const longest = lengths.flat().reduce((most, length) => Math.max(most, length), 1);
  const tokensMax = Math.max(shape.tokensMax, longest);
  const groupSize = Math.max(...lengths.map((group) => group.length));
  const name = `${workload.name} with ${path}`;
  const made = { ...shape, groups: lengths.length, groupSize, tokensMax };
  return checked({ ...workload, name, lengths, shape: made }, path);
}

/** A response that no engine can hold would never be done. @throws InvalidFieldError. */
function checked(workload: Workload, where: string): Workload {
  const kvTokens = kvTokensOf(workload);
  const contextTokens = workload.promptTokens + workload.shape.tokensMax;
  if (contextTokens < kvTokens) return workload;
  const problem = `and prompt make ${contextTokens} tokens; one instance has room for ${Math.max(0, kvTokens)}`;
  throw new InvalidFieldError({ where, field: "tokensMax", problem });
}
