// Reads what `foretoken simulate` is to simulate: names of the paper's workloads, a workload file, and recorded lengths.
// Checks every field; decides nothing about the simulation.

import { readFileSync } from "node:fs";
import * as v from "valibot";
import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import { chunksOf, linesOf, objectOf } from "../host/json-lines.ts";
import { unknownField } from "../server/openai/unknown-field.ts";
import { readGroups } from "../tools/replay/recordings.ts";
import { type Hardware, hardwareOf, type ModelSpec } from "../tools/simulate/hardware.ts";
import type { GroupLengths } from "../tools/simulate/lengths.ts";
import { kvTokensOf } from "../tools/simulate/step-time.ts";
import { WORKLOAD_NAMES, WORKLOADS, type Workload } from "../tools/simulate/workload.ts";

const count = (max: number) => v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(max));

const positive = (max: number) => v.pipe(v.number(), v.gtValue(0), v.maxValue(max));

/** By the data sheet; docs/SIMULATOR.md lists the fields with their units. */
const GpuFields = v.strictObject({
  memory_gib: positive(10_000),
  hbm_gb_per_s: positive(1e6),
  bf16_tflops: positive(1e6),
  fp8_tflops: v.optional(positive(1e6)),
  nvlink_gb_per_s: positive(1e6),
  per_node: v.optional(count(1024)),
  memory_utilization: v.optional(v.pipe(v.number(), v.minValue(0.1), v.maxValue(1))),
});

/** By the model's config.json. */
const ModelFields = v.strictObject({
  layers: count(1000),
  hidden: count(1_048_576),
  heads: count(4096),
  kv_heads: count(4096),
  head_dim: count(4096),
  params_b: positive(1e6),
  active_params_b: v.optional(positive(1e6)),
  fp8: v.optional(v.boolean()),
  experts: v.optional(
    v.strictObject({
      params_b: positive(1e6),
      count: count(65_536),
      per_token: count(65_536),
      layers: v.optional(count(1000)),
    }),
  ),
});

/** A workload file: one of the paper's, with other numbers, another model or another GPU. */
const WorkloadFile = v.strictObject({
  like: v.picklist(WORKLOAD_NAMES, `it is one of ${WORKLOAD_NAMES.join(", ")}`),
  instances: v.optional(count(1024)),
  gpus_per_instance: v.optional(count(1024)),
  slow: v.optional(
    v.strictObject({
      instances: count(1024),
      factor: v.pipe(v.number(), v.minValue(1), v.maxValue(100)),
    }),
  ),
  gpu: v.optional(GpuFields),
  model: v.optional(ModelFields),
  groups: v.optional(count(65_536)),
  group_size: v.optional(count(256)),
  prompt_tokens: v.optional(count(1_048_576)),
  tokens_mean: v.optional(count(1_048_576)),
  tokens_max: v.optional(count(1_048_576)),
  spread: v.optional(v.pipe(v.number(), v.minValue(0), v.maxValue(5))),
  correlation: v.optional(v.pipe(v.number(), v.minValue(0), v.maxValue(1))),
});

/** vLLM's default share of a GPU's memory. */
const MEMORY_UTILIZATION = 0.9;
const GPUS_PER_NODE = 8;

function gpuOf(fields: v.InferOutput<typeof GpuFields>): Hardware {
  const { bf16_tflops: bf16Tflops, memory_utilization: memoryUtilization = MEMORY_UTILIZATION } =
    fields;
  const sheet = {
    memoryGib: fields.memory_gib,
    hbmGbPerS: fields.hbm_gb_per_s,
    bf16Tflops,
    fp8Tflops: fields.fp8_tflops ?? bf16Tflops,
    nvlinkGbPerS: fields.nvlink_gb_per_s,
  };
  return hardwareOf(sheet, { memoryUtilization, gpusPerNode: fields.per_node ?? GPUS_PER_NODE });
}

/** KV is kept in bf16, as vLLM does by default. */
function modelOf(fields: v.InferOutput<typeof ModelFields>): ModelSpec {
  const { layers, hidden, heads, kv_heads: kvHeads, head_dim: headDim, experts } = fields;
  const bytesPerParam = fields.fp8 ? 1 : 2;
  const expertBytes = (experts?.params_b ?? 0) * 1e9 * bytesPerParam;
  return {
    layers,
    hidden,
    denseBytes: fields.params_b * 1e9 * bytesPerParam - expertBytes,
    experts:
      experts === undefined
        ? null
        : {
            bytes: expertBytes,
            count: experts.count,
            perToken: experts.per_token,
            layers: experts.layers ?? layers,
          },
    activeParams: (fields.active_params_b ?? fields.params_b) * 1e9,
    attentionFlops: layers * heads * headDim * 2 * 2,
    kvBytesPerToken: layers * kvHeads * headDim * 2 * 2,
    isFp8: fields.fp8 ?? false,
  };
}

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

