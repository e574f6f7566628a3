// The body of POST /v1/rollouts: its schema, and the groups that it becomes. Everything is checked before the first
// response begins.

import * as v from "valibot";
import { AppError, InvalidFieldError } from "../../core/base/errors.ts";
import type { DrawKey, SamplingParams } from "../../core/request/request.ts";
import type { SavedOutput } from "../../core/request/response.ts";
import { PRIORITY_MAX } from "../../core/schedule/policy.ts";
import { membersOf } from "../../proto/json.ts";
import type { Encoder, Text } from "../../text/text.ts";
import * as f from "../openai/fields.ts";
import {
  chatOf,
  messageList,
  TEMPLATE_ENTRIES,
  type TemplateFields,
  templateFieldOf,
} from "../openai/messages.ts";
import type { ChatRenderer } from "../openai/rendering.ts";
import {
  drawingOf,
  GONE_ENTRIES,
  MAX_TOKENS_FIELD,
  SAMPLING_ENTRIES,
} from "../openai/sampling-fields.ts";
import { invalid } from "../route.ts";

export const ROLLOUT_LIMITS = {
  requestsMax: 65_536,
  /** Limit of rollouts held at the same time, finished ones included. */
  rolloutsMax: 256,
  /** Memory limit of finished rollouts' prompts and responses, which can still be fetched. */
  keptBytesMax: 256 * 2 ** 20,
};
export type RolloutLimits = Readonly<typeof ROLLOUT_LIMITS>;

const GROUPS_MAX = 16_384;
const GROUP_SIZE_MAX = 256;
const ID_CHARACTERS_MAX = 256;

const id = v.pipe(
  v.string(f.isNot("a text")),
  v.minLength(1, "is empty"),
  v.maxLength(ID_CHARACTERS_MAX, `has more than ${ID_CHARACTERS_MAX} characters`),
  f.wellFormed,
);

/** vLLM's names. Stop strings are not among them: a rollout deals in token ids. Its lines have no place for reports. */
const {
  n: _n,
  stop: _stop,
  include_stop_str_in_output: _include,
  skip_special_tokens: _skip,
  spaces_between_special_tokens: _spaces,
  prompt_logprobs: _prompt,
  return_routed_experts: _experts,
  ...SAMPLING
} = SAMPLING_ENTRIES;

const SamplingSchema = v.strictObject({
  ...SAMPLING,
  max_tokens: MAX_TOKENS_FIELD,
});

/** Schema of a group, and of a line of a prompts file (cli/prompts.ts). */
export const GroupSchema = v.strictObject({
  id,
  /** Exactly one of prompt, messages and token_ids is required. */
  prompt: v.nullish(v.pipe(f.text, f.wellFormed)),
  messages: v.nullish(messageList),
  token_ids: v.nullish(f.tokenList),
  ...TEMPLATE_ENTRIES,
  n: f.integer(1, GROUP_SIZE_MAX),
  /** Number of responses with which the group is whole: the first to finish; the others are given up. Default: all. */
  finish_first: f.integer(1, GROUP_SIZE_MAX),
  sampling_params: v.nullish(SamplingSchema),
});

export const RolloutRequestSchema = v.strictObject({
  /** Names the rollout; a second request with the same id and body attaches to the first. */
  id: f.name,
  groups: f.listOf(GroupSchema, GROUPS_MAX),
  /** Size of every group that does not set its own. */
  n: f.integer(1, GROUP_SIZE_MAX),
  sampling_params: v.nullish(SamplingSchema),
  /** Model of every group, or an adapter on top of it. Default: the model. */
  model: v.nullish(f.text),
  priority: f.integer(-PRIORITY_MAX, PRIORITY_MAX),
  /** The rollout continues when the client has disconnected. */
  detached: f.flag,
  ...GONE_ENTRIES,
  /** strict: all tokens of a response are of one weight epoch. mixed: it continues under the next one. */
  on_policy: f.oneOf("strict", "mixed"),
  /** mixed, for tokens of weights at most that many epochs old: a response with older ones begins anew. */
  max_staleness: f.integer(0, 2 ** 20),
  /** Default of the groups' finish_first. */
  finish_first: f.integer(1, GROUP_SIZE_MAX),
  /** Ends the rollout when that many groups are whole; the others can be carried on. Default: all. */
  finish_groups: f.integer(1, GROUPS_MAX),
  /** Id of an ended rollout: its groups that were not whole go on in this one, before its own. */
  carry_from: f.name,
  /** The rollout does not end before a change with `open: false`, although all its groups are whole. Default: false. */
  open: f.flag,
});

