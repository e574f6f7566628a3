// The OpenAPI description of the rollout API.

import { jsonSchemaOf } from "../openai/fields.ts";
import type { RouteDescription } from "../openapi.ts";
import { RolloutDetailSchema, RolloutListSchema, RolloutStateSchema } from "./answers.ts";
import { RolloutRequestSchema } from "./plan.ts";

export function describeRollouts(): RouteDescription[] {
  const plain = { request: null, streams: false };
  return [
    {
      method: "POST",
      path: "/v1/rollouts",
      summary: "Runs an iteration; finished groups come as NDJSON at once, a summary last",
      request: jsonSchemaOf(RolloutRequestSchema),
      streams: false,
      answers: ["application/x-ndjson"],
    },
    {
      method: "GET",
      path: "/v1/rollouts",
      summary: "Every rollout that is kept",
      ...plain,
      answer: jsonSchemaOf(RolloutListSchema),
    },
    {
      method: "GET",
      path: "/v1/rollouts/:id",
      summary: "One rollout: its state, and that of each response",
      ...plain,
      answer: jsonSchemaOf(RolloutDetailSchema),
    },
    {
      method: "GET",
      path: "/v1/rollouts/:id/groups",
      summary: "Its finished groups as NDJSON, those from the `from`th on",
      request: null,
      streams: false,
      answers: ["application/x-ndjson"],
      query: { from: { type: "integer", minimum: 0 } },
    },
    {
      method: "DELETE",
      path: "/v1/rollouts/:id",
      summary: "Gives up what is not finished",
      ...plain,
      answer: jsonSchemaOf(RolloutStateSchema),
    },
  ];
}
