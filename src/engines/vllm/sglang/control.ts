// Operations as SGLang's calls, with vLLM's answers. An operation for which SGLang has no call is refused by name.

import { type ControlAnswer, operationName } from "../../../core/rollout/operation.ts";
import { pause } from "../clock.ts";
import { CALLER_MS_MAX, controlAnswer, post, type ServerOperation } from "../control.ts";
import type { ServerAccess } from "../dialect.ts";
import { type HttpCall, type HttpClient, statusProblem } from "../http.ts";

/** Path of the model's name and the weight version. */
export const MODEL_PATH = "/model_info";

interface SglangServer {
  readonly model: string;
  /** Processes of the engine. */
  readonly worldSize: number;
}

interface Translated {
  readonly call: HttpCall;
  /** Makes vLLM's body of SGLang's, if the call succeeded. */
  readonly body?: (answer: unknown) => unknown;
}

/** Time for aborted requests to leave the engine, s: the cache cannot be emptied before. */
const FLUSH_S = 5;
/** Parts of SGLang's memory. A call without tags means all. */
const TAGS = ["kv_cache", "weights", "cuda_graph"] as const;

const FLUSH_CALL = post(`/flush_cache?timeout=${FLUSH_S}`, {});

/** Empties the prefix cache. Requests that were just aborted can prevent this for a moment, so it is tried again. */
export async function flushCache(
  { client, clock, limits }: ServerAccess,
  isWanted: () => boolean,
): Promise<string | null> {
  const endMs = clock.nowMs() + limits.checkMsMax;
  for (;;) {
    const problem = statusProblem(await client.answer(FLUSH_CALL, limits.checkMsMax));
    if (problem === null || !isWanted()) return null;
    if (clock.nowMs() >= endMs) return `/flush_cache: ${problem}`;
    await pause(clock, limits.retryMs);
  }
}

/** Returns the function that carries out operations. It never rejects. */
export function sglangControl(client: HttpClient, server: SglangServer) {
  /** Parts of the server's memory that are released. */
  const freed = new Set<string>();
  return async (operation: ServerOperation): Promise<ControlAnswer> => {
    if (operation.kind === "ask" && operation.about === "is_asleep") {
      const asleep = freed.has("kv_cache") || freed.has("weights");
      return { status: 200, body: { is_sleeping: asleep } };
    }
    if (operation.kind === "ask" && operation.about === "world_size") {
      return { status: 200, body: { world_size: server.worldSize } };
    }
    const translated = callOf(operation, server);
    if (translated === null) {
      const message = `an SGLang engine has no call for it: ${operationName(operation)}`;
      return { status: operation.kind === "rpc" ? 400 : 404, body: { error: { message } } };
    }
    const { call, body } = translated;
    const answer = controlAnswer(client.url, await client.answer(call, CALLER_MS_MAX));
    if (answer.status !== 200) return { ...answer, body: problemIn(answer.body) };
    if (operation.kind === "sleep") for (const tag of TAGS) freed.add(tag);
    if (operation.kind === "wake") for (const tag of tagsOf(operation)) freed.delete(tag);
    return body === undefined ? answer : { ...answer, body: body(answer.body) };
  };
}

/** SGLang's call for an operation; null: there is none. */
function callOf(operation: ServerOperation, server: SglangServer): Translated | null {
  switch (operation.kind) {
    case "load": {
      const { path, version } = operation;
      const named = version === null ? {} : { weight_version: version };
      const call = post("/update_weights_from_disk", { model_path: path, ...named });
      return { call, body: () => ({ results: [null] }) };
    }
    case "update":
      return operation.step === "compare"
        ? { call: post("/weights_checker", operation.body ?? {}) }
        : null;
    case "sleep":
      return { call: post("/release_memory_occupation", {}) };
    case "wake": {
      const { tags } = operation;
      return { call: post("/resume_memory_occupation", tags.length === 0 ? {} : { tags }) };
    }
    case "adapter": {
      const { lora_name, lora_path } = Object(operation.body);
      const from = lora_path === undefined ? {} : { lora_path };
      return { call: post(`/${operation.change}_lora_adapter`, { lora_name, ...from }) };
    }
    case "ask": {
      if (operation.about !== "weights_version") return null;
      const call: HttpCall = { method: "GET", path: MODEL_PATH, body: null };
      return { call, body: (answer) => ({ weight_version: Object(answer).weight_version }) };
    }
    case "drop_cache":
      return operation.cache === "prefix"
        ? { call: FLUSH_CALL, body: () => ({ success: true }) }
        : null;
    case "text":
      return textCall(operation, server);
    default:
      return null;
  }
}

function textCall(
  { form, body }: Extract<ServerOperation, { kind: "text" }>,
  { model }: SglangServer,
): Translated | null {
  if (form === "tokenize") return { call: withFields("/tokenize", { model }, body) };
  if (form !== "detokenize") return null;
  // Otherwise it leaves special tokens out.
  const call = withFields("/detokenize", { model, skip_special_tokens: false }, body);
  return { call, body: (answer) => ({ prompt: Object(answer).text }) };
}

/** Adds fields to a body. `body`: the JSON text of an object that is not empty. */
function withFields(path: string, fields: object, body: string): HttpCall {
  return { method: "POST", path, body: `${JSON.stringify(fields).slice(0, -1)},${body.slice(1)}` };
}

function tagsOf({ tags }: { readonly tags: readonly string[] }): readonly string[] {
  return tags.length === 0 ? TAGS : tags;
}

/** Rewrites failures of the form {"success": false, "message": ...}, which clients of vLLM do not look for. */
function problemIn(body: unknown): unknown {
  const { message, error } = Object(body);
  return error === undefined && typeof message === "string" ? { error: { message } } : body;
}
