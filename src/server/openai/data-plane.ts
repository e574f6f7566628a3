// The data plane: the model, and what makes answers of requests to it, in two steps after the body is read: a plan, and a
// job. The routes that trainers and OpenAI clients send to one `vllm serve`, and for each the schema that its body is
// checked against.

import * as v from "valibot";
import { assert } from "../../core/base/assert.ts";
import type { Later } from "../../core/base/clock.ts";
import type { Encoder } from "../../text/text.ts";
import { bound, type Exchange, invalid, jsonResponse, type Route, type Row } from "../route.ts";
import {
  chatRequest,
  chatTokensRequest,
  parseChat,
  parseChatTokens,
  renderedChat,
} from "./chat.ts";
import { completionsRequest, parseCompletions } from "./completions.ts";
import { checked, flag, text, tokenList } from "./fields.ts";
import { generateRequest, parseGenerate } from "./generate.ts";
import { chatOf, messageList, TEMPLATE_ENTRIES } from "./messages.ts";
import { type DataPlaneLimits, type ParsedRequest, type PlaneParts, Planner } from "./plan.ts";
import { ChatRenderer } from "./rendering.ts";
import { ServedModel, type ServedModelOptions } from "./served-model.ts";
import { Jobs } from "./submit.ts";

const LIMITS: DataPlaneLimits = {
  responsesMax: 16_384,
  stallMsMax: 30_000,
  graceMs: 30_000,
  leftMax: 1024,
  keptBytesMax: 256 * 2 ** 20,
};

const later: Later = (run, ms) => {
  const timer = setTimeout(run, ms);
  timer.unref();
  return () => clearTimeout(timer);
};

const DEFAULTS = {
  engines: null,
  trajectories: null,
  journals: null,
  sessionHeaders: [],
  expected: () => {},
  failed: () => {},
  variesSeeds: () => false,
  later,
} satisfies Partial<PlaneParts>;

type Given = Pick<PlaneParts, "sidecar" | "encoder"> &
  Partial<Omit<PlaneParts, "model" | "limits">>;

export type DataPlaneOptions = ServedModelOptions &
  Given & { readonly limits?: Partial<DataPlaneLimits> };

export class DataPlane {
  readonly model: ServedModel;
  readonly encoder: Encoder;
  readonly chats: ChatRenderer;
  readonly planner: Planner;
  readonly jobs: Jobs;

  constructor(options: DataPlaneOptions) {
    const { sidecar, encoder, engines = null } = options;
    const chats = options.chats ?? new ChatRenderer({ encoder, engines });
    const model = new ServedModel(options, () => sidecar.contextTokens);
    const limits = { ...LIMITS, ...options.limits };
    const parts: PlaneParts = { ...DEFAULTS, ...options, chats, model, limits };
    this.model = model;
    this.encoder = encoder;
    this.chats = chats;
    this.planner = new Planner(parts);
    this.jobs = new Jobs(parts);
  }
}

const ENTRIES = { model: v.nullish(text), add_special_tokens: flag, return_token_strs: flag };

const tokenizeRequest = v.strictObject({
  ...ENTRIES,
  ...TEMPLATE_ENTRIES,
  /** Exactly one of prompt and messages is required. */
  prompt: v.nullish(text),
  messages: v.nullish(messageList),
});

const detokenizeRequest = v.strictObject({ model: v.nullish(text), tokens: tokenList });

type TokenizeFields = v.InferOutput<typeof tokenizeRequest>;

async function tokenize(
  plane: DataPlane,
  exchange: Exchange,
  fields: TokenizeFields,
): Promise<object> {
  const { model } = plane;
  model.adapterOf(fields.model);
  const { prompt, messages } = fields;
  const isChat = messages !== null && messages !== undefined;
  if (isChat === (prompt !== null && prompt !== undefined)) {
    throw invalid("prompt", "or messages must be there, and not both");
  }
  // A template writes the special tokens itself. What has no room in the context can be counted all the same.
  const addSpecial = fields.add_special_tokens ?? !isChat;
  const encoding = { addSpecial, tokensMax: null, signal: exchange.signal };
  const written = async () =>
    chatOf({ ...fields, messages: messages ?? [] }, { source: await exchange.source() });
  const tokens = isChat
    ? (await plane.chats.render(await written(), encoding)).tokens
    : (await plane.encoder.encode([prompt ?? ""], encoding))[0];
  assert(tokens !== undefined, "a text has its tokens");
  const names =
    fields.return_token_strs === true
      ? JSON.parse(await plane.encoder.namesJson(tokens, exchange.signal))
      : null;
  return {
    count: tokens.length,
    max_model_len: model.contextTokens,
    tokens: [...tokens],
    token_strs: names,
  };
}