/** A line of a trace; fields that the simulator has no use for are not looked at. */
const TraceFields = v.object({
  group: v.union([v.string(), v.number()]),
  prompt_len: count(1_048_576),
  out_lens: v.pipe(v.array(count(1_048_576)), v.minLength(1)),
});

/** A line of Mooncake's traces: one response to a prompt, which the numbers of its blocks name. */
const MooncakeFields = v.pipe(
  v.object({
    input_length: count(1_048_576),
    output_length: count(1_048_576),
    hash_ids: v.array(v.number()),
  }),
  v.transform(({ input_length: prompt_len, output_length, hash_ids }) => {
    return { group: hash_ids.join(), prompt_len, out_lens: [output_length] };
  }),
);

const LINE_BYTES_MAX = 64 * 1024 * 1024;

/** The workload with the groups of a trace, and the mean of its prompts. */
export async function withTrace(workload: Workload, path: string): Promise<Workload> {
  const groups = new Map<string | number, number[]>();
  const prompts: number[] = [];
  for await (const { where, text } of linesOf(path, chunksOf(path), LINE_BYTES_MAX)) {
    const fields = objectOf(text, where);
    const line = checkedBy("input_length" in fields ? MooncakeFields : TraceFields, fields, where);
    const length = line.out_lens.reduce((sum, out) => sum + out, 0);
    groups.set(line.group, [...(groups.get(line.group) ?? []), length]);
    prompts.push(line.prompt_len);
  }
  const promptTokens = Math.ceil(prompts.reduce((sum, n) => sum + n, 0) / prompts.length);
  return withGroups({ ...workload, promptTokens }, [...groups.values()], path);
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
  const file = checkedBy(WorkloadFile, objectOf(readWorkload(path), path), path);
  const base = WORKLOADS[file.like];
  const { model: own, gpu, gpus_per_instance: gpus } = file;
  if (own?.experts !== undefined && own.experts.params_b >= own.params_b) {
    const problem = `is ${own.experts.params_b}; it must be below model.params_b, ${own.params_b}`;
    throw new InvalidFieldError({ where: path, field: "model.experts.params_b", problem });
  }
  const hardware = gpu === undefined ? base.hardware : gpuOf(gpu);
  const model = own === undefined ? base.model : modelOf(own);
  const kind = own === undefined || own.experts !== undefined ? base.deployment.kind : "tensor";
  const deployment = { ...base.deployment, kind, ...(gpus === undefined ? {} : { gpus }) };
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
  const { slow } = file;
  if (slow !== undefined && slow.instances > instances) {
    const problem = `is ${slow.instances}; there are ${instances} instances`;
    throw new InvalidFieldError({ where: path, field: "slow.instances", problem });
  }
  const made = {
    ...{ ...base, name: path, hardware, model, deployment, instances, promptTokens, shape },
    ...(slow && { slow }),
  };
  checkFits(made, path);
  return made;
}

/** @throws InvalidFieldError: the first field that is wrong. */
function checkedBy<S extends v.GenericSchema>(schema: S, value: object, where: string) {
  const parsed = v.safeParse(schema, value);
  if (parsed.success) return parsed.output;
  const [issue] = parsed.issues;
  const field = v.getDotPath(issue) ?? "it";
  throw new InvalidFieldError({ where, field, problem: problemWith(issue) });
}

function problemWith(issue: v.BaseIssue<unknown>): string {
  if (issue.expected === "never") return unknownField(WorkloadFile, issue.path);
  if (issue.input === undefined) return "is missing";
  return `is ${JSON.stringify(issue.input)}: ${issue.message}`;
}

/** A response that no engine can hold would never be done. */
function checkFits(workload: Workload, where: string): void {
  const kvTokens = kvTokensOf(workload);
  const contextTokens = workload.promptTokens + workload.shape.tokensMax;
  if (contextTokens < kvTokens) return;
  const room =
    kvTokens > 0
      ? `holds the KV of ${Math.floor(kvTokens)}`
      : "has no memory left beside the weights";
  const problem = `and prompt make ${contextTokens} tokens; one instance ${room}`;
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

function readWorkload(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (cause) {
    const others = `one of ${WORKLOAD_NAMES.join(", ")}, all`;
    const message = `--workload names "${path}"; it is ${others}, or a file that can be read`;
    throw new AppError("usage", message, { cause });
  }
}
