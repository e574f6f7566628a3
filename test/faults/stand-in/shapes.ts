// vLLM's JSON, as a live 0.32 writes it: events and bodies of both endpoints, errors, metrics. Text only.

import type { StandInEngine } from "./engine.ts";
import { standInCandidates, standInLogprob } from "./tokens.ts";

export interface Usage {
  readonly prompt: number;
  readonly output: number;
  readonly cached: number;
}

export interface Shape {
  readonly endpoint: "generate" | "completions";
  readonly id: string;
  readonly model: string;
  /** null: no logprobs. */
  readonly logprobs: number | null;
  /** Names tokens in completions: what servers before `return_token_ids` lack. */
  readonly returnsTokenIds: boolean;
  readonly continuousUsage: boolean;
  /** Version of the weights at the request's arrival. */
  readonly weightVersion: string;
}

export interface Piece {
  readonly tokens: readonly number[];
  readonly finish: string | null;
  readonly stop: number | null;
  readonly usage: Usage;
  /** null: not reported, or not the last piece. */
  readonly experts: string | null;
}

export function pieceJson(shape: Shape, piece: Piece): unknown {
  const usage = shape.continuousUsage ? { usage: usageJson(piece.usage, false) } : {};
  const choice = {
    index: 0,
    finish_reason: piece.finish,
    stop_reason: piece.stop,
    ...(shape.returnsTokenIds ? { token_ids: piece.tokens } : {}),
  };
  if (shape.endpoint === "generate") {
    const version = shape.weightVersion;
    const versions = piece.finish === null ? null : [{ version, start: 0, end: 1 }];
    const extra = { routed_experts: piece.experts, sampling_mask: null, weight_versions: versions };
    const logprobs = generateLogprobs(shape, piece.tokens);
    return {
      request_id: shape.id,
      ...usage,
      output_mode: "tokens",
      choices: [{ ...choice, ...extra, logprobs }],
    };
  }
  return {
    id: shape.id,
    object: "text_completion",
    created: 0,
    model: shape.model,
    choices: [{ text: "", ...choice, logprobs: completionLogprobs(shape, piece.tokens) }],
    ...usage,
  };
}

/** Layers and experts of a token, as --enable-return-routed-experts reports them for each position. */
const EXPERTS_SHAPE = "2, 3";

/**
 * Experts of all tokens but the last one, which was not computed: base64 of numpy.save's output, from position `from`
 * on.
 */
export function expertsBase64(tokens: readonly number[], from: number): string {
  const rows = tokens.slice(from, -1).flatMap((token, i) => {
    const position = from + i;
    return [token & 255, token >> 8, position & 255, position >> 8, (token * 7) & 255, 1];
  });
  const count = Math.max(0, tokens.length - 1 - from);
  const text = `{'descr': '|u1', 'fortran_order': False, 'shape': (${count}, ${EXPERTS_SHAPE}), }`;
  const padded = Math.ceil((11 + text.length) / 64) * 64 - 10;
  const head = Buffer.from(`\x93NUMPY\x01\x00..${text.padEnd(padded - 1)}\n`, "latin1");
  head.writeUInt16LE(padded, 8);
  return Buffer.concat([head, Buffer.from(rows)]).toString("base64");
}

/**
 * Prompt logprobs in vLLM's form: nothing for the first token, the token itself and the `count` likeliest for the
 * others.
 */
export function promptLogprobs(prompt: readonly number[], count: number): unknown {
  return prompt.map((token, position) => {
    if (position === 0) return null;
    const [own, other] = [token, (token + 7) % 1000];
    const entry = (id: number, rank: number) => ({
      logprob: -(id % 100) / 64 - position / 1024,
      rank,
      decoded_token: `"${id}"`,
    });
    return { [own]: entry(own, 2), ...(count > 0 ? { [other]: entry(other, 1) } : {}) };
  });
}

export function usageEventJson(shape: Shape, usage: Usage): unknown {
  const name =
    shape.endpoint === "generate" ? { request_id: shape.id } : { id: shape.id, model: shape.model };
  return { ...name, usage: usageJson(usage, true), choices: [] };
}

