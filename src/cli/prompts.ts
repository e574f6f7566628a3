// Reads PROMPTS.jsonl, checks every line of it, and makes the groups of one rollout of them. A line is a group of
// /v1/rollouts in the same words. Bad input ends here, with the name of its line.

import type { ModelSide } from "../compose/model.ts";
import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import { REQUESTS_MAX } from "../core/request/buffer.ts";
import { outOfBounds, problemOf } from "../core/request/sampling-bounds.ts";
import type { EngineWorker } from "../core/rollout/worker.ts";
import { chunksOf, linesOf, objectOf, show } from "../host/json-lines.ts";
import { checked } from "../server/openai/fields.ts";
import { chatOf } from "../server/openai/messages.ts";
import { ChatRenderer } from "../server/openai/rendering.ts";
import {
  type GroupFields,
  type GroupPlan,
  GroupSchema,
  type GroupsContext,
  givenPrompt,
  groupsOf,
  type RolloutPlan,
} from "../server/rollouts/plan.ts";
import { inlineEncoder } from "../text/encoder.ts";
import type { Text } from "../text/text.ts";

export interface PromptLine {
  /** Line of the file; the first one is 1. */
  readonly line: number;
  readonly group: GroupFields;
  /** The line's text as written. */
  readonly source: string;
}

export interface PromptOptions {
  /** Bound of token ids: 0 <= id < vocabularySize. */
  readonly vocabularySize: number;
  /** Limit of prompts to read; null: all. */
  readonly limit: number | null;
}

/** Limit of a line: a prompt of a million token ids, written in decimal, is 8 MB. */
export const LINE_BYTES_MAX = 16 * 1024 * 1024;

/** Reads the whole file, or its first `limit` prompts. Throws AppError `usage`, `invalid_json` or `invalid_field`. */
export async function loadPrompts(path: string, options: PromptOptions): Promise<PromptLine[]> {
  const prompts: PromptLine[] = [];
  const lineOfId = new Map<string, number>();
  for await (const { line, where, text: source } of linesOf(path, chunksOf(path), LINE_BYTES_MAX)) {
    const group = parseLine(source, where, options);
    const earlier = lineOfId.get(group.id);
    if (earlier !== undefined) {
      const problem = `is ${show(group.id)}, as on line ${earlier}; every id must be another one`;
      throw new InvalidFieldError({ where, field: "id", problem });
    }
    lineOfId.set(group.id, line);
    prompts.push({ line, group, source });
    if (prompts.length === options.limit) break;
    // More could not be run in one iteration.
    if (prompts.length > REQUESTS_MAX) {
      throw new AppError("invalid_json", `${where}: more than ${REQUESTS_MAX} prompts`);
    }
  }
  if (prompts.length === 0) throw new AppError("invalid_json", `${path}: holds no prompt`);
  return prompts;
}

function parseLine(source: string, where: string, { vocabularySize }: PromptOptions): GroupFields {
  const value = objectOf(source, where);
  try {
    const group = checked(GroupSchema, value);
    givenPrompt(group, { text: { vocabularySize }, at: "" });
    const { messages } = group;
    if (messages) chatOf({ ...group, messages }, { source });
    return group;
  } catch (error) {
    if (!(error instanceof InvalidFieldError)) throw error;
    throw new InvalidFieldError({ where, field: error.field, problem: error.problem });
  }
}

/** The prompts of a file, and the settings of lines that do not have their own. */
export interface PromptFile {
  readonly path: string;
  readonly lines: readonly PromptLine[];
  readonly model: Pick<ModelSide, "text" | "eosTokenIds" | "llama">;
  readonly groupSize: number;
  readonly maxTokens: number;
  readonly temperature: number;
  readonly seed: number;
}

/** The parts of a sidecar that encode texts and chats. */
type Writing = Pick<GroupsContext, "encoder" | "chats">;

function writingOf(text: Text): Writing {
  const encoder = inlineEncoder(text);
  return { encoder, chats: new ChatRenderer({ encoder, engines: null }) };
}

/** Plans one rollout of the prompts. Texts get no special tokens but their own. @throws AppError invalid_field, naming the line. */
export async function planOfPrompts(
  { path, lines, model, groupSize, maxTokens, temperature, seed }: PromptFile,
  writing: Writing = writingOf(model.text),
): Promise<RolloutPlan> {
  const { text, eosTokenIds } = model;
  const asked = lines.map(({ group, source }, i) => ({ group, source, at: `groups.${i}.` }));
  const sampling_params = { temperature, seed, max_tokens: maxTokens };
  const { signal } = new AbortController();
  const limits = { contextTokens: null, requestsMax: REQUESTS_MAX };
  const how = { adapter: null, addSpecial: false };
  const context = { ...writing, ...limits, ...how, text, eosTokenIds, signal };
  try {
    const groups = await groupsOf(asked, { n: groupSize, sampling_params }, context);
    for (const { sampling } of groups) {
      const wrong = outOfBounds(sampling, text);
      if (wrong !== null)
        throw new AppError("invalid_config", `${wrong.field} ${problemOf(wrong)}`);
    }
    return { id: null, groups, priority: 0, isDetached: true, isStrict: true };
  } catch (error) {
    if (!(error instanceof InvalidFieldError)) throw error;
    const [, index, field = error.field] = /^groups\.(\d+)\.(.*)$/.exec(error.field) ?? [];
    const line = index === undefined ? undefined : lines[Number(index)];
    const where = line === undefined ? path : `${path}:${line.line}: prompt "${line.group.id}"`;
    throw new InvalidFieldError({ where, field, problem: error.problem });
  }
}

const lengthOf = ({ prompt, sampling }: GroupPlan): number => prompt.length + sampling.tokensMax;

/** Tokens of the longest prompt and its output. */
export function longestIn({ groups }: RolloutPlan): number {
  return Math.max(...groups.map(lengthOf));
}

/** Throws AppError naming a prompt that an engine has no room for. */
export function checkRoom(
  { groups }: RolloutPlan,
  { path, lines, model }: PromptFile,
  engines: readonly Pick<EngineWorker, "capacity">[],
): void {
  const capacities = engines.map(({ capacity }) => capacity);
  const kvTokens = Math.min(...capacities.map((one) => one.kvTokens));
  const contextTokens =
    model.llama?.info.contextTokens ?? Math.min(...capacities.map((one) => one.contextTokens));
  for (const [i, group] of groups.entries()) {
    const total = lengthOf(group);
    if (total <= Math.min(contextTokens, kvTokens)) continue;
    const has = `has ${group.prompt.length} tokens`;
    const sum = `with --max-tokens ${group.sampling.tokensMax} that is ${total}`;
    const where = `${path}:${lines[i]?.line}: prompt "${group.id}" ${has}; ${sum}`;
    if (total > contextTokens) {
      const problem = `${where}, more than the model's context of ${contextTokens}`;
      throw new AppError("context_length_exceeded", problem);
    }
    const problem = `${where}, more than a worker's whole KV budget, --kv-tokens ${kvTokens}`;
    throw new AppError("kv_budget_too_small", problem);
  }
}
