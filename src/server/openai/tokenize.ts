// POST /tokenize and /detokenize, GET /v1/models: what clients ask about the model before they generate.

import * as v from "valibot";
import { AppError } from "../../base/errors.ts";
import { messageList, renderMessages, TEMPLATE_ENTRIES } from "./chat.ts";
import { checked, flag, text, tokenList } from "./fields.ts";
import type { DataPlane } from "./plane.ts";
import { invalid } from "./sampling-fields.ts";

const ENTRIES = { model: v.nullish(text), add_special_tokens: flag, return_token_strs: flag };

export const tokenizeRequest = v.strictObject({
  ...ENTRIES,
  ...TEMPLATE_ENTRIES,
  /** Either a prompt, or messages. */
  prompt: v.nullish(text),
  messages: v.nullish(messageList),
});

export const detokenizeRequest = v.strictObject({ model: v.nullish(text), tokens: tokenList });

export function tokenize(plane: DataPlane, body: unknown): object {
  const fields = checked(tokenizeRequest, body);
  plane.checkModel(fields.model);
  const { prompt, messages } = fields;
  const isChat = messages !== null && messages !== undefined;
  if (isChat === (prompt !== null && prompt !== undefined)) {
    throw invalid("prompt", "or messages must be there, and not both");
  }
  const written = isChat ? renderMessages(plane, { ...fields, messages }) : (prompt ?? "");
  // A template writes the special tokens itself.
  const addSpecial = fields.add_special_tokens ?? !isChat;
  const tokens = plane.text.encode(written, { addSpecial });
  const names = [...tokens].map((token) => new TextDecoder().decode(plane.text.bytes(token)));
  return {
    count: tokens.length,
    max_model_len: plane.contextTokens,
    tokens: [...tokens],
    token_strs: fields.return_token_strs === true ? names : null,
  };
}

export function detokenize(plane: DataPlane, body: unknown): object {
  const fields = checked(detokenizeRequest, body);
  plane.checkModel(fields.model);
  if (fields.tokens.length === 0) return { prompt: "" };
  const tokens = plane.promptOf(fields.tokens, "tokens");
  return { prompt: plane.text.decode(tokens, { skipSpecial: false }) };
}

export function modelList(plane: DataPlane): object {
  return { object: "list", data: plane.modelNames.map((id) => modelCard(plane, id)) };
}

/** @throws AppError not_found. */
export function modelNamed(plane: DataPlane, id: string): object {
  if (plane.modelNames.includes(id)) return modelCard(plane, id);
  throw new AppError("not_found", `The model \`${id}\` does not exist.`);
}

function modelCard(plane: DataPlane, id: string): object {
  return {
    id,
    object: "model",
    created: plane.startedS,
    owned_by: "foretoken",
    root: plane.modelName,
    parent: null,
    max_model_len: plane.contextTokens,
    permission: [],
  };
}