/** A route that generates responses. `parse` gets the checked body, and its text where it may hold a chat. */
export function generates<S extends v.GenericSchema>(
  path: string,
  summary: string,
  row: {
    readonly schema: S;
    /** @throws InvalidFieldError. */
    readonly parse: (fields: v.InferOutput<S>, source: string) => ParsedRequest;
    readonly streams?: boolean;
  },
): Row<DataPlane> {
  const { schema, parse, streams = true } = row;
  const handle: Row<DataPlane>["handle"] = async (plane, exchange) => {
    // The body has no name here, which would keep it in memory until the answer.
    const plan = await plane.planner.plan(
      parse(checked(schema, await exchange.json("packed")), await exchange.source()),
      exchange,
    );
    return await plane.jobs.submit(plan, exchange);
  };
  return { method: "POST", path, summary, schema, streams, handle };
}

/** A route that answers a checked body with JSON. */
export function replies<S extends v.GenericSchema>(
  path: string,
  summary: string,
  row: {
    readonly schema: S;
    readonly reply: (
      plane: DataPlane,
      exchange: Exchange,
      fields: v.InferOutput<S>,
    ) => object | Promise<object>;
  },
): Row<DataPlane> {
  const { schema, reply } = row;
  const handle: Row<DataPlane>["handle"] = async (plane, exchange) =>
    jsonResponse(await reply(plane, exchange, checked(schema, await exchange.json("packed"))));
  return { method: "POST", path, summary, schema, handle };
}

export const DATA_ROUTES: readonly Row<DataPlane>[] = [
  generates("/v1/completions", "Responses to one or more prompts, as text and tokens", {
    schema: completionsRequest,
    parse: parseCompletions,
  }),
  generates("/v1/chat/completions", "Responses to a conversation", {
    schema: chatRequest,
    parse: parseChat,
  }),
  generates(
    "/v1/chat/completions/tokens",
    "Responses to a conversation whose prompt is given as tokens",
    { schema: chatTokensRequest, parse: parseChatTokens },
  ),
  replies(
    "/v1/chat/completions/render",
    "The request to /inference/v1/generate that a conversation amounts to",
    {
      schema: chatRequest,
      reply: async (plane, exchange, fields) => {
        const request = parseChat(fields, await exchange.source());
        return renderedChat(plane.model, fields, await plane.planner.plan(request, exchange));
      },
    },
  ),
  generates("/inference/v1/generate", "Responses to one prompt, token ids in and out", {
    schema: generateRequest,
    parse: parseGenerate,
  }),
  replies("/tokenize", "The tokens of a text or a conversation", {
    schema: tokenizeRequest,
    reply: tokenize,
  }),
  replies("/detokenize", "The text of tokens", {
    schema: detokenizeRequest,
    reply: async ({ model, encoder }, { signal }, fields) => {
      model.adapterOf(fields.model);
      if (fields.tokens.length === 0) return { prompt: "" };
      return { prompt: await encoder.decode(model.promptOf(fields.tokens, "tokens"), signal) };
    },
  }),
  {
    method: "GET",
    path: "/v1/models",
    summary: "The model that is served, and its context",
    handle: ({ model }) => jsonResponse({ object: "list", data: model.cards() }),
  },
  {
    method: "GET",
    path: "/v1/models/:model",
    summary: "One model",
    handle: ({ model }, { params }) => jsonResponse(model.card(params.model ?? "")),
  },
];

export function dataRoutes(plane: DataPlane, more: readonly Row<DataPlane>[]): Route[] {
  return bound([...DATA_ROUTES, ...more], plane);
}
