// POST /tokenize and /detokenize, GET /v1/models: what clients ask about the model before they generate.

import * as v from "valibot";
import { assert } from "../../core/base/assert.ts";
import { type Exchange, invalid } from "../route.ts";
import { encodeMessages } from "./chat.ts";
import { checked, flag, text, tokenList } from "./fields.ts";
import { messageList, TEMPLATE_ENTRIES } from "./messages.ts";
import type { DataPlane } from "./plane.ts";

const ENTRIES = { model: v.nullish(text), add_special_tokens: flag, return_token_strs: flag };

export const tokenizeRequest = v.strictObject({
  ...ENTRIES,
  ...TEMPLATE_ENTRIES,
  /** Either a prompt, or messages. */
  prompt: v.nullish(text),
  messages: v.nullish(messageList),
});

export const detokenizeRequest = v.strictObject({ model: v.nullish(text), tokens: tokenList });

export async function tokenize(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<object> {
  const fields = checked(tokenizeRequest, body);
  plane.checkModel(fields.model);
  const { prompt, messages } = fields;
  const isChat = messages !== null && messages !== undefined;
  if (isChat === (prompt !== null && prompt !== undefined)) {
    throw invalid("prompt", "or messages must be there, and not both");
  }
  // A template writes the special tokens itself. What has no room in the context can be counted all the same.
  const addSpecial = fields.add_special_tokens ?? !isChat;
  const encoding = plane.encoding(exchange, { addSpecial, truncates: true });
  const tokens = isChat
    ? (await encodeMessages(plane, { ...fields, messages }, encoding)).tokens
    : (await plane.encoder.encode([prompt ?? ""], encoding))[0];
  assert(tokens !== undefined, "a text has its tokens");
  const names =
    fields.return_token_strs === true
      ? JSON.parse(await plane.encoder.namesJson(tokens, exchange.signal))
      : null;
  return {
    count: tokens.length,
    max_model_len: plane.contextTokens,
    tokens: [...tokens],
    token_strs: names,
  };
}

export async function detokenize(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<object> {
  const fields = checked(detokenizeRequest, body);
  plane.checkModel(fields.model);
  if (fields.tokens.length === 0) return { prompt: "" };
  const tokens = plane.promptOf(fields.tokens, "tokens", null);
  return { prompt: await plane.encoder.decode(tokens, exchange.signal) };
}

/** An entry of GET /v1/models. */
export function modelCard(plane: DataPlane, id: string): object {
  return {
    id,
    object: "model",
    created: plane.startedS,
    owned_by: "foretoken",
    root: plane.modelName,
    parent: plane.adapters.has(id) ? plane.modelName : null,
    max_model_len: plane.contextTokens,
    permission: [],
  };
}
