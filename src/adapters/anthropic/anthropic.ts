// Anthropic's Messages API, over the same data plane as OpenAI's chats.

import { AppError, InvalidFieldError } from "../../core/base/errors.ts";
import { chatRequest, parseChat } from "../../server/openai/chat.ts";
import { type DataPlane, generates, replies } from "../../server/openai/data-plane.ts";
import { checked } from "../../server/openai/fields.ts";
import type { ParsedRequest } from "../../server/openai/plan.ts";
import { fieldOf, invalid, jsonResponse, type Row } from "../../server/route.ts";
import type { Adapter } from "../adapter.ts";
import { messageAnswer } from "./answer.ts";
import {
  chatBodyOf,
  countRequest,
  type MessagesFields,
  messagesRequest,
  OWN_NAMES,
} from "./fields.ts";

function parseMessages(fields: MessagesFields, source: string): ParsedRequest {
  const chat = chatBodyOf(fields, source);
  return {
    ...parseChat(checked(chatRequest, chat.fields), chat.source),
    answer: (model) => messageAnswer(model.answeredName(fields.model)),
  };
}

/** A route whose errors name fields as this API does. */
function inOwnNames(row: Row<DataPlane>): Row<DataPlane> {
  return {
    ...row,
    handle: async (plane, exchange) => {
      try {
        return await row.handle(plane, exchange);
      } catch (error) {
        if (!(error instanceof InvalidFieldError)) throw error;
        const [first = "", ...rest] = error.field.split(".");
        throw invalid([OWN_NAMES[first] ?? first, ...rest].join("."), error.problem);
      }
    },
  };
}

const MESSAGES = inOwnNames(
  generates("/v1/messages", "Anthropic: the next message of a conversation", {
    schema: messagesRequest,
    parse: parseMessages,
  }),
);

/** After this answer, Anthropic's client sends the whole conversation instead. */
const NO_THREADS = {
  type: "error",
  error: {
    type: "invalid_request_error",
    message: "thread is not served: send the whole conversation",
    details: { error_code: "thread_unsupported_request", unsupported: ["thread"] },
  },
};

export const ANTHROPIC: Adapter = {
  data: [
    {
      ...MESSAGES,
      handle: async (plane, exchange) => {
        const thread = fieldOf(await exchange.json("packed"), "thread");
        if (thread !== null && thread !== false) return jsonResponse(NO_THREADS, 400);
        return await MESSAGES.handle(plane, exchange);
      },
    },
    inOwnNames(
      replies("/v1/messages/count_tokens", "Anthropic: the tokens of a conversation", {
        schema: countRequest,
        reply: async ({ planner }, exchange, fields) => {
          const request = parseMessages({ ...fields, max_tokens: 1 }, await exchange.source());
          const { specs } = await planner.plan(request, exchange);
          return { input_tokens: specs[0]?.prompt.length ?? 0 };
        },
      }),
    ),
    {
      method: "POST",
      path: "/v1/responses",
      summary: "Not served: the answer names the routes that are",
      handle: () => {
        const message = "/v1/responses is not served: use /v1/chat/completions or /v1/messages";
        throw new AppError("not_found", message);
      },
    },
  ],
};
