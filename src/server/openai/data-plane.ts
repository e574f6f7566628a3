// The data plane: what trainers and OpenAI clients send to one `vllm serve`, and SGLang's /generate. The
// routes, and for each the schema that its body is checked against.

import type { GenericSchema } from "valibot";
import type { Kept } from "../kept.ts";
import type { RouteDescription } from "../openapi.ts";
import { type Exchange, jsonResponse, type Route } from "../route.ts";
import { abortSglang, sglangAbortRequest } from "../sglang/control.ts";
import { prepareSglang, sglangRequest } from "../sglang/generate.ts";
import { prepareSkyrl, skyrlRequest } from "../skyrl/generate.ts";
import {
  chatRequest,
  chatTokensRequest,
  prepareChat,
  prepareChatTokens,
  renderChatRequest,
} from "./chat.ts";
import { completionsRequest, prepareCompletions } from "./completions.ts";
import { jsonSchemaOf } from "./fields.ts";
import { generateRequest, prepareGenerate } from "./generate.ts";
import { DataPlane, type DataPlaneOptions, type Prepared } from "./plane.ts";
import {
  detokenize,
  detokenizeRequest,
  modelList,
  modelNamed,
  tokenize,
  tokenizeRequest,
} from "./tokenize.ts";

type Prepare = (
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
) => Prepared | Promise<Prepared>;
type Reply = (plane: DataPlane, exchange: Exchange, body: unknown) => object | Promise<object>;

interface Endpoint {
  readonly method: Route["method"];
  readonly path: string;
  readonly summary: string;
  readonly schema: GenericSchema | null;
  readonly act:
    | { readonly kind: "generates"; readonly prepare: Prepare; readonly streams: boolean }
    | { readonly kind: "replies"; readonly reply: Reply };
}

const generates = (prepare: Prepare, streams = true) =>
  ({ kind: "generates", prepare, streams }) as const;
const replies = (reply: Reply) => ({ kind: "replies", reply }) as const;

const ENDPOINTS: readonly Endpoint[] = [
  {
    method: "POST",
    path: "/v1/completions",
    summary: "Responses to one or more prompts, as text and tokens",
    schema: completionsRequest,
    act: generates(prepareCompletions),
  },
  {
    method: "POST",
    path: "/v1/chat/completions",
    summary: "Responses to a conversation",
    schema: chatRequest,
    act: generates(prepareChat),
  },
  {
    method: "POST",
    path: "/v1/chat/completions/tokens",
    summary: "Responses to a conversation whose prompt is given as tokens",
    schema: chatTokensRequest,
    act: generates(prepareChatTokens),
  },
  {
    method: "POST",
    path: "/v1/chat/completions/render",
    summary: "The request to /inference/v1/generate that a conversation amounts to",
    schema: chatRequest,
    act: replies(renderChatRequest),
  },
  {
    method: "POST",
    path: "/inference/v1/generate",
    summary: "Responses to one prompt, token ids in and out",
    schema: generateRequest,
    act: generates(prepareGenerate),
  },
  {
    method: "POST",
    path: "/skyrl/v1/generate",
    summary: "SkyRL: a response with the tokens from which each of its tokens was drawn, packed",
    schema: skyrlRequest,
    act: generates(prepareSkyrl, false),
  },
  {
    method: "POST",
    path: "/tokenize",
    summary: "The tokens of a text or a conversation",
    schema: tokenizeRequest,
    act: replies(tokenize),
  },
  {
    method: "POST",
    path: "/detokenize",
    summary: "The text of tokens",
    schema: detokenizeRequest,
    act: replies(detokenize),
  },
  {
    method: "GET",
    path: "/v1/models",
    summary: "The model that is served, and its context",
    schema: null,
    act: replies((plane) => modelList(plane)),
  },
  {
    method: "GET",
    path: "/v1/models/:model",
    summary: "One model",
    schema: null,
    act: replies((plane, exchange) => modelNamed(plane, exchange.params.model ?? "")),
  },
  {
    method: "POST",
    path: "/generate",
    summary: "Responses in SGLang's shape",
    schema: sglangRequest,
    act: generates(prepareSglang, false),
  },
  {
    method: "POST",
    path: "/abort_request",
    summary: "Gives up a request, or all, in SGLang's shape",
    schema: sglangAbortRequest,
    act: replies((plane, _exchange, body) => abortSglang(plane, body)),
  },
];

export interface DataPlaneSide {
  readonly routes: Route[];
  /** Gives up the requests that clients named so, or all (null); returns how many there were. */
  readonly abort: (requestIds: readonly string[] | null) => number;
  /** The adapter that a client means; null: none. @throws AppError not_found. */
  readonly adapterOf: (model: string | null | undefined) => string | null;
  /** Of requests whose clients have gone, or may ask again. */
  readonly kept: () => Kept;
}

/** One data plane serves one sidecar. */
export function dataPlane(options: DataPlaneOptions): DataPlaneSide {
  const plane = new DataPlane(options);
  return {
    routes: routesOf(plane),
    abort: (ids) => abortNamed(plane, ids),
    adapterOf: (model) => plane.checkModel(model),
    kept: () => plane.kept,
  };
}

function routesOf(plane: DataPlane): Route[] {
  return ENDPOINTS.map(({ method, path, act }) => ({
    method,
    path,
    handle: async (exchange) => {
      if (act.kind === "replies") {
        const body = method === "GET" ? null : await exchange.json("packed");
        return jsonResponse(await act.reply(plane, exchange, body));
      }
      // The body has no name here, which would keep it in memory until the answer.
      const prepared = await act.prepare(plane, exchange, await exchange.json("packed"));
      return await plane.respond(exchange, prepared);
    },
  }));
}

export function describeDataPlane(): RouteDescription[] {
  return ENDPOINTS.map(({ method, path, summary, schema, act }) => ({
    method,
    path,
    summary,
    request: schema === null ? null : jsonSchemaOf(schema),
    streams: act.kind === "generates" && act.streams,
  }));
}

/** What answers put before a request's id, and behind it: `cmpl-ID-0` is its first prompt, as vLLM has it. */
const WRITTEN_ID = /^(?:generate-tokens-|cmpl-|chatcmpl-)(.+?)(?:-\d+)?$/s;

function abortNamed(plane: DataPlane, requestIds: readonly string[] | null): number {
  const wanted = new Set(requestIds ?? []);
  for (const id of requestIds ?? []) {
    const [, own] = WRITTEN_ID.exec(id) ?? [];
    if (own !== undefined) wanted.add(own);
    // A client's own id may end in a number.
    wanted.add(id.replace(/^(?:generate-tokens-|cmpl-|chatcmpl-)/, ""));
  }
  let aborted = 0;
  for (const job of [...plane.jobs]) {
    if (requestIds !== null && !wanted.has(job.id)) continue;
    job.abort();
    aborted += 1;
  }
  return aborted;
}
