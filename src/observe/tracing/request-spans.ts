// Spans of a request that has finished: one for the request, with the attributes of OpenTelemetry's conventions for
// generative AI where they exist, and one for each chunk. Their times are those that response and chunks have; nothing
// is recorded while tokens come.

import type { Request } from "../../core/request/buffer.ts";
import type { Chunk } from "../../core/request/response.ts";
import { newSpanId, type TraceContext } from "./context.ts";
import { KIND, type Span, span, type Value } from "./span.ts";

/** What is known of a request besides itself. */
export interface About {
  readonly context: TraceContext;
  /** The route that the client called; null: none. */
  readonly route: string | null;
  /** The client's name for the conversation; null: none. */
  readonly session: string | null;
  /** Responses that the client wants of the prompt. */
  readonly choices: number;
  readonly modelName: string;
  /** What people call the engine. */
  readonly nameOf: (worker: number) => string;
  /** The Unix time of the clock's 0, in milliseconds. */
  readonly originMs: number;
}

/** More chunks than that are counted, and have no span. */
const CHUNK_SPANS_MAX = 128;

/** Its response has finished. */
export function requestSpans(request: Request, about: About): Span[] {
  const { response } = request;
  const { context, originMs } = about;
  const { traceId, parentId } = context;
  const startMs = response.joinedMs ?? 0;
  const endMs = response.finishedMs ?? startMs;
  const spanId = newSpanId();
  const operation = about.route === "/v1/chat/completions" ? "chat" : "text_completion";
  const own = span({
    ...{ traceId, spanId, parentId, kind: KIND.server },
    name: `${operation} ${about.modelName}`,
    startMs: originMs + startMs,
    endMs: originMs + endMs,
    attributes: requestAttributes(request, about, operation),
    error: response.refusal?.message ?? null,
  });
  const chunks = response.chunks.slice(0, CHUNK_SPANS_MAX).flatMap((chunk, index) => {
    const { run } = chunk;
    if (run === undefined) return [];
    return span({
      ...{ traceId, spanId: newSpanId(), parentId: spanId, kind: KIND.internal, name: "chunk" },
      startMs: originMs + run.startMs,
      endMs: originMs + (run.endMs ?? endMs),
      attributes: chunkAttributes(chunk, response.chunks[index - 1], about, index),
      error: run.end === "lost" ? "its worker, or the weights, were gone" : null,
    });
  });
  return [own, ...chunks];
}

type Attributes = Readonly<Record<string, Value | null | undefined>>;

function requestAttributes(request: Request, about: About, operation: string): Attributes {
  const { spec, response } = request;
  const { sampling } = spec;
  const { joinedMs, startedMs, firstTokenMs, finishedMs, chunks, finish, refusal } = response;
  const drafts = draftsOf(chunks);
  return {
    "gen_ai.operation.name": operation,
    "gen_ai.provider.name": "foretoken",
    "gen_ai.request.model": sampling.adapter ?? about.modelName,
    "gen_ai.response.model": sampling.adapter ?? about.modelName,
    "gen_ai.conversation.id": about.session,
    "gen_ai.request.choice.count": about.choices > 1 ? about.choices : null,
    "gen_ai.request.max_tokens": sampling.tokensMax,
    "gen_ai.request.temperature": sampling.temperature,
    "gen_ai.request.top_p": sampling.shaping?.topP,
    "gen_ai.request.top_k": sampling.shaping?.topK || null,
    "gen_ai.request.frequency_penalty": sampling.shaping?.frequencyPenalty,
    "gen_ai.request.presence_penalty": sampling.shaping?.presencePenalty,
    "gen_ai.usage.input_tokens": spec.prompt.length,
    "gen_ai.usage.output_tokens": response.length,
    "gen_ai.response.finish_reasons": finish === null ? null : [finish],
    // vLLM's own spans have these.
    "gen_ai.latency.time_in_queue": seconds(joinedMs, startedMs),
    "gen_ai.latency.time_to_first_token": seconds(joinedMs, firstTokenMs),
    "gen_ai.latency.e2e": seconds(joinedMs, finishedMs),
    "http.route": about.route,
    "error.type": refusal === null ? null : String(refusal.status),
    "foretoken.request": spec.requestId,
    "foretoken.group": spec.groupId,
    "foretoken.sample_index": spec.sampleIndex,
    "foretoken.weight_epoch": chunks.at(-1)?.epoch,
    "foretoken.chunks": chunks.length,
    "foretoken.chunks_left_out": Math.max(0, chunks.length - CHUNK_SPANS_MAX) || null,
    "foretoken.migrations": chunks.filter((chunk, i) => isMove(chunk, chunks[i - 1])).length,
    "foretoken.restarts": response.restarts,
    "foretoken.preemptions": chunks.reduce((sum, { run }) => sum + (run?.preemptions ?? 0), 0),
    "foretoken.drafted_tokens": drafts?.draftedTokens,
    "foretoken.accepted_tokens": drafts?.acceptedTokens,
  };
}

function chunkAttributes(
  chunk: Chunk,
  before: Chunk | undefined,
  about: About,
  index: number,
): Attributes {
  const { run, workerId } = chunk;
  return {
    "foretoken.worker": about.nameOf(workerId),
    "foretoken.worker.id": workerId,
    "foretoken.chunk.index": index,
    "foretoken.chunk.offset": chunk.offset,
    "foretoken.chunk.tokens": chunk.tokens,
    "foretoken.chunk.end": run?.end,
    "foretoken.weight_epoch": chunk.epoch,
    "foretoken.weights": chunk.weights,
    "foretoken.moved": isMove(chunk, before),
    "foretoken.kv_tokens_loaded": run?.kvTokens,
    "foretoken.time_to_first_token": seconds(run?.startMs ?? null, run?.firstTokenMs ?? null),
    "foretoken.preemptions": run?.preemptions,
    "foretoken.drafted_tokens": run?.drafts?.draftedTokens,
    "foretoken.accepted_tokens": run?.drafts?.acceptedTokens,
  };
}

function isMove(chunk: Chunk, before: Chunk | undefined): boolean {
  return before !== undefined && before.workerId !== chunk.workerId;
}

/** null: no worker counts them by request. */
function draftsOf(
  chunks: readonly Chunk[],
): { draftedTokens: number; acceptedTokens: number } | null {
  const all = chunks.flatMap(({ run }) => run?.drafts ?? []);
  if (all.length === 0) return null;
  return {
    draftedTokens: all.reduce((sum, { draftedTokens }) => sum + draftedTokens, 0),
    acceptedTokens: all.reduce((sum, { acceptedTokens }) => sum + acceptedTokens, 0),
  };
}

function seconds(fromMs: number | null, toMs: number | null): number | null {
  return fromMs === null || toMs === null ? null : Math.max(0, toMs - fromMs) / 1000;
}
