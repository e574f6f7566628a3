// Reads what `foretoken simulate` is to simulate: names of the paper's workloads, a workload file, and recorded lengths.
// Checks every field; decides nothing about the simulation.

import { readFileSync } from "node:fs";
import * as v from "valibot";
import { AppError, InvalidFieldError } from "../base/errors.ts";
import type { GroupLengths } from "../sim/lengths.ts";
import { StepModel } from "../sim/step-time.ts";
import { WORKLOAD_NAMES, WORKLOADS, type Workload } from "../sim/workload.ts";
import { readGroups } from "./replay-files.ts";

const count = (max: number) => v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(max));

/** A workload file: one of the paper's, with other numbers. */
const WorkloadFile = v.strictObject({
  like: v.picklist(WORKLOAD_NAMES),
  instances: v.optional(count(1024)),
  groups: v.optional(count(65_536)),
  group_size: v.optional(count(256)),
  prompt_tokens: v.optional(count(1_048_576)),
  tokens_mean: v.optional(count(1_048_576)),
  tokens_max: v.optional(count(1_048_576)),
  spread: v.optional(v.pipe(v.number(), v.minValue(0), v.maxValue(5))),
  correlation: v.optional(v.pipe(v.number(), v.minValue(0), v.maxValue(1))),
});

/** As many requests as one production buffer holds. */
const REQUESTS_MAX = 262_144;

/** Throws AppError `usage`, `invalid_json` or `invalid_field`. */
export function workloadsOf(text: string): Workload[] {
  if (text === "all") return WORKLOAD_NAMES.map((name) => WORKLOADS[name]);
  return text.split(",").map((name) => {
    const known = WORKLOAD_NAMES.find((one) => one === name);
    return known === undefined ? workloadFile(name) : WORKLOADS[known];
  });
}

/** The workload with the lengths of recorded responses. */
export async function withLengths(workload: Workload, path: string): Promise<Workload> {
  const lengths: number[][] = [];
  for await (const group of readGroups(path)) {
    lengths.push(group.responses.map((response) => Math.max(1, response.length)));
  }
  return withGroups(workload, lengths, path);
}

function withGroups(workload: Workload, lengths: GroupLengths, path: string): Workload {
  const all = lengths.flat();
  if (all.length === 0) throw new AppError("usage", `${path}: no responses`);
  if (all.length > REQUESTS_MAX) {
    throw new AppError("usage", `${path}: ${all.length} responses; at most ${REQUESTS_MAX}`);
  }
  const longest = all.reduce((most, length) => Math.max(most, length), 1);
  const { shape } = workload;
  const tokensMax = Math.max(shape.tokensMax, longest);
  const groupSize = Math.max(...lengths.map((group) => group.length));
  const made = {
    ...workload,
    name: `${workload.name} with ${path}`,
    lengths,
    shape: { ...shape, groups: lengths.length, groupSize, tokensMax },
  };
  checkFits(made, path);
  return made;
}

function workloadFile(path: string): Workload {
  const parsed = v.safeParse(WorkloadFile, readJson(path));
  if (!parsed.success) {
    const issue = parsed.issues[0];
    const field = v.getDotPath(issue) ?? "the file";
    throw new InvalidFieldError({ where: path, field, problem: `is wrong: ${issue.message}` });
  }
  const file = parsed.output;
  const base = WORKLOADS[file.like];
  const shape = {
    groups: file.groups ?? base.shape.groups,
    groupSize: file.group_size ?? base.shape.groupSize,
    tokensMax: file.tokens_max ?? base.shape.tokensMax,
    tokensMean: file.tokens_mean ?? base.shape.tokensMean,
    spread: file.spread ?? base.shape.spread,
    correlation: file.correlation ?? base.shape.correlation,
  };
  const problem = problemOf(shape);
  if (problem !== null) throw new InvalidFieldError({ where: path, ...problem });
  const promptTokens = file.prompt_tokens ?? base.promptTokens;
  const instances = file.instances ?? base.instances;
  const made = { ...base, name: path, instances, promptTokens, shape };
  checkFits(made, path);
  return made;
}

/** A response that no engine can hold would never be done. */
function checkFits(workload: Workload, where: string): void {
  const { kvTokens } = new StepModel(workload);
  const contextTokens = workload.promptTokens + workload.shape.tokensMax;
  if (contextTokens < kvTokens) return;
  const problem = `and prompt make ${contextTokens} tokens; one instance holds the KV of ${kvTokens}`;
  throw new InvalidFieldError({ where, field: "tokens_max", problem });
}

function problemOf(shape: Workload["shape"]): { field: string; problem: string } | null {
  const { groups, groupSize, tokensMean, tokensMax } = shape;
  if (groups * groupSize > REQUESTS_MAX) {
    return { field: "groups", problem: `makes more than ${REQUESTS_MAX} requests` };
  }
  if (tokensMean >= tokensMax) {
    return { field: "tokens_mean", problem: `is ${tokensMean}; it must be below tokens_max` };
  }
  return null;
}

function readJson(path: string): unknown {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (cause) {
    const names = WORKLOAD_NAMES.join(", ");
    const message = `--workload names "${path}"; it is one of ${names}, all, or a file that can be read`;
    throw new AppError("usage", message, { cause });
  }
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new AppError("invalid_json", `${path}: not JSON`, { cause });
  }
}