export function usageJson(usage: Usage, hasDetails: boolean): unknown {
  return {
    prompt_tokens: usage.prompt,
    total_tokens: usage.prompt + usage.output,
    completion_tokens: usage.output,
    prompt_tokens_details: hasDetails ? { cached_tokens: usage.cached } : null,
  };
}

export function errorJson(status: number, message: string): unknown {
  const type = status < 500 ? "BadRequestError" : "InternalServerError";
  return { error: { message, type, param: null, code: status } };
}

/** The token drawn comes first and counts, so that of `logprobs` alternatives the last one may be missing. */
function generateLogprobs({ logprobs }: Shape, tokens: readonly number[]): unknown {
  if (logprobs === null) return null;
  const content = tokens.map((token) => {
    const candidates = standInCandidates(token);
    const drawn = candidates.filter((candidate) => candidate.token === token);
    const others = candidates.filter((candidate) => candidate.token !== token);
    const listed = [...drawn, ...others].slice(0, logprobs);
    return {
      token_id: token,
      logprob: standInLogprob(token),
      rank: drawn[0]?.rank,
      top_logprobs: listed.map(({ token: id, logprob, rank }) => ({ token_id: id, logprob, rank })),
    };
  });
  return { content };
}

/** The likeliest, and the token drawn as well where it is not one of them. */
function completionLogprobs({ logprobs }: Shape, tokens: readonly number[]): unknown {
  if (logprobs === null) return null;
  return {
    text_offset: tokens.map(() => 0),
    token_logprobs: tokens.map(standInLogprob),
    tokens: tokens.map((token) => `token_id:${token}`),
    top_logprobs: tokens.map((token) => {
      const listed = standInCandidates(token).filter(
        (candidate) => candidate.rank <= logprobs || candidate.token === token,
      );
      return Object.fromEntries(
        listed.map(({ token: id, logprob }) => [`token_id:${id}`, logprob]),
      );
    }),
  };
}

/** `spelling` 0.22: gauges and counters as older releases and client libraries name them. */
export function metricsText(
  engines: readonly StandInEngine[],
  options: { spelling: "0.22" | "0.32"; startedS: number; isHybrid: boolean },
): string {
  const lines = [
    "# HELP vllm:num_requests_running Number of requests in model execution batches.",
    `process_start_time_seconds ${options.startedS}`,
    ...engines.flatMap((engine, index) => engineLines(engine, { ...options, index })),
  ];
  return `${lines.join("\n")}\n`;
}

function engineLines(
  engine: StandInEngine,
  { spelling, isHybrid, index }: { spelling: string; isHybrid: boolean; index: number },
): string[] {
  const { counters } = engine;
  const { blocks, blockSize } = engine.options;
  const isOld = spelling === "0.22";
  const total = isOld ? "" : "_total";
  const labels = `{engine="${index}",model_name="stand-in"}`;
  const mamba = isHybrid ? `"${blockSize}"` : '"None"';
  return [
    `vllm:num_requests_running${labels} ${engine.running}.0`,
    `vllm:num_requests_waiting${labels} ${engine.waiting}.0`,
    `vllm:${isOld ? "gpu" : "kv"}_cache_usage_perc${labels} ${engine.blocksUsed / blocks}`,
    `vllm:num_preemptions${total}${labels} ${counters.preemptions}.0`,
    `vllm:num_preemptions_created${labels} 1.7952741654939282e+09`,
    `vllm:prompt_tokens${total}${labels} ${counters.promptTokens}.0`,
    `vllm:external_prefix_cache_hits${total}${labels} ${engine.externalTokens}.0`,
    `vllm:generation_tokens${total}${labels} ${counters.generationTokens}.0`,
    `vllm:iteration_tokens_total_count${labels} ${counters.steps}.0`,
    `vllm:cache_config_info{block_size="${blockSize}",engine="${index}",mamba_block_size=${mamba},num_cpu_blocks="None",num_gpu_blocks="${blocks}",user_specified_block_size="False"} 1.0`,
  ];
}