/** The body of POST /v1/rollouts/:id/groups. A group that the rollout has gets `n` more responses, and names no prompt. */
export const AdditionSchema = v.strictObject({
  groups: f.listOf(
    v.strictObject({
      ...GroupSchema.entries,
      /** Responses that the group has before these: the same request again adds nothing. Default: as many as it has. */
      from: f.integer(0, 2 ** 20),
    }),
    GROUPS_MAX,
  ),
  n: f.integer(1, GROUP_SIZE_MAX),
  sampling_params: v.nullish(SamplingSchema),
  finish_first: f.integer(1, GROUP_SIZE_MAX),
  open: f.flag,
});

type RolloutFields = v.InferOutput<typeof RolloutRequestSchema>;
export type GroupFields = RolloutFields["groups"][number];
type Defaults = Partial<Pick<RolloutFields, "n" | "finish_first" | "sampling_params">>;

export interface AskedGroup {
  readonly group: GroupFields;
  /** The group's JSON as its client wrote it. */
  readonly source: string;
  /** Prefix of its fields in messages. */
  readonly at: string;
}

export interface GroupPlan {
  readonly id: string;
  readonly prompt: Int32Array;
  readonly n: number;
  readonly sampling: SamplingParams;
  readonly seeded: boolean;
  /** Responses that make the group whole. Default: all. */
  readonly finishFirst?: number | null;
}

export interface RolloutPlan {
  readonly id: string | null;
  readonly groups: readonly GroupPlan[];
  readonly priority: number;
  readonly isDetached: boolean;
  readonly isStrict: boolean;
  /** Default, as of the fields below: no limit of its own, all, none, no. */
  readonly stalenessMax?: number | null;
  readonly finishGroups?: number | null;
  readonly carryFrom?: string | null;
  readonly isOpen?: boolean;
}

/** A group that a rollout had not made whole when it ended, for one that goes on with it. */
export interface CarriedGroup {
  readonly plan: GroupPlan;
  readonly draws: readonly DrawKey[];
  /** Tokens and logprobs of each response, chunk by chunk, each with the epoch of its weights. */
  readonly outputs: readonly SavedOutput[];
}

/** The plan with the carried groups before its own. @throws AppError invalid_field. */
export function withCarried(plan: RolloutPlan, carried: readonly CarriedGroup[]): RolloutPlan {
  const ids = new Set(carried.map((group) => group.plan.id));
  const twice = plan.groups.findIndex(({ id }) => ids.has(id));
  if (twice >= 0) throw invalid(`groups.${twice}.id`, "is that of a group that is carried on");
  return { ...plan, groups: [...carried.map((group) => group.plan), ...plan.groups] };
}

/** Responses that a client adds to a rollout: a group, or more of one. */
export interface AddedGroup {
  readonly plan: GroupPlan;
  readonly base: number;
}

/** The part of a rollout that a change is checked against. */
export interface Steered {
  readonly requests: number;
  /** The adapter of the rollout's responses; null: the model without an adapter. */
  readonly adapter: string | null;
  /** A group's plan and size; null: the rollout has no group with this id. */
  groupOf(id: string): { readonly plan: GroupPlan; readonly size: number } | null;
}

export interface GroupsContext {
  readonly text: Pick<Text, "vocabularySize">;
  readonly encoder: Pick<Encoder, "encode">;
  readonly chats: ChatRenderer;
  /** Limit above which a prompt is refused before it is encoded; null: there is none. */
  readonly contextTokens: number | null;
  readonly signal: AbortSignal;
  readonly eosTokenIds: readonly number[];
  readonly requestsMax: number;
  readonly adapter: string | null;
  /** Whether texts get the tokenizer's own special tokens. */
  readonly addSpecial: boolean;
}

export interface PlanContext extends Omit<GroupsContext, "adapter" | "addSpecial"> {
  readonly source: string;
  /** The adapter that a client means; null: none. @throws AppError not_found. */
  readonly adapterOf: (model: string | null | undefined) => string | null;
}

