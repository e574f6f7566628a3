// Anthropic's Messages API, over the same data plane as OpenAI's chats.

import { AppError } from "../../core/base/errors.ts";
import { parseChat } from "../../server/openai/chat.ts";
import { generates, replies } from "../../server/openai/data-plane.ts";
import { checked } from "../../server/openai/fields.ts";
import { withWrittenNumbers } from "../../server/openai/messages.ts";
import type { DataPlane } from "../../server/openai/plane.ts";
import type { ParsedRequest } from "../../server/openai/request.ts";
import { type Exchange, fieldOf, jsonResponse } from "../../server/route.ts";
import type { Adapter } from "../adapter.ts";
import { messageAnswer } from "./answer.ts";
import {
  type CountFields,
  chatFieldsOf,
  countRequest,
  messagesRequest,
  promptFieldsOf,
} from "./fields.ts";

/** Keeps the client's spelling of numbers in tools and their calls (1.0 and not 1). `source`: the body's text; may be empty. */
function exactly<T extends CountFields>(fields: T, source: string): T {
  if (source === "") return fields;
  const { messages, tools } = withWrittenNumbers(source) as T;
  return { ...fields, messages, tools };
}

function parseMessages(body: unknown, source: string): ParsedRequest {
  const fields = exactly(checked(messagesRequest, body), source);
  const chat = chatFieldsOf(fields);
  return {
    ...parseChat(chat, JSON.stringify(chat)),
    answer: (model) => messageAnswer(model.answeredName(fields.model)),
  };
}

async function countTokens(plane: DataPlane, exchange: Exchange, body: unknown): Promise<object> {
  const fields = exactly(checked(countRequest, body), await exchange.source());
  const chat = { ...promptFieldsOf(fields), max_tokens: 1 };
  const { specs } = await plane.planner.plan(parseChat(chat, JSON.stringify(chat)), exchange);
  return { input_tokens: specs[0]?.prompt.length ?? 0 };
}

const MESSAGES = generates("/v1/messages", "Anthropic: the next message of a conversation", {
  schema: messagesRequest,
  parse: parseMessages,
});

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
    replies("/v1/messages/count_tokens", "Anthropic: the tokens of a conversation", {
      schema: countRequest,
      reply: countTokens,
    }),
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
