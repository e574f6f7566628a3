// Anthropic's Messages API, over the same data plane as OpenAI's chats.

import { AppError } from "../../core/base/errors.ts";
import { parseChat } from "../../server/openai/chat.ts";
import { generates, replies } from "../../server/openai/data-plane.ts";
import { checked } from "../../server/openai/fields.ts";
import type { DataPlane } from "../../server/openai/plane.ts";
import type { ParsedRequest } from "../../server/openai/request.ts";
import type { Exchange } from "../../server/route.ts";
import type { Adapter } from "../adapter.ts";
import { messageAnswer } from "./answer.ts";
import { chatFieldsOf, countRequest, messagesRequest, promptFieldsOf } from "./fields.ts";

function parseMessages(body: unknown): ParsedRequest {
  const fields = checked(messagesRequest, body);
  const chat = chatFieldsOf(fields);
  return {
    ...parseChat(chat, JSON.stringify(chat)),
    answer: (model) => messageAnswer(model.answeredName(fields.model)),
  };
}

async function countTokens(plane: DataPlane, exchange: Exchange, body: unknown): Promise<object> {
  const chat = { ...promptFieldsOf(checked(countRequest, body)), max_tokens: 1 };
  const { specs } = await plane.planner.plan(parseChat(chat, JSON.stringify(chat)), exchange);
  return { input_tokens: specs[0]?.prompt.length ?? 0 };
}

export const ANTHROPIC: Adapter = {
  data: [
    generates("/v1/messages", "Anthropic: the next message of a conversation", {
      schema: messagesRequest,
      parse: parseMessages,
    }),
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