/** The plan of a rollout, all of it checked. @throws AppError invalid_field; not_found for a model that is not served here. */
export async function planOf(body: unknown, context: PlanContext): Promise<RolloutPlan> {
  const fields = f.checked(RolloutRequestSchema, body);
  const adapter = context.adapterOf(fields.model);
  if (fields.groups.length === 0) throw invalid("groups", "is empty");
  const { max_staleness: stalenessMax = null } = fields;
  const asked = askedIn(fields.groups, context);
  return {
    id: fields.id ?? null,
    groups: await groupsOf(asked, fields, { ...context, adapter, addSpecial: true }),
    priority: fields.priority ?? 0,
    isDetached: fields.detached ?? false,
    isStrict: fields.on_policy !== "mixed" || stalenessMax !== null,
    stalenessMax,
    finishGroups: fields.finish_groups ?? null,
    carryFrom: fields.carry_from ?? null,
    isOpen: fields.open ?? false,
  };
}

function askedIn<T extends GroupFields>(groups: readonly T[], { source }: PlanContext) {
  const sources = membersOf(membersOf(source).get("groups") ?? "[]");
  return groups.map((group, i) => {
    return { group, source: sources.get(`${i}`) ?? "{}", at: `groups.${i}.` };
  });
}

/** Responses that a client adds, without what the same request added before. @throws AppError invalid_field, conflict. */
export async function additionsOf(
  body: unknown,
  context: PlanContext,
  run: Steered,
): Promise<{ readonly added: readonly AddedGroup[]; readonly isOpen: boolean | null }> {
  const fields = f.checked(AdditionSchema, body);
  const asked = askedIn(fields.groups, context);
  checkIds(asked);
  const more: AddedGroup[] = [];
  const fresh: AskedGroup[] = [];
  for (const one of asked) {
    const { group } = one;
    const known = run.groupOf(group.id);
    const base = known?.size ?? 0;
    const n = group.n ?? fields.n ?? 1;
    const from = group.from ?? base;
    if (from !== base && from + n === base) continue;
    if (from !== base) {
      const name = JSON.stringify(group.id);
      throw new AppError("conflict", `group ${name} has ${base} responses, not ${from}`);
    }
    if (known === null) fresh.push(one);
    else {
      checkMore(one);
      more.push({ plan: { ...known.plan, n, finishFirst: finishFirstOf(one, fields, n) }, base });
    }
  }
  const { adapter } = run;
  const groups = await groupsOf(fresh, fields, { ...context, adapter, addSpecial: true });
  const added = [...groups.map((plan): AddedGroup => ({ plan, base: 0 })), ...more];
  const count = requestsIn(added.map(({ plan }) => plan));
  const { requestsMax } = context;
  if (run.requests + count > requestsMax) {
    const problem = `ask for ${count} responses beside ${run.requests}, more than ${requestsMax}`;
    throw invalid("groups", problem);
  }
  return { added, isOpen: fields.open ?? null };
}

export function requestsIn(groups: readonly Pick<GroupPlan, "n">[]): number {
  return groups.reduce((sum, { n }) => sum + n, 0);
}

/** More responses to a group are as those that it has. */
function checkMore({ group, at }: AskedGroup): void {
  const fields = [...PROMPT_FIELDS, "sampling_params"] as const;
  const given = fields.find((field) => (group[field] ?? null) !== null) ?? templateFieldOf(group);
  if (given === null) return;
  const problem = `is given, but the rollout has a group ${JSON.stringify(group.id)}: more responses to it need none`;
  throw invalid(`${at}${given}`, problem);
}

/** @throws InvalidFieldError: two groups have the same id. */
function checkIds(asked: readonly AskedGroup[]): void {
  const ids = new Set<string>();
  for (const { group, at } of asked) {
    if (ids.has(group.id)) throw invalid(`${at}id`, `is ${group.id}, as an earlier one`);
    ids.add(group.id);
  }
}

export async function groupsOf(
  asked: readonly AskedGroup[],
  defaults: Defaults,
  context: GroupsContext,
): Promise<GroupPlan[]> {
  const { requestsMax, encoder, contextTokens: tokensMax, signal, addSpecial } = context;
  checkIds(asked);
  const plans = asked.map((one) => ({ one, plan: groupOf(one, defaults, context) }));
  const requests = requestsIn(plans.map(({ plan }) => plan));
  if (requests > requestsMax) {
    throw invalid("groups", `ask for ${requests} responses, more than ${requestsMax}`);
  }
  const texts = asked.flatMap(({ group: { prompt } }) => prompt ?? []);
  const encoding = { tokensMax, signal, addSpecial };
  const encoded = (texts.length === 0 ? [] : await encoder.encode(texts, encoding)).values();
  const groups: GroupPlan[] = [];
  for (const { one, plan } of plans) {
    const { messages } = one.group;
    const chat = messages ? await chatPrompt({ ...one.group, messages }, one, context) : null;
    const prompt = plan.prompt ?? chat ?? encoded.next().value;
    const field = messages ? "messages" : "prompt";
    if (!prompt || prompt.length === 0) throw invalid(`${one.at}${field}`, "has no tokens");
    groups.push({ ...plan, prompt });
  }
  return groups;
}

