// The data plane: what trainers and OpenAI clients send to one `vllm serve`. The routes, and for each the schema that its
// body is checked against; and what clients ask about the model before they generate.

import * as v from "valibot";
import { assert } from "../../core/base/assert.ts";
import { bound, type Exchange, invalid, jsonResponse, type Route, type Row } from "../route.ts";
import { parseChat, parseChatTokens, renderedChat } from "./chat.ts";
import { chatRequest, chatTokensRequest } from "./chat-fields.ts";
import { completionsRequest, parseCompletions } from "./completions.ts";
import { checked, flag, text, tokenList } from "./fields.ts";
import { generateRequest, parseGenerate } from "./generate.ts";
import { chatOf, messageList, TEMPLATE_ENTRIES } from "./messages.ts";
import type { DataPlane } from "./plane.ts";
import type { ParsedRequest } from "./request.ts";

const ENTRIES = { model: v.nullish(text), add_special_tokens: flag, return_token_strs: flag };

const tokenizeRequest = v.strictObject({
  ...ENTRIES,
  ...TEMPLATE_ENTRIES,
  /** Exactly one of prompt and messages is required. */
  prompt: v.nullish(text),
  messages: v.nullish(messageList),
});

const detokenizeRequest = v.strictObject({ model: v.nullish(text), tokens: tokenList });

async function tokenize(plane: DataPlane, exchange: Exchange, body: unknown): Promise<object> {
  const fields = checked(tokenizeRequest, body);
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

async function detokenize(plane: DataPlane, exchange: Exchange, body: unknown): Promise<object> {
  const fields = checked(detokenizeRequest, body);
  plane.model.adapterOf(fields.model);
  if (fields.tokens.length === 0) return { prompt: "" };
  const tokens = plane.model.promptOf(fields.tokens, "tokens");
  return { prompt: await plane.encoder.decode(tokens, exchange.signal) };
}

/** `source`: the body as its client wrote it, where it may hold a chat. @throws InvalidFieldError. */
type Parse = (body: unknown, source: string) => ParsedRequest;
type Reply = (plane: DataPlane, exchange: Exchange, body: unknown) => object | Promise<object>;

export function generates(
  path: string,
  summary: string,
  row: { readonly schema: v.GenericSchema; readonly parse: Parse; readonly streams?: boolean },
): Row<DataPlane> {
  const { schema, parse, streams = true } = row;
  const handle: Row<DataPlane>["handle"] = async (plane, exchange) => {
    // The body has no name here, which would keep it in memory until the answer.
    const plan = await plane.planner.plan(
      parse(await exchange.json("packed"), await exchange.source()),
      exchange,
    );
    return await plane.jobs.submit(plan, exchange);
  };
  return { method: "POST", path, summary, schema, streams, handle };
}

export function replies(
  path: string,
  summary: string,
  { schema, reply }: { readonly schema: v.GenericSchema; readonly reply: Reply },
): Row<DataPlane> {
  const handle: Row<DataPlane>["handle"] = async (plane, exchange) =>
    jsonResponse(await reply(plane, exchange, await exchange.json("packed")));
  return { method: "POST", path, summary, schema, handle };
}

async function renderChat(plane: DataPlane, exchange: Exchange, body: unknown): Promise<object> {
  const request = parseChat(body, await exchange.source());
  return renderedChat(plane.model, body, await plane.planner.plan(request, exchange));
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
    { schema: chatRequest, reply: renderChat },
  ),
  generates("/inference/v1/generate", "Responses to one prompt, token ids in and out", {
    schema: generateRequest,
    parse: parseGenerate,
  }),
  replies("/tokenize", "The tokens of a text or a conversation", {
    schema: tokenizeRequest,
    reply: tokenize,
  }),
  replies("/detokenize", "The text of tokens", { schema: detokenizeRequest, reply: detokenize }),
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
