// The data plane: what trainers and OpenAI clients send to one `vllm serve`. The routes, and for each the schema that its body is checked against.

import type { GenericSchema } from "valibot";
import { bound, type Exchange, jsonResponse, type Route, type Row } from "../route.ts";
import { prepareChat, prepareChatTokens, renderChatRequest } from "./chat.ts";
import { chatRequest, chatTokensRequest } from "./chat-fields.ts";
import { completionsRequest, prepareCompletions } from "./completions.ts";
import { generateRequest, prepareGenerate } from "./generate.ts";
import type { DataPlane, Prepared } from "./plane.ts";
import { detokenize, detokenizeRequest, modelCard, tokenize, tokenizeRequest } from "./tokenize.ts";

type Prepare = (
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
) => Prepared | Promise<Prepared>;
type Reply = (plane: DataPlane, exchange: Exchange, body: unknown) => object | Promise<object>;

export function generates(
  path: string,
  summary: string,
  row: { readonly schema: GenericSchema; readonly prepare: Prepare; readonly streams?: boolean },
): Row<DataPlane> {
  const { schema, prepare, streams = true } = row;
  const handle: Row<DataPlane>["handle"] = async (plane, exchange) => {
    // The body has no name here, which would keep it in memory until the answer.
    const prepared = await prepare(plane, exchange, await exchange.json("packed"));
    return await plane.respond(exchange, prepared);
  };
  return { method: "POST", path, summary, schema, streams, handle };
}

export function replies(
  path: string,
  summary: string,
  { schema, reply }: { readonly schema: GenericSchema; readonly reply: Reply },
): Row<DataPlane> {
  const handle: Row<DataPlane>["handle"] = async (plane, exchange) =>
    jsonResponse(await reply(plane, exchange, await exchange.json("packed")));
  return { method: "POST", path, summary, schema, handle };
}

export const DATA_ROUTES: readonly Row<DataPlane>[] = [
  generates("/v1/completions", "Responses to one or more prompts, as text and tokens", {
    schema: completionsRequest,
    prepare: prepareCompletions,
  }),
  generates("/v1/chat/completions", "Responses to a conversation", {
    schema: chatRequest,
    prepare: prepareChat,
  }),
  generates(
    "/v1/chat/completions/tokens",
    "Responses to a conversation whose prompt is given as tokens",
    { schema: chatTokensRequest, prepare: prepareChatTokens },
  ),
  replies(
    "/v1/chat/completions/render",
    "The request to /inference/v1/generate that a conversation amounts to",
    { schema: chatRequest, reply: renderChatRequest },
  ),
  generates("/inference/v1/generate", "Responses to one prompt, token ids in and out", {
    schema: generateRequest,
    prepare: prepareGenerate,
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
    handle: (plane) => {
      const names = [...plane.modelNames, ...plane.adapters];
      return jsonResponse({ object: "list", data: names.map((id) => modelCard(plane, id)) });
    },
  },
  {
    method: "GET",
    path: "/v1/models/:model",
    summary: "One model",
    handle: (plane, { params: { model = "" } }) => {
      plane.checkModel(model);
      return jsonResponse(modelCard(plane, model));
    },
  },
];

export function dataRoutes(plane: DataPlane, more: readonly Row<DataPlane>[]): Route[] {
  return bound([...DATA_ROUTES, ...more], plane);
}