/** A template writes the special tokens itself. */
async function chatPrompt(
  fields: TemplateFields,
  { source, at }: AskedGroup,
  { chats, contextTokens: tokensMax, signal }: GroupsContext,
): Promise<Int32Array> {
  const chat = chatOf(fields, { source, at });
  try {
    return (await chats.render(chat, { tokensMax, signal, addSpecial: false })).tokens;
  } catch (error) {
    if (!(error instanceof InvalidFieldError)) throw error;
    throw invalid(`${at}${error.field}`, error.problem);
  }
}

/** The group's plan; its prompt is null where it is a text or a chat that is yet to be encoded. */
function groupOf(asked: AskedGroup, defaults: Defaults, context: GroupsContext) {
  const { group, at } = asked;
  const { text, eosTokenIds, adapter } = context;
  const own = { ...defaults.sampling_params, ...group.sampling_params };
  const tokensMax = own.max_tokens ?? null;
  if (tokensMax === null) throw invalid(`${at}sampling_params.max_tokens`, "is missing");
  const { sampling, seeded } = drawingOf(
    own,
    { topLogprobs: 0, tokensMax, extraArgs: {} },
    {
      vocabularySize: text.vocabularySize,
      eosTokenIds,
      // A rollout's lines have no place for experts.
      reportsExperts: false,
      at: `${at}sampling_params.`,
    },
  );
  const n = group.n ?? defaults.n ?? 1;
  return {
    id: group.id,
    prompt: givenPrompt(group, { text, at }),
    n,
    finishFirst: finishFirstOf(asked, defaults, n),
    sampling: { ...sampling, tokensMax, ...(adapter === null ? {} : { adapter }) },
    seeded,
  };
}

function finishFirstOf({ group, at }: AskedGroup, defaults: Defaults, n: number): number | null {
  const finishFirst = group.finish_first ?? defaults.finish_first ?? null;
  if (finishFirst === null || finishFirst <= n) return finishFirst;
  throw invalid(`${at}finish_first`, `is ${finishFirst} of ${n} responses`);
}

const PROMPT_FIELDS = ["prompt", "messages", "token_ids"] as const;

/** The given tokens of a prompt; null: it is a text or a chat. */
export function givenPrompt(
  group: Omit<GroupFields, "sampling_params">,
  { text: codec, at }: { text: Pick<Text, "vocabularySize">; at: string },
): Int32Array | null {
  const given = PROMPT_FIELDS.filter((field) => (group[field] ?? null) !== null);
  const [first, second] = given;
  if (first === undefined) {
    const problem = "is missing, and so are messages and token_ids; a group has one of them";
    throw invalid(`${at}prompt`, problem);
  }
  if (second !== undefined) {
    throw invalid(`${at}${first}`, `is given beside ${second}; a group has one of them`);
  }
  const orphan = first === "messages" ? null : templateFieldOf(group);
  if (orphan !== null) {
    throw invalid(`${at}${orphan}`, "is given without messages; only a chat template reads it");
  }
  const { token_ids: ids } = group;
  if (ids === null || ids === undefined) return null;
  if (ids.length === 0) throw invalid(`${at}token_ids`, "is empty");
  const wrong = f.indexBeyond(ids, codec.vocabularySize);
  if (wrong >= 0) {
    const bound = `not in 0..${codec.vocabularySize - 1}`;
    throw invalid(`${at}token_ids.${wrong}`, `is ${ids[wrong]}, ${bound}`);
  }
  return new Int32Array(ids);
}

/** The same error, saying which group it is about. */
export function inGroup(error: unknown, groupId: string): unknown {
  if (!(error instanceof AppError)) return error;
  return new AppError(error.code, `group ${JSON.stringify(groupId)}: ${error.message}`, {
    cause: error,
  });
}
